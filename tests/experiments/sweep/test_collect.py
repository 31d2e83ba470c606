import json

import polars as pl
import pytest
from sweep_tables import without_times

from treespec.experiments.errors import SweepError
from treespec.experiments.records.schema_version import SCHEMA_VERSION
from treespec.experiments.report.run import load_run
from treespec.experiments.sweep.attempts import Attempt, write_attempt
from treespec.experiments.sweep.collect import _columns, collect
from treespec.experiments.sweep.sweep_folder import read_manifest


@pytest.fixture
def collected(planned, grid, pretend):
    """Three jobs have run, one of them with an error on a prompt; the fourth failed."""
    for i, job in enumerate(grid.jobs[:3]):
        pretend(job.name, seed=i, errors=frozenset({1}) if i == 2 else frozenset())
        write_attempt(planned / "jobs" / job.name, Attempt(1, None, {"workers": 2, "threads": 1}))
    manifest = json.loads(
        (planned / "jobs" / grid.jobs[2].name / "run" / "manifest.json").read_text()
    )
    (planned / "jobs" / grid.jobs[2].name / "run" / "manifest.json").write_text(
        json.dumps(manifest | {"errors": 2})
    )
    write_attempt(planned / "jobs" / grid.jobs[3].name, Attempt(1, "out of memory", {}))
    return collect(planned, read_manifest(planned))


def test_the_summary_is_that_of_each_run(collected, planned, grid):
    for job in grid.jobs[:3]:
        rows = collected.summary.filter(pl.col("job") == job.name)
        assert rows["sweep.seed"].unique().to_list() == [job.values["seed"]]
        expected = load_run(planned / "jobs" / job.name / "run").summaries
        for summary in expected:
            for method in summary.rows:
                (row,) = rows.filter(
                    (pl.col("sampling") == summary.sampling)
                    & (pl.col("method") == method.method.name)
                ).to_dicts()
                assert row["tokens_per_step"] == method.tokens_per_step.estimate
                speed = method.tokens_per_second
                assert row["tokens_per_second_low"] == (speed.low if speed.bounded else None)
                high = method.speedup.high if method.speedup.bounded else None
                assert row["speedup_high"] == high
                assert row["baseline"] == summary.baseline
                assert row["prompts"] == summary.prompts


def test_failed_jobs_are_named_and_are_no_rows(collected, grid):
    assert [(o.name, o.state) for o in collected.outcomes] == [
        (grid.jobs[0].name, "finished"),
        (grid.jobs[1].name, "finished"),
        (grid.jobs[2].name, "failed"),
        (grid.jobs[3].name, "failed"),
    ]
    assert {o.error for o in collected.failed} == {"2 of its rows hold an error", "out of memory"}
    assert set(collected.summary["job"]) == {job.name for job in grid.jobs[:3]}
    assert collected.summary.filter(pl.col("errors") > 0)["job"].unique().to_list() == [
        grid.jobs[2].name
    ]


def test_the_files_hold_the_same(collected, planned):
    assert pl.read_parquet(planned / "summary.parquet").equals(collected.summary)
    assert pl.read_parquet(planned / "prompts.parquet").equals(collected.prompts)
    for name in ("summary", "prompts"):
        about = pl.read_parquet_metadata(planned / f"{name}.parquet")
        assert about["treespec_sweep_schema_version"] == "1"
        assert about["treespec_schema_version"] == str(SCHEMA_VERSION)
    data = json.loads((planned / "summary.json").read_text())
    assert len(data["rows"]) == len(collected.summary)
    assert [job["state"] for job in data["jobs"]] == ["finished", "finished", "failed", "failed"]
    names = collected.prompts.columns
    assert names[:3] == ["job", "sweep.seed", "sweep.methods.1.shape.depth"]
    assert collected.prompts["sweep.methods.1.shape.depth"].dtype == pl.Int64


def test_columns_without_times(collected):
    for frame in (collected.prompts, collected.summary):
        kept = without_times(frame).columns
        for part in ("speedup", "second", "fastest", "baseline", "step_ms", "_bytes", "energy"):
            assert not [name for name in kept if part in name]
        assert not [name for name in kept if name.endswith("_s")]
    assert {"tokens", "steps", "seed"} <= set(without_times(collected.prompts).columns)
    assert {"tokens_per_step_low", "equal"} <= set(without_times(collected.summary).columns)


def test_jobs_side_by_side_are_said_to_be(collected):
    assert any("up to 2 jobs ran in parallel" in note for note in collected.notes)


def test_nothing_finished(planned):
    collected = collect(planned, read_manifest(planned))
    assert len(collected.summary) == 0
    assert {o.state for o in collected.outcomes} == {"not finished"}
    assert (planned / "summary.json").exists()


def test_a_damaged_run_is_an_error_not_a_gap(collected, planned, grid):
    (planned / "jobs" / grid.jobs[0].name / "run" / "prompts.parquet").write_bytes(b"PAR1")
    with pytest.raises(SweepError, match="cannot be read"):
        collect(planned, read_manifest(planned))


def test_values_of_several_kinds_become_text(planned, pretend):
    manifest = read_manifest(planned)
    manifest["grid"] = {"enlarge": [None, "1M", [1, 2]]}
    manifest["jobs"] = manifest["jobs"][:3]
    for entry, value in zip(manifest["jobs"], manifest["grid"]["enlarge"], strict=True):
        entry["values"] = {"enlarge": value}
        pretend(entry["name"])
    frame = collect(planned, manifest).summary
    assert frame["sweep.enlarge"].unique(maintain_order=True).to_list() == ["null", "1M", "[1, 2]"]


def test_booleans_stay_booleans():
    entry = {"name": "job", "values": {"flag": True, "mixed": True}}
    grid = {"flag": [True, False], "mixed": [True, 1]}
    found = _columns(entry, grid)
    assert found == {"job": "job", "sweep.flag": True, "sweep.mixed": "true"}
