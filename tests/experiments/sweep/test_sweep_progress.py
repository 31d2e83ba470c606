import io

from rich.console import Console

from treespec.experiments.sweep.sweep import Board
from treespec.experiments.sweep.sweep_table import print_collected


def test_there_is_a_line_for_each_change():
    text = io.StringIO()
    board = Board(["a", "b", "c"], Console(file=text, width=100))
    board.set("a", "running")
    board.set("a", "running")
    board.set("a", "finished")
    board.set("b", "failed", "boom")
    assert text.getvalue().splitlines() == [
        "[0/3]  a: running",
        "[1/3]  a: finished",
        "[2/3]  b: failed: boom",
    ]


def test_the_collected_table(planned, grid, pretend):
    from treespec.experiments.sweep.attempts import Attempt, write_attempt
    from treespec.experiments.sweep.collect import collect
    from treespec.experiments.sweep.sweep_folder import read_manifest

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
