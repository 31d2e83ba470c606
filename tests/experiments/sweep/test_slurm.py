"""The SLURM executor with fake SLURM tools; `test_real_slurm` runs if SLURM is available."""

import json
import os
import shutil
from pathlib import Path

import pytest

from treespec.experiments.errors import SweepError
from treespec.experiments.sweep.attempts import Attempt, Task, write_attempt
from treespec.experiments.sweep.grid import load_grid
from treespec.experiments.sweep.slurm import PATIENCE_S, TOOLS, Slurm

SBATCH = """#!/bin/sh
cat "$1" > "{state}/script"
if grep -q partition=nope "$1"; then
  echo "sbatch: error: invalid partition specified: nope" >&2
  echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2
  exit 1
fi
echo x >> "{state}/submissions"
echo Submitted batch job $(wc -l < "{state}/submissions")
"""
SQUEUE = """#!/bin/sh
if [ -e "{state}/down" ]; then
  echo "slurm_load_jobs error: Unable to contact slurm controller" >&2
  exit 1
fi
cat "{state}/queue" 2>/dev/null
exit 0
"""
SCANCEL = """#!/bin/sh
echo "$@" >> "{state}/cancelled"
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    """The state folder of the fake SLURM, whose tools are first on the PATH."""
    tools, state = tmp_path / "bin", tmp_path / "state"
    tools.mkdir()
    state.mkdir()
    scripts = {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL, "srun": "#!/bin/sh\n"}
    for name, script in scripts.items():
        (tools / name).write_text(script.format(state=state))
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("treespec.experiments.sweep.slurm.ASK_EVERY_S", 0.0)
    return state


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told to: a list with the time in seconds."""
    seconds = [1000.0]
    monkeypatch.setattr("treespec.experiments.sweep.slurm.time.monotonic", lambda: seconds[0])
    return seconds


@pytest.fixture
def tasks(tmp_path):
    made = [Task(name, tmp_path / "jobs" / name, 1, tmp_path / f"{name}.log") for name in "abc"]
    for task in made:
        task.folder.mkdir(parents=True)
    return made


def slurm(tmp_path, parameters=None, **options):
    return Slurm(tmp_path / "logs", parameters or {}, **options)


def queue(state, **jobs):
    (state / "queue").write_text("".join(f"1_{i}|{s}\n" for i, s in enumerate(jobs.values())))


def test_an_array_of_paths(tmp_path, state, tasks):
    import submitit

    executor = slurm(tmp_path, {"partition": "main", "cpus-per-task": 2, "qos": "low"}, workers=2)
    executor.start(tasks)
    script = (state / "script").read_text()
    for part in (
        "--array=0-2%2",
        "--partition=main",
        "--cpus-per-task=2",
        "--qos=low",
        "--time=240",
    ):
        assert part in script, script
    assert "PYTHONSAFEPATH=1" in script
    job = submitit.SlurmJob(tmp_path / "logs", "1_1")
    submitted = job.submission()
    assert submitted.function.__name__ == "run_job"
    assert submitted.args[:2] == (os.fspath(tasks[1].folder.resolve()), 1)
    assert json.loads((tasks[1].folder / "slurm.json").read_text()) == {"job": "1_1", "attempt": 1}


def test_from_waiting_to_the_end(tmp_path, state, tasks, clock):
    executor = slurm(tmp_path)
    executor.start(tasks)
    queue(state, a="PENDING", b="RUNNING", c="RUNNING")
    assert executor.poll() == ([], {"b", "c"})
    write_attempt(tasks[1].folder, Attempt(1, None, {}))
    (ended,), running = executor.poll()
    assert (ended.task.name, ended.error, running) == ("b", None, {"c"})
    queue(state, a="PENDING", b="COMPLETED", c="TIMEOUT")
    (tmp_path / "logs" / "1_2_0_log.err").write_text("slurmstepd: error: *** STEP CANCELLED")
    for _ in range(2):
        assert executor.poll()[0] == []
        clock[0] += PATIENCE_S / 2
    (ended,) = executor.poll()[0]
    assert ended.task.name == "c"
    assert "TIMEOUT" in ended.error
    assert "STEP CANCELLED" in ended.error


def test_a_job_that_slurm_forgot(tmp_path, state, tasks, clock):
    executor = slurm(tmp_path)
    executor.start(tasks[:1])
    assert (state / "script").read_text().count("--array") == 0
    assert executor.poll()[0] == []
    clock[0] += PATIENCE_S
    (state / "queue").write_text("1|RUNNING\n")  # it was only late
    assert executor.poll() == ([], {"a"})
    (state / "queue").write_text("")
    assert executor.poll()[0] == []
    clock[0] += PATIENCE_S
    (ended,) = executor.poll()[0]
    assert "SLURM job 1 ended without a result" in ended.error


def test_a_second_command_picks_up_what_runs(tmp_path, state, tasks):
    slurm(tmp_path).start(tasks)
    queue(state, a="PENDING", b="RUNNING", c="COMPLETED")
    second = slurm(tmp_path)
    second.start(tasks)
    assert (state / "submissions").read_text().count("x") == 2  # c alone was submitted again
    assert json.loads((tasks[2].folder / "slurm.json").read_text())["job"] == "2"
    assert json.loads((tasks[0].folder / "slurm.json").read_text())["job"] == "1_0"


def test_a_slurm_that_refuses_is_quoted(tmp_path, state, tasks):
    with pytest.raises(
        SweepError, match=r"SLURM refused the jobs: .*invalid partition specified: nope"
    ):
        slurm(tmp_path, {"partition": "nope"}).start(tasks)
    with pytest.raises(SweepError, match="Invalid partition name"):
        slurm(tmp_path, {"partition": "nope"}).start(tasks[:1])


def test_no_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(SweepError, match=r"SLURM is not available: sbatch.* --executor local"):
        slurm(tmp_path)


def test_a_slurm_that_is_down(tmp_path, state, tasks, monkeypatch):
    (state / "down").touch()
    with pytest.raises(SweepError, match="Unable to contact slurm controller"):
        slurm(tmp_path).start(tasks)
    (state / "down").unlink()
    executor = slurm(tmp_path)
    executor.start(tasks)
    queue(state, a="RUNNING", b="RUNNING", c="RUNNING")
    executor.poll()
    (state / "down").touch()
    for _ in range(3):  # no answer is no news
        assert executor.poll() == ([], {"a", "b", "c"})
    monkeypatch.setattr("treespec.experiments.sweep.slurm.SILENCE_S", -1.0)
    with pytest.raises(SweepError, match="does not answer"):
        executor.poll()


def test_interrupts_cancel_only_if_told(tmp_path, state, tasks):
    executor = slurm(tmp_path)
    executor.start(tasks)
    text = executor.stop()
    assert "3 SLURM jobs keep running" in text
    assert "scancel 1" in text
    assert not (state / "cancelled").exists()
    executor = slurm(tmp_path, cancel=True)
    executor.start(tasks)
    assert "3 SLURM jobs were cancelled" in executor.stop()
    assert (state / "cancelled").read_text().split() == ["2_0", "2_1", "2_2"]


def real_slurm():
    return all(shutil.which(tool) for tool in TOOLS) and os.system("sinfo -h >/dev/null 2>&1") == 0


needs_slurm = pytest.mark.skipif(
    not real_slurm(), reason="no SLURM that answers (tests/slurm_single_node.sh)"
)


@pytest.mark.slow
@needs_slurm
def test_real_slurm(grid, tmp_path):
    from sweep_tables import without_times

    from treespec.experiments.sweep.executors import InProcess
    from treespec.experiments.sweep.sweep import run_sweep

    found = run_sweep(grid, tmp_path / "slurm", lambda logs: Slurm(logs / "slurm", {}))
    here = run_sweep(grid, tmp_path / "here", lambda logs: InProcess())
    assert not found.collected.failed
    for name in ("prompts", "summary"):
        ours, theirs = (getattr(r.collected, name) for r in (here, found))
        assert without_times(ours).equals(without_times(theirs))


@pytest.mark.slow
@needs_slurm
def test_plug_ins_on_a_real_slurm(grid_file, tmp_path, monkeypatch):
    """Jobs load the copies in the sweep's folder; the original file is gone when they start."""
    from treespec import plugin_files
    from treespec.experiments.config.plugged import plug_in
    from treespec.experiments.sweep.sweep import run_sweep

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "four_parts.py"
    shutil.copyfile(Path(__file__).parents[2] / "helpers" / "plugins" / "four_parts.py", source)
    methods = [
        {"kind": "plain"},
        {
            "kind": "tree",
            "draft": {"source": "repeat", "n": 2},
            "shape": {"kind": "budget", "depth": 4},
            "rule": "mine",
        },
        {"kind": "tree", "shape": {"kind": "twins", "depth": 3}, "law": "deterministic"},
    ]

    def make(logs):
        source.unlink()
        return Slurm(logs / "slurm", {})

    try:
        plug_in([source])
        grid = load_grid(grid_file({"seed": [0, 1]}, methods=methods))
        found = run_sweep(grid, tmp_path / "slurm", make)
    finally:
        plugin_files.load()
    assert not found.collected.failed
    rows = found.collected.summary.filter(method="repeat n=2 chain 4 (mine)")
    assert set(rows["metric.distinct"]) == {1.0}
    copies = list((tmp_path / "slurm" / "jobs").glob("*/run/plugins/four_parts.py"))
    assert len(copies) == 2


def test_a_folder_of_two_lines_does_not_reach_the_script(tmp_path, state):
    with pytest.raises(SweepError, match="control characters"):
        Slurm(tmp_path / "a\nrm -rf x", {})
