import json

import polars as pl
import pytest
from rendered import section_html
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.meters import (
    HEADS,
    LABELS,
    meter_finding,
    metered,
    unavailable,
)
from treespec.experiments.report.run import load_run
from treespec.experiments.run.meters.meter import COLUMNS

PLAIN, OTHER = SyntheticMethod("plain", "plain"), SyntheticMethod("other", "plain")


def with_meters(folder, about, **columns):
    """A run of two methods and four prompts with these meter readings."""
    write_run(folder, [PLAIN, OTHER], prompts=4, temperatures=[0.0])
    frame = pl.read_parquet(folder / "prompts.parquet")
    frame = frame.with_columns(
        pl.Series(name, values, dtype=frame.schema[name]) for name, values in columns.items()
    )
    frame.write_parquet(folder / "prompts.parquet")
    manifest = json.loads((folder / "manifest.json").read_text()) | {"meters": about}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return load_run(folder)


def test_every_column_has_its_words():
    assert set(LABELS) == set(HEADS) == set(COLUMNS)


def test_memory_is_the_largest_and_energy_is_per_kept_token(tmp_path):
    mib = 2**20
    run = with_meters(
        tmp_path / "run",
        {"sources": {}, "unavailable": {"gpu_energy_j": "no <GPU>"}},
        peak_rss_bytes=[
            100 * mib,
            90 * mib,
            120 * mib,
            95 * mib,
            110 * mib,
            80 * mib,
            9 * mib,
            9 * mib,
        ],
        cpu_energy_j=[64.0, 32.0, 128.0, 32.0, 96.0, 32.0, 96.0, 32.0],
    )
    plain, other = metered(run, run.measurements["T=0"])
    assert plain.bytes == {"peak_rss_bytes": 120 * mib}
    assert plain.joules_per_token["cpu_energy_j"].estimate == pytest.approx(
        1.5
    )  # 384 J, 256 tokens
    assert plain.joules_per_token["cpu_energy_j"].bounded
    assert other.joules_per_token["cpu_energy_j"].estimate == pytest.approx(0.5)
    page = section_html(meter_finding(run, run.measurements))
    assert "Not available (energy of GPUs): no &lt;GPU&gt;" in page
    assert "120.0" in page
    assert "CPU above idle" not in page  # nobody read it


def test_energy_that_is_missing_on_one_prompt_is_not_summed(tmp_path):
    run = with_meters(tmp_path / "run", {}, cpu_energy_j=[1.0, 1.0, None, 1.0, 1.0, 1.0, 1.0, 1.0])
    plain, other = metered(run, run.measurements["T=0"])
    assert "cpu_energy_j" not in plain.joules_per_token
    assert "cpu_energy_j" in other.joules_per_token


def test_runs_without_meters_say_nothing(tmp_path):
    run = load_run(write_run(tmp_path / "run", [PLAIN, OTHER], prompts=3))
    assert (unavailable(run), meter_finding(run, run.measurements)) == ({}, None)
