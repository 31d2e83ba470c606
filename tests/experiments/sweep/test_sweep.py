"""The driver of sweeps, with fake executors, and once with real (tiny) jobs."""

import io
import shutil

import pytest
from rich.console import Console
from sweep_tables import without_times

from treespec.errors import LoadError, Unavailable
from treespec.experiments.errors import PromptError, SweepError, TooFewPrompts
from treespec.experiments.sweep import sweep as sweep_module
from treespec.experiments.sweep.attempts import Ended, outcome_of, read_attempts
from treespec.experiments.sweep.executors import InProcess
from treespec.experiments.sweep.grid import load_grid
from treespec.experiments.sweep.sweep import Interrupted, require_workers, run_sweep
from treespec.experiments.sweep.sweep_folder import read_manifest
from treespec.models import quantised


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(sweep_module, "POLL_S", 0.0)


class Pretender:
    """Ends every task at the second poll, as `fate` says; started tasks call `pretend`."""

    name, queues, threads = "local", False, 1

    def __init__(self, pretend, fate, workers=2):
        self.pretend, self.fate, self.workers = pretend, fate, workers
        self.running, self.started, self.most, self.stopped = [], [], 0, 0

    def room(self):
        return self.workers - len(self.running)

    def start(self, tasks):
        assert len(tasks) <= self.room()
        self.running += tasks
        self.started += [(task.name, task.attempt) for task in tasks]
        self.most = max(self.most, len(self.running))

    def poll(self):
        if not self.running:
            return [], set()
        task = self.running.pop(0)
        fate = self.fate(task)
        if isinstance(fate, BaseException):
            raise fate
        if fate is None:
            self.pretend(task.name, seed=sum(map(ord, task.name)))
        return [Ended(task, fate)], {other.name for other in self.running}

    def stop(self):
        self.stopped += 1
        return "all were stopped"


@pytest.fixture
def start(grid, planned, pretend):
    """Run the tiny grid with a fake executor."""

    def start(fate=lambda task: None, executor=None, **options):
        made = executor or Pretender(pretend, fate)
        return made, run_sweep(grid, planned, lambda logs: made, **options)

    return start


def test_every_job_once(start, grid, planned):
    executor, result = start()
    assert executor.started == [(job.name, 1) for job in grid.jobs]
    assert executor.most == 2
    assert not result.collected.failed
    assert len(result.collected.summary) == 4 * 2 * 2
    assert read_manifest(planned)["finished"]
    again, result = start()
    assert again.started == []
    assert result.already_finished


@pytest.mark.parametrize("queues", [False, True])
def test_what_waits_in_a_queue_is_not_said_to_run(start, grid, planned, pretend, queues):
    executor = Pretender(pretend, lambda task: None, workers=1)
    executor.name, executor.queues, executor.threads = "cluster", queues, 3
    text = io.StringIO()
    start(executor=executor, console=Console(file=text, width=200))
    said = [f"{job.name}: running" in text.getvalue() for job in grid.jobs]
    assert said == [not queues] * 4
    (session,) = read_manifest(planned)["sessions"][1:]
    assert (session["executor"], session["threads"]) == ("cluster", 3)


def test_failed_jobs_are_tried_again_and_then_recorded(start, grid, planned):
    first, second = grid.jobs[0].name, grid.jobs[1].name
    tries = {first: 1, second: 99}

    def fate(task):
        tries[task.name] = tries.get(task.name, 0) - 1
        return "killed by signal 9" if tries[task.name] >= 0 else None

    executor, result = start(fate, retries=2)
    assert [a for n, a in executor.started if n == first] == [1, 2]
    assert [a for n, a in executor.started if n == second] == [1, 2, 3]
    (failed,) = result.collected.failed
    assert (failed.name, failed.error) == (second, "killed by signal 9")
    assert second not in set(result.collected.summary["job"])
    assert [a.error for a in read_attempts(planned / "jobs" / first)] == [
        "killed by signal 9",
        None,
    ]
    tries[second] = 0
    executor, result = start(fate, retries=0)
    assert executor.started == [(second, 4)]
    assert not result.collected.failed


def test_a_job_that_finished_before_its_worker_died_is_finished(start, pretend):
    def fate(task):
        pretend(task.name)
        return "killed by signal 9"

    _, result = start(fate, retries=0)
    assert not result.collected.failed


def test_interrupts_stop_the_workers_and_lose_nothing(start, grid):
    fates = iter([None, KeyboardInterrupt()])
    executor = None

    def fate(task):
        return next(fates)

    with pytest.raises(Interrupted, match="all were stopped"):
        executor, _ = start(fate)
    executor, result = start()
    assert executor.started == [(job.name, 1) for job in grid.jobs[1:]]
    assert not result.collected.failed


def test_an_executor_that_refuses(start, grid):
    with pytest.raises(SweepError, match="no node"):
        start(lambda task: SweepError("no node"))
    executor, _ = start()
    assert len(executor.started) == len(grid.jobs)


def test_fresh_forgets(start, grid):
    start()
    executor, result = start(fresh=True)
    assert len(executor.started) == len(grid.jobs)
    assert not result.already_finished


ASSISTED = {"kind": "assisted", "lengths": [2, 3], "thresholds": [0.0]}


@pytest.mark.parametrize(
    ("sweep", "changes", "error", "parts"),
    [
        (
            {"prompts.path": ["nowhere.jsonl", "either.jsonl"]},
            {},
            PromptError,
            ["nowhere.jsonl: No such file", "prompts.path=nowhere.jsonl"],
        ),
        (
            {"prompts.count": [1, 1000000]},
            {},
            TooFewPrompts,
            ["prompts.count = 1000000", "4 prompts", "prompts.count=1000000"],
        ),
        (
            {"prompts.count": [2, 3]},
            {"methods": [{"kind": "plain"}, ASSISTED]},
            PromptError,
            ["tuning assisted generation needs 2 prompts", "3 of 4 prompts", "prompts.count=3"],
        ),
    ],
)
def test_what_run_refuses_is_refused_before_anything_starts(
    grid_file, tmp_path, sweep, changes, error, parts
):
    grid = load_grid(grid_file(sweep, **changes))
    with pytest.raises(error) as caught:
        run_sweep(grid, tmp_path / "new", lambda logs: pytest.fail("refused before"))
    assert str(caught.value).startswith(f"{tmp_path / 'grid.yaml'}: ")
    assert str(caught.value).endswith(f"(in the job {parts[-1]})")
    for part in parts:
        assert part in str(caught.value)
    assert not (tmp_path / "new").exists()


GRID = {"seed": [0, 1]}


def broken_models(pair, folder, how):
    """A copy of the pair, damaged in a given way."""
    shutil.copytree(pair, folder)
    target = folder / "target"
    if how == "no folder":
        shutil.rmtree(target)
    elif how == "no config":
        (target / "config.json").unlink()
    elif how == "no weights":
        (target / "model.safetensors").unlink()
    else:
        (target / "model.safetensors").write_bytes(b"cut")
    return folder


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("how", ["no folder", "no config", "no weights", "cut weights"])
def test_models_that_cannot_be_read_are_refused_before_anything_starts(
    grid_file, tiny_pair, tmp_path, how, fresh
):
    """Only the last job names them, so the first could have run."""
    broken = str(broken_models(tiny_pair, tmp_path / "broken", how))
    grid = load_grid(grid_file({"models.target": [str(tiny_pair), broken]}))
    executor = Pretender(pytest.fail, lambda task: None)
    with pytest.raises(LoadError, match=r"grid\.yaml: .*broken.*\(in the job models\.target="):
        run_sweep(grid, tmp_path / "new", lambda logs: executor, fresh=fresh)
    assert not executor.started
    assert not (tmp_path / "new").exists()


def test_texts_too_long_for_the_context_are_refused_before_anything_starts(grid_file, tmp_path):
    grid = load_grid(grid_file({"max_new_tokens": [4, 200]}))
    executor = Pretender(pytest.fail, lambda task: None)
    with pytest.raises(PromptError, match=r"context is 128.*\(in the job max_new_tokens=200\)"):
        run_sweep(grid, tmp_path / "new", lambda logs: executor)
    assert not executor.started
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("key", "kind", "given", "error", "said"),
    [
        ("quantised", "bitsandbytes-nf4", {}, Unavailable, "is for CUDA devices"),
        ("draft_quantised", "int8-dynamic", {}, Unavailable, "needs the package torchao"),
        ("quantised", "int8-dynamic", {"dtype": "float64"}, LoadError, "is not for weights in float64"),
        ("draft_quantised", "int8-dynamic", {"draft_dtype": "float64"}, LoadError, ".*float64.*draft'"),
        ("draft_quantised", "int8-dynamic", {"draft": "none", "draft_dtype": "float64"}, LoadError,
         ".*float64.*draft'"),
    ],
)  # fmt: skip
def test_quantisations_that_cannot_be_are_refused_before_anything_starts(
    grid_file, tiny_pair, tmp_path, monkeypatch, key, kind, given, error, said
):
    """Of the target, of the draft of the pair, and of one that a method names; by the last job only."""
    lacking = ["torchao"] if "torchao" in said else []
    monkeypatch.setattr(quantised, "find_spec", lambda name: None if name in lacking else name)
    monkeypatch.setattr(quantised, "settings_of", lambda *words: None)
    own = {"source": "model", "model": str(tiny_pair / "draft")} if "draft" in given else {}
    grid = load_grid(
        grid_file(
            {f"models.{key}": [None, kind]},
            models={"target": str(tiny_pair), "dtype": "float32", **given},
            methods=[{"kind": "tree", "shape": "chain:3", **({"draft": own} if own else {})}],
        )
    )
    executor = Pretender(pytest.fail, lambda task: None)
    with pytest.raises(error, match=rf"grid\.yaml: models\.{key}='{kind}' {said}.*\(in the job"):
        run_sweep(grid, tmp_path / "new", lambda logs: executor)
    assert not executor.started


def test_models_that_are_gone_cost_no_finished_sweep(start, planned, monkeypatch):
    """Its results are shown as before, and --fresh is rejected before it deletes them."""

    def gone(*sources, **options):
        raise LoadError("there is no such model")

    start()
    monkeypatch.setattr("treespec.models.outline.outline_pair", gone)
    _, result = start()
    assert result.already_finished
    before = {path: path.stat().st_mtime_ns for path in planned.rglob("jobs/**/*")}
    with pytest.raises(LoadError, match="no such model"):
        start(fresh=True)
    assert {path: path.stat().st_mtime_ns for path in planned.rglob("jobs/**/*")} == before


def test_torchrun_is_not_started_by_a_sweep(grid_file, tmp_path):
    grid = load_grid(grid_file({"models.tensor_parallel": [False, True]}))
    with pytest.raises(SweepError, match="torchrun"):
        run_sweep(grid, tmp_path / "new", lambda logs: pytest.fail("refused before"))


def test_numbers_of_workers():
    require_workers("local", 4)
    require_workers("process", 1)
    with pytest.raises(SweepError, match="at least 1"):
        require_workers("local", 0)
    with pytest.raises(SweepError, match="one job after the other"):
        require_workers("process", 2)


def test_real_jobs_in_this_process_broken_off_and_resumed(
    grid_file, loaded_pair, tmp_path, monkeypatch
):
    from treespec.experiments.run import models, runner

    grid = load_grid(grid_file({"seed": [0, 1]}))
    monkeypatch.setattr(models, "load_models", lambda config: loaded_pair)

    def run(name):
        return run_sweep(grid, tmp_path / name, lambda logs: InProcess()).collected

    whole = run("whole")
    real, left = runner.run_unit, [6]

    def broken(*arguments, **options):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(runner, "run_unit", broken)
    with pytest.raises(Interrupted):
        run("broken")
    done = [outcome_of(tmp_path / "broken" / "jobs" / job.name).state for job in grid.jobs]
    assert done == ["finished", "not finished"]
    left[0] = 100
    resumed = run("broken")
    assert left[0] == 100 - (2 * 4 - 6)  # no finished unit was run twice
    assert without_times(whole.prompts).equals(without_times(resumed.prompts))
    assert without_times(whole.summary).equals(without_times(resumed.summary))
    assert len(whole.prompts) == 2 * 2 * 2 * 2
    assert whole.prompts["sweep.seed"].to_list() == [0] * 8 + [1] * 8
