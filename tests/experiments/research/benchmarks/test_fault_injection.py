"""Runs that are killed and interrupted at random moments; and what is noticed when they are compared."""

import json

import polars as pl
import pytest
from fault_injection.rows import differences, rows_without_times
from fault_injection.setting import prepare
from fault_injection.signals import in_series
from run_folders.folders import write_run


@pytest.fixture
def reference(tmp_path):
    return write_run(tmp_path / "reference", prompts=3, new_tokens=8)


def changed(folder, table, **columns):
    """Change columns of the first row of a table."""
    path = folder / f"{table}.parquet"
    frame = pl.read_parquet(path)
    rows = frame.to_dicts()
    rows[0] |= columns
    pl.DataFrame(rows, schema=frame.schema).write_parquet(path)


def test_times_do_not_count_and_all_else_does(tmp_path, reference):
    other = write_run(tmp_path / "other", prompts=3, new_tokens=8, jitter=0.3)
    assert not differences(other, reference)
    assert rows_without_times(other) == rows_without_times(reference)
    assert not any(name.endswith("_s") for name in rows_without_times(other)["steps"][0])
    changed(other, "prompts", decode_s=9.0)
    assert not differences(other, reference)
    changed(other, "prompts", tokens=[1, 2])
    assert differences(other, reference) == ["prompts, row 0: other tokens"]
    changed(other, "steps", accepted=77)
    assert differences(other, reference)[-1] == "steps, row 0: other accepted"


def test_lost_and_doubled_rows_are_noticed(tmp_path, reference):
    other = write_run(tmp_path / "other", prompts=3, new_tokens=8)
    log = other / "prompts.jsonl"
    log.write_bytes(log.read_bytes() + log.read_bytes().splitlines(keepends=True)[0])
    assert "lines in the log" in differences(other, reference)[0]
    fewer = write_run(tmp_path / "fewer", prompts=2, new_tokens=8)
    assert any("rows instead of" in wrong for wrong in differences(fewer, reference))
    path = other / "prompts.parquet"
    frame = pl.read_parquet(path)
    pl.concat([frame, frame[:1]]).write_parquet(path)
    assert any("appears twice" in wrong for wrong in differences(other, reference))


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a machine under load is slow, and not wrong
def test_runs_survive_kills_and_interrupts(tmp_path):
    setting = prepare(tmp_path, prompts=3)
    manifest = json.loads((setting.reference / "manifest.json").read_text())
    assert [entry["file"] for entry in manifest["plugins"]] == ["four_parts.py"]
    assert setting.rows == 7  # six methods, and the twin of one
    cases = in_series(setting, "SIGKILL", 8, 0) + in_series(setting, "SIGINT", 3, 0)
    assert len(cases) == 11
    assert [case for case in cases if case.wrong] == []
    assert any(case.what.startswith("while decoding") for case in cases)
