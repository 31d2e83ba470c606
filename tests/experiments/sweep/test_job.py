import json
import sys

import pytest

from treespec.experiments.sweep.attempts import outcome_of, read_attempts
from treespec.experiments.sweep.grid import load_grid
from treespec.experiments.sweep.job import JobFailed, allotted_threads, run_job
from treespec.experiments.sweep.sweep_folder import SweepFolder, different_versions, versions_here


@pytest.fixture
def job(planned, grid):
    return planned / "jobs" / grid.jobs[0].name


def fails(job, number, load, **options):
    with pytest.raises(JobFailed) as caught:
        run_job(str(job), number, load=load, **options)
    assert read_attempts(job)[-1].error == str(caught.value)
    return str(caught.value)


def test_a_job_leaves_an_ordinary_run(job, loaded_pair):
    from treespec.experiments.report.run import load_run

    run = run_job(str(job), 1, {"executor": "local"}, load=lambda models: loaded_pair)
    outcome = outcome_of(job)
    assert (outcome.state, outcome.error) == ("finished", None)
    (attempt,) = outcome.attempts
    assert attempt.about["executor"] == "local"
    assert attempt.about["threads"] >= 1
    assert len(load_run(job / "run").prompts) == 2 * 2 * 2
    assert run == str(job / "run")
    run_job(str(job), 2, load=lambda models: pytest.fail("a finished job loads nothing"))


@pytest.mark.usefixtures("clear_at_once")
def test_a_job_ends_when_it_is_clear_enough(grid_file, loaded_pair, tmp_path):
    from treespec.experiments.report.run import load_run

    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"prompt": f"def f{i}(x):"}) + "\n" for i in range(13)))
    prompts = {"kind": "jsonl", "path": str(texts)}
    grid = load_grid(grid_file({"seed": [0, 1]}, prompts=prompts, until={"half_width": 9.0}))
    with SweepFolder(tmp_path / "clear") as records:
        records.start(grid, {"executor": "process"})
    job = tmp_path / "clear" / "jobs" / grid.jobs[0].name
    run_job(str(job), 1, load=lambda models: loaded_pair)
    assert outcome_of(job).state == "finished"
    assert load_run(job / "run").manifest["looks"][-1]["prompts"] == 12
    run_job(str(job), 2, load=lambda models: pytest.fail("a finished job loads nothing"))


def test_a_failure_is_written_down_and_can_be_mended(job, loaded_pair):
    def broken(models):
        raise RuntimeError("no luck")

    assert fails(job, 1, broken) == "no luck"
    assert outcome_of(job).state == "failed"
    run_job(str(job), 2, load=lambda models: loaded_pair)
    assert outcome_of(job).state == "finished"
    assert [a.error for a in read_attempts(job)] == ["no luck", None]


def test_a_job_that_ends_the_program_has_failed(job):
    """As a plug-in may do by `sys.exit(0)`."""
    assert "ends the program" in fails(job, 1, lambda models: sys.exit(0))
    assert outcome_of(job).state == "failed"


def test_a_method_that_fails_fails_the_job(job, loaded_pair, monkeypatch):
    from treespec.experiments.run import unit

    def boom(*arguments, **options):
        raise ValueError("boom")

    real = unit.decode_ours
    monkeypatch.setattr(unit, "decode_ours", boom)
    text = fails(job, 1, lambda models: loaded_pair)
    assert "12 of its rows hold an error" in text  # the twin of plain decoding among the methods
    assert "boom" in text
    outcome = outcome_of(job)
    assert (outcome.state, outcome.ran, outcome.errors) == ("failed", True, 12)
    monkeypatch.setattr(unit, "decode_ours", real)
    run_job(str(job), 2, load=lambda models: loaded_pair)
    assert outcome_of(job).finished


def test_other_versions_are_refused_unless_told(planned, job, loaded_pair):
    data = json.loads((planned / "sweep.json").read_text())
    data["versions"]["transformers"] = "4.0"
    (planned / "sweep.json").write_text(json.dumps(data))
    text = fails(job, 1, lambda models: pytest.fail("refused before"))
    assert "transformers: 4.0 was planned" in text
    assert "--allow-versions" in text
    run_job(str(job), 2, load=lambda models: loaded_pair, allow_versions=True)


def test_a_config_that_was_changed_is_refused(job):
    path = job / "config.yaml"
    path.write_text(path.read_text().replace("max_new_tokens: 4", "max_new_tokens: 5"))
    assert "has been changed since the sweep was planned" in fails(job, 1, None)


def test_every_version_counts():
    here = versions_here()
    assert set(here) == {
        "treespec",
        "git",
        "python",
        "torch",
        "transformers",
        "tokenizers",
        "triton",
    }
    assert different_versions(here, here) == []
    for name in here:
        (line,) = different_versions(here, here | {name: "other"})
        assert line.startswith(f"{name}: ")
    older = {name: here[name] for name in ("treespec", "git", "python", "torch", "transformers")}
    assert different_versions(older, here) == []  # it did not note the others


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({}, None),
        ({"SLURM_CPUS_PER_TASK": "4"}, None),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "8"}, 4),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8", "OMP_NUM_THREADS": "2"}, 2),
        ({"SLURM_JOB_ID": "1"}, None),
    ],
)
def test_threads_that_slurm_allots(monkeypatch, environment, threads):
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert allotted_threads() == threads
