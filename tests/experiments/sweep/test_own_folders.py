"""A sweep deletes only files on its own list and on those of its jobs' runs; no other file is touched."""

import shutil

import pytest
from run_folders.folders import write_run

from treespec.experiments.errors import SweepError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.mark import LOCK, MARK, Mark
from treespec.experiments.records.own_files import OwnFiles
from treespec.experiments.sweep.folder import SWEEP, SweepFolder
from treespec.experiments.sweep.sweep import run_sweep


def tree(folder):
    """Everything in a folder: files with their content, folders with None."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def add(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def test_clearing_deletes_by_the_lists(planned, grid, pretend):
    first, second = (job.name for job in grid.jobs[:2])
    pretend(first)
    add(planned / "jobs" / first / "run", {"figures/mine.png": b"mine"})
    add(planned / "jobs", {"mine.txt": b"mine", f"{second}/run/mine": b"mine"})
    with SweepFolder(planned) as records:
        records.task(second, 1).log.write_text("said")
        records.clear()
    left = {name: content for name, content in tree(planned).items() if content is not None}
    assert set(left) - {MARK, LOCK} == {
        *("jobs/mine.txt", f"jobs/{second}/run/mine"),
        *(f"jobs/{first}/run/{name}" for name in ("figures/mine.png",)),
    }


def test_a_job_that_is_being_written_stops_the_clearing(planned, grid, pretend):
    pretend(grid.jobs[3].name)
    before = tree(planned)
    run = RunFolder(planned / "jobs" / grid.jobs[3].name / "run")
    busy = pytest.raises(SweepError, match="being written by another process")
    with run, SweepFolder(planned) as records, busy:
        records.clear()
    after = tree(planned)
    same = {name for name in before if not name.endswith((MARK, LOCK))}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


@pytest.mark.parametrize("name", ["jobs/{job}/config.yaml", "summary.json", "jobs", "jobs/{job}"])
def test_files_of_others_where_a_sweep_writes(tmp_path, grid, name):
    folder, name = tmp_path / "new", name.format(job=grid.jobs[1].name)
    with SweepFolder(folder):
        pass
    add(folder, {name: b"mine"})
    before = tree(folder)
    for fresh in (False, True):
        with pytest.raises(SweepError, match="move it away"):
            run_sweep(grid, folder, lambda logs: pytest.fail("refused before"), fresh=fresh)
    assert tree(folder) == before


def test_temporaries_of_killed_sweeps_are_cleaned_and_those_of_others_are_not(planned, grid):
    ours = [Mark.read(planned).temporary().name for _ in range(3)]
    other = Mark.read(planned / "jobs" / grid.jobs[0].name / "run")
    theirs = [
        other.temporary().name,
        ".treespec-mine.tmp",
        ".sweep.json.4711.tmp",
        ".mine.tmp",
        f"jobs/{grid.jobs[0].name}/.mine.tmp",
    ]
    add(planned, dict.fromkeys([*ours, *theirs], b"cut"))
    with SweepFolder(planned):
        left = tree(planned)
    assert not set(ours) & set(left)
    assert set(theirs) <= set(left)


def test_an_executor_that_cannot_be_had_leaves_nothing(tmp_path, grid):
    def none(logs):
        raise SweepError("no SLURM here")

    before = tree(tmp_path)
    with pytest.raises(SweepError, match="no SLURM"):
        run_sweep(grid, tmp_path / "deep" / "sweep", none)
    assert tree(tmp_path) == before


def test_a_run_that_was_moved_into_a_job_is_left_alone(planned, grid, pretend, tmp_path):
    """It has a mark, but not the id that the sweep gave to the job's folder."""
    first, second = (job.name for job in grid.jobs[:2])
    for name in (first, second):
        pretend(name)
    place = planned / "jobs" / second / "run"
    place.rename(tmp_path / "away")
    write_run(tmp_path / "mine", prompts=2).rename(place)
    before = tree(planned)
    for fresh in (False, True):
        with pytest.raises(SweepError, match=f"{second}/run.* was not made by this sweep: move it"):
            run_sweep(grid, planned, lambda logs: pytest.fail("refused before"), fresh=fresh)
    assert tree(planned) == before
    files = OwnFiles(planned, SWEEP)  # it is moved there after the look at the folder
    files.load()
    files.clear()
    left = tree(planned)
    mine = {name: before[name] for name in before if name.startswith(f"jobs/{second}/run/")}
    assert {name: left.get(name) for name in mine} == mine
    assert not (planned / "jobs" / first).exists()


def test_a_run_of_a_job_that_was_deleted_by_hand_is_made_anew(planned, grid, pretend):
    name = grid.jobs[0].name
    pretend(name)
    shutil.rmtree(planned / "jobs" / name / "run")
    with SweepFolder(planned) as records:
        records.start(grid, {"executor": "process"})
    pretend(name)
    with SweepFolder(planned) as records:
        records.clear()
    assert set(tree(planned)) == {MARK, LOCK}
