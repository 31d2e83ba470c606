"""The fault injection notices the faults that it looks for; slow: a small real run of it."""

import json
from random import Random
from types import SimpleNamespace

import polars as pl
import pytest
from fault_injection import __main__ as command
from fault_injection import rows_without_times, signals
from fault_injection.rows import differences, finished_lines
from fault_injection.setting import prepare
from run_folders.folders import demo_methods, write_run

METHODS = len(demo_methods())


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


def test_a_run_that_is_not_finished_is_no_result(tmp_path, reference):
    started = write_run(tmp_path / "started", prompts=3, finished=False)
    assert differences(started, reference) == ["the manifest does not say that the run is finished"]
    with pytest.raises(FileNotFoundError):
        rows_without_times(started)


def test_the_finished_prompts_of_a_killed_run(tmp_path, reference):
    log = reference / "prompts.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    assert len(finished_lines(reference, METHODS)) == len(lines) == 3 * 2 * METHODS
    log.write_bytes(b"".join(lines[: METHODS + 3]) + lines[METHODS + 3][:30])
    assert finished_lines(reference, METHODS) == {line.rstrip(b"\n") for line in lines[:METHODS]}
    assert finished_lines(tmp_path / "nothing", METHODS) == set()


def test_a_moment_is_one_of_the_command(tmp_path, monkeypatch):
    """A process that fails before it begins ends as Python does: exit code 1 and no message of ours."""
    process = SimpleNamespace(begun=False, alive=True)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        process.begun = len(slept) >= 7

    monkeypatch.setattr(signals.time, "sleep", sleep)
    signals._wait(process, tmp_path, SimpleNamespace(seconds=0.0), Random(1))
    assert process.begun
    assert len(slept) == 7


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a machine under load is slow, and not wrong
def test_a_small_part_for_real(capsys):
    few = ["--kills", "3", "--interrupts", "2", "--prompts", "3", "--no-save"]
    assert command.main(few) == 0
    assert "0 not survived" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_kills_of_a_run_with_plug_ins(tmp_path):
    setting = prepare(tmp_path, prompts=3, plugged=True)
    manifest = json.loads((setting.reference / "manifest.json").read_text())
    assert [entry["file"] for entry in manifest["plugins"]] == ["four_parts.py"]
    assert setting.rows == 6  # five methods, and the twin of one
    cases = signals.kills(setting, 10, 0, lambda text: None)
    assert len(cases) == 10
    assert [case for case in cases if case.wrong] == []
    assert any(case.what.startswith("while decoding") for case in cases)
