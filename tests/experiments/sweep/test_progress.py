import io

import pytest
from rich.console import Console

from treespec.experiments.sweep.progress import Board, JobView, prompts_done
from treespec.experiments.sweep.table import print_collected


@pytest.fixture
def board(planned, grid):
    def make(terminal=False, height=40):
        text = io.StringIO()
        console = Console(file=text, width=100, height=height, force_terminal=terminal)
        views = {job.name: JobView(planned / "jobs" / job.name, 4, 2) for job in grid.jobs}
        return Board(views, console), text

    return make


def test_without_a_terminal_there_is_a_line_for_each_change(board, grid):
    made, text = board()
    name = grid.jobs[0].name
    with made.shown():
        made.set(name, "running")
        made.set(name, "running")
        made.set(name, "finished")
        made.set(grid.jobs[1].name, "failed", "boom")
    lines = text.getvalue().splitlines()
    assert lines == [
        f"[0/4]  {name}: running",
        f"[1/4]  {name}: finished",
        f"[2/4]  {grid.jobs[1].name}: failed: boom",
    ]


def test_the_table_counts_prompts(board, grid, planned, pretend):
    made, _ = board()
    name = grid.jobs[0].name
    run = pretend(name)
    assert prompts_done(made.jobs[name]) == 4
    lines = (run / "prompts.jsonl").read_text().splitlines(keepends=True)
    (run / "prompts.jsonl").write_text("".join(lines[: 2 * 2 * 3 + 1]))
    assert prompts_done(made.jobs[name]) == 3
    assert prompts_done(made.jobs[grid.jobs[1].name]) == 0
    made.set(name, "running")
    console = Console(file=io.StringIO(), width=100)
    console.print(made.table())
    shown = console.file.getvalue()
    assert "4 jobs: 1 running, 3 waiting" in shown
    assert "3/4" in shown


def test_a_small_terminal_shows_what_runs(board, grid):
    made, _ = board(height=12)
    many = {f"job {i}": JobView(made.jobs[grid.jobs[0].name].folder, 4, 2) for i in range(30)}
    made.jobs = many
    made.set("job 20", "running")
    console = Console(file=io.StringIO(), width=100)
    console.print(made.table())
    assert "job 20" in console.file.getvalue()
    assert "and 26 more" in console.file.getvalue()


def test_the_collected_table(planned, grid, pretend):
    from treespec.experiments.sweep.attempts import Attempt, write_attempt
    from treespec.experiments.sweep.collect import collect
    from treespec.experiments.sweep.folder import read_manifest

    for job in grid.jobs[:3]:
        pretend(job.name)
    write_attempt(planned / "jobs" / grid.jobs[3].name, Attempt(1, "out of [memory]", {}))
    text = io.StringIO()
    print_collected(collect(planned, read_manifest(planned)), Console(file=text, width=110))
    shown = text.getvalue()
    assert f"failed {grid.jobs[3].name}: out of [memory]" in shown
    assert shown.count("chain 3") == 6
    assert "T=0" in shown
    assert "methods.1.shape.depth" in shown
