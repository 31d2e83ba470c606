import json

import pytest
import yaml
from filelock import FileLock

from treespec.experiments.config.file import load_config
from treespec.experiments.errors import SweepError, VersionsDiffer
from treespec.experiments.records.manifest import config_hash
from treespec.experiments.sweep import folder as folder_module
from treespec.experiments.sweep.folder import SweepFolder, read_manifest
from treespec.experiments.sweep.grid import load_grid

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
    ("content", "part"),
    [
        ('{"schema_version": 1, "gr', "is damaged"),
        ("[]", "expected a JSON object"),
        ('{"schema_version": 1, "folder_id": "ID"}', "grid is missing"),
        ("\x00\xff", "is damaged"),
    ],
)
def test_a_damaged_manifest(planned, grid, content, part):
    content = content.replace("ID", read_manifest(planned)["folder_id"])
    (planned / "sweep.json").write_text(content, encoding="latin-1")
    text = refused(planned, grid)
    assert "sweep.json" in text
    assert part in text
    assert "--fresh" in text


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


def test_clearing_leaves_what_is_not_ours(planned):
    (planned / "notes.txt").write_text("mine")
    with SweepFolder(planned) as records:
        records.clear()
    assert sorted(p.name for p in planned.iterdir() if p.name != ".lock") == [
        ".treespec",
        "notes.txt",
    ]


def test_configs_are_plain_yaml(planned, grid):
    text = (planned / "jobs" / grid.jobs[0].name / "config.yaml").read_text()
    assert yaml.safe_load(text)["seed"] == 0
    assert "!!" not in text


def test_configs_that_a_killed_start_left_are_replaced(grid_file, tmp_path, monkeypatch):
    """It was killed before sweep.json was there; then the user changed the config."""

    def killed(folder, data):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, SweepFolder(tmp_path / "sweep") as records:
        patch.setattr(SweepFolder, "_keep_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            records.start(load_grid(grid_file()), SESSION)
    changed = load_grid(grid_file(), ["max_new_tokens=5"])
    with SweepFolder(tmp_path / "sweep") as records:
        records.start(changed, SESSION)
        for job in changed.jobs:
            config = load_config(records.job(job.name) / "config.yaml")
            assert config_hash(config) == config_hash(job.config)


def test_a_config_that_was_changed_stays_for_the_job_to_refuse(planned, grid):
    path = planned / "jobs" / grid.jobs[0].name / "config.yaml"
    path.write_text("changed: true\n")
    with SweepFolder(planned) as records:
        records.start(grid, SESSION)
    assert path.read_text() == "changed: true\n"
