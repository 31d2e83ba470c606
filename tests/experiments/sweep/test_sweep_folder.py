import json

import pytest
import yaml
from filelock import FileLock

from treespec.experiments.config.file import load_config
from treespec.experiments.errors import SweepError, VersionsDiffer
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.manifest import config_hash
from treespec.experiments.sweep import sweep_folder as folder_module
from treespec.experiments.sweep.attempts import Attempt, write_attempt
from treespec.experiments.sweep.grid import load_grid
from treespec.experiments.sweep.sweep import run_sweep
from treespec.experiments.sweep.sweep_folder import SweepFolder, read_manifest

SESSION = {"executor": "process"}


def refused(path, grid, **options):
    with pytest.raises(SweepError) as caught, SweepFolder(path) as records:
        records.start(grid, SESSION, **options)
    return str(caught.value)


def test_jobs_are_ordinary_configs(planned, grid):
    manifest = read_manifest(planned)
    assert [entry["name"] for entry in manifest["jobs"]] == [job.name for job in grid.jobs]
    for job, entry in zip(grid.jobs, manifest["jobs"], strict=True):
        config = load_config(planned / "jobs" / job.name / "config.yaml")
        assert config_hash(config) == config_hash(job.config) == entry["config_hash"]
    assert manifest["grid"] == {"seed": [0, 1], "methods.1.shape.depth": [2, 3]}
    assert manifest["finished"] is None


def test_the_same_sweep_goes_on(planned, grid):
    before = read_manifest(planned)
    with SweepFolder(planned) as records:
        after = records.start(grid, SESSION)
    assert len(after["sessions"]) == 2
    assert {k: after[k] for k in ("created", "jobs", "grid_hash")} == {
        k: before[k] for k in ("created", "jobs", "grid_hash")
    }


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["max_new_tokens=5"], ["max_new_tokens: 4 -> 5"]),
        (["sweep.seed=[0,2]"], ["sweep.seed[1]: 1 -> 2"]),
        (["sweep.warmup=[0,1]"], ["sweep.warmup: null -> [0, 1]"]),
    ],
)
def test_another_sweep_is_refused_with_what_differs(planned, grid_file, overrides, parts):
    before = (planned / "sweep.json").read_bytes()
    text = refused(planned, load_grid(grid_file(), overrides))
    for part in ["belongs to another sweep", "--out", "--fresh", *parts]:
        assert part in text
    assert (planned / "sweep.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "part"),
    [({"grid": 3}, "grid = 3"), ({"jobs": "x"}, "jobs = 'x'"), ({"versions": None}, "versions")],
)
def test_a_damaged_manifest(planned, grid, change, part):
    data = json.loads((planned / "sweep.json").read_text())
    (planned / "sweep.json").write_text(json.dumps(data | change))
    text = refused(planned, grid)
    assert "sweep.json" in text
    assert part in text
    assert "--fresh" in text


@pytest.mark.parametrize("content", [b'{"schema_version": 1, "gr', b"[]", b"\0\xff"])
def test_a_manifest_that_is_none(planned, grid, content):
    (planned / "sweep.json").write_bytes(content)
    assert "sweep.json" in refused(planned, grid)


def test_a_newer_schema(planned, grid):
    data = json.loads((planned / "sweep.json").read_text())
    (planned / "sweep.json").write_text(json.dumps(data | {"schema_version": 99}))
    assert "schema version 99" in refused(planned, grid)


def test_other_versions_are_refused_unless_told(planned, grid, monkeypatch):
    here = folder_module.versions_here()
    monkeypatch.setattr(folder_module, "versions_here", lambda: here | {"torch": "0.1"})
    with (
        pytest.raises(VersionsDiffer, match=r"torch: .* was planned, 0\.1 is here"),
        SweepFolder(planned) as records,
    ):
        records.start(grid, SESSION)
    with SweepFolder(planned) as records:
        manifest = records.start(grid, SESSION, allow_versions=True)
    assert manifest["sessions"][1]["versions"]["torch"] == "0.1"
    assert manifest["versions"] == here


def test_two_processes_on_one_folder(planned, grid):
    with FileLock(planned / ".lock"):
        assert "being written by another" in refused(planned, grid)


def test_folders_of_others(tmp_path, grid):
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(tmp_path / "file", grid)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert "thesis.tex" in refused(tmp_path / "mine", grid)


def test_clearing_deletes_what_is_ours(planned, grid, pretend):
    first, second = (job.name for job in grid.jobs[:2])
    pretend(first)
    foreign = {
        "notes.txt",
        "jobs/mine.txt",
        "logs/mine.log",
        f"jobs/{first}/run/figures/mine.png",
        f"jobs/{second}/run/mine",
    }
    ours = {f"logs/{second}.log", "logs/slurm/1_0_log.out", "logs/slurm/1_submission.sh"}
    for name in foreign | ours:
        (planned / name).parent.mkdir(parents=True, exist_ok=True)
        (planned / name).write_bytes(b"mine")
    write_attempt(planned / "jobs" / second, Attempt(1, "lost"))
    with SweepFolder(planned) as records:
        records.clear()
    left = {p.relative_to(planned).as_posix() for p in planned.rglob("*") if p.is_file()}
    assert left == foreign | {"sweep.json", ".lock"}


def test_a_job_that_is_being_written_stops_the_clearing(planned, grid, pretend):
    pretend(grid.jobs[3].name)
    before = {p for p in planned.rglob("*") if p.name != ".lock"}
    run = RunFolder(planned / "jobs" / grid.jobs[3].name / "run")
    busy = pytest.raises(SweepError, match="being written by another process")
    with run, SweepFolder(planned) as records, busy:
        records.clear()
    assert {p for p in planned.rglob("*") if p.name != ".lock"} == before


def test_an_executor_that_cannot_be_had_leaves_nothing(tmp_path, grid):
    def none(logs):
        raise SweepError("no SLURM here")

    with pytest.raises(SweepError, match="no SLURM"):
        run_sweep(grid, tmp_path / "deep" / "sweep", none)
    assert not (tmp_path / "deep").exists()


def test_configs_are_plain_yaml(planned, grid):
    text = (planned / "jobs" / grid.jobs[0].name / "config.yaml").read_text()
    assert yaml.safe_load(text)["seed"] == 0
    assert "!!" not in text


def test_a_config_that_was_changed_stays_for_the_job_to_refuse(planned, grid):
    path = planned / "jobs" / grid.jobs[0].name / "config.yaml"
    path.write_text("changed: true\n")
    with SweepFolder(planned) as records:
        records.start(grid, SESSION)
    assert path.read_text() == "changed: true\n"
