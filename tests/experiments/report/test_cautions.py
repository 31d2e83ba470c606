"""Cautions about intervals, drift, load, resumed runs, passes over few nodes, and turns."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.cautions import (
    LEAST_UNITS,
    drift,
    drift_caution,
    load_caution,
    machine_caution,
    prompts_to_tell,
    spread_caution,
    turns_caution,
)
from treespec.experiments.report.run import Run, load_run
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain")
CHAIN = SyntheticMethod("chain", "tree", TreeShape.chain(3), (0.7,), (4.0, 24.0, 1.0, 1.0))
TREE = SyntheticMethod("tree", "tree", TreeShape.kary(2, 3), (0.6, 0.2), (4.0, 24.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("ratio", "needed"),
    [
        (Interval(1.0, 0.95, 1.05), None),  # a clear tie
        (Interval(1.4, 1.05, 1.9), None),  # a clear gain
        (Interval(1.3, 0.95, 1.8), None),  # no great loss, at least
        (Interval(0.9, 0.7, 1.05), None),
        (Interval(1.2, float("nan"), float("nan")), None),
        (Interval(1.0, 0.8, 1.25), 53),
        (Interval(1.0, 1 / 1.1**2, 1.1**2), 39),
    ],
)
def test_wide_intervals_say_how_many_prompts_would_do(ratio, needed):
    assert prompts_to_tell(ratio, 12) == needed
    text = spread_caution(ratio, 12)
    assert (text is None) == (needed is None)
    if text:
        assert f"about {needed} prompts" in text
        assert text.startswith("Caution: the two cannot be told apart")


def drifting(tmp_path, change, prompts=12, jitter=0.02, longer=False):
    """A run on a machine that is slower by `change` at the end than at the beginning."""
    run = load_run(
        write_run(tmp_path / "run", [PLAIN, CHAIN, TREE], prompts=prompts, jitter=jitter)
    )
    position = pl.col("prompt") * 2 + (pl.col("sampling") == "T=1").cast(pl.Int64)
    slower = (position / (2 * prompts - 1) * np.log(1 + change)).exp()
    frame = run.prompts.with_columns(pl.col("decode_s") * slower)
    if longer:
        frame = frame.with_columns(prompt_tokens=64 + 10 * position)
    return Run(run.folder, run.manifest, frame, run.steps)


@pytest.mark.parametrize("change", [0.3, -0.2])
def test_a_drift_is_found_and_measured(tmp_path, change):
    run = drifting(tmp_path, change)
    found = drift(run)
    assert found.units == 24
    assert found.change == pytest.approx(change, abs=0.05)
    text = drift_caution(run)
    assert ("more time" if change > 0 else "less time") in text
    assert f"{100 * abs(found.change):.0f} %" in text
    assert sum(text in lines for lines in run.verdicts.values()) == 1


def test_no_drift_is_no_caution(tmp_path):
    for change in (0.0, 0.02):
        run = drifting(tmp_path, change)
        assert drift_caution(run) is None
        assert not any("drifted" in line for lines in run.verdicts.values() for line in lines)


def test_prompts_that_get_longer_are_no_drift(tmp_path):
    """Time and prompt length both grow over the run, so the cause cannot be identified."""
    run = drifting(tmp_path, 0.3, longer=True)
    assert drift_caution(run) is None


def test_false_alarms_are_rare(tmp_path):
    run = load_run(write_run(tmp_path / "run", [PLAIN, CHAIN], prompts=12, temperatures=[1.0]))
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(200):
        noise = pl.Series(np.exp(rng.normal(0, 0.15, len(run.prompts))))
        noisy = run.prompts.with_columns(pl.col("decode_s") * noise)
        alarms += drift_caution(Run(run.folder, run.manifest, noisy, run.steps)) is not None
    assert alarms <= 7  # nominal 1 %


def test_few_units_say_nothing(tmp_path):
    run = drifting(tmp_path, 0.5, prompts=LEAST_UNITS // 2 - 1)
    assert drift_caution(run) is None


def test_machines_without_noise(tmp_path):
    assert drift_caution(drifting(tmp_path, 0.0, jitter=0.0)) is None
    assert drift_caution(drifting(tmp_path, 0.2, jitter=0.0)) is not None


def test_a_verdict_on_noise_carries_its_caution(tmp_path):
    run = load_run(
        write_run(tmp_path / "run", [CHAIN, TREE], temperatures=[1.0], jitter=0.6, seed=3)
    )
    lines = run.verdicts["T=1"]
    assert lines[0].startswith("No winner between trees and chains")
    assert lines[1].startswith("Caution: the two cannot be told apart")


def test_a_run_that_went_on_elsewhere_says_so(tmp_path):
    run = load_run(write_run(tmp_path / "run", [PLAIN, CHAIN, TREE]))
    here = {key: run.manifest[key] for key in ("git_hash", "versions", "hardware")}

    def resumed(**changes):
        sessions = [here, here | changes]
        return Run(run.folder, run.manifest | {"sessions": sessions}, run.prompts, run.steps)

    assert machine_caution(run) is None  # a session of an older run, which kept no more
    assert machine_caution(resumed()) is None
    other = resumed(versions=here["versions"] | {"torch": "2.14.0"})
    assert 'torch: "2.13.0" -> "2.14.0"' in machine_caution(other)
    assert any("resumed under other conditions" in line for line in other.verdicts["T=0"])
    assert "git_hash: abc1234 -> def" in machine_caution(resumed(git_hash="def"))


def test_a_run_beside_other_work_says_so(tmp_path):
    run = load_run(write_run(tmp_path / "run", [PLAIN, CHAIN, TREE]))

    def beside(*loads):
        sessions = [{"started": "", "busy_percent": load} for load in loads]
        return Run(run.folder, run.manifest | {"sessions": sessions}, run.prompts, run.steps)

    assert load_caution(run) is None  # an older run, which kept no such number
    for quiet in (beside(0.0), beside(10.0), beside(None), beside(None, 3.0)):
        assert load_caution(quiet) is None
    said = "Caution: other processes used 34 % of the CPU during "
    assert load_caution(beside(34.4)).startswith(f"{said}the run: its times are not reliable")
    assert load_caution(beside(2.0, 34.4, None)).startswith(
        f"{said}one of the 3 sessions of the run:"
    )
    lines = beside(34.4).verdicts
    assert sum(line.startswith(said) for line in lines["T=0"]) == 1  # once for the whole run
    assert not any("other processes" in line for line in lines["T=1"])
    assert not any("other processes" in line for line in beside(2.0).verdicts["T=0"])


KINDS = {"plain": "plain", "chain 4": "tree", "2-ary 2": "tree"}


def in_turns(by_place, order, sampling="T=0"):
    """A run whose plain steps take `by_place[k]` if they are the k-th plain step in a row."""
    steps, in_a_row = [], 0
    random = np.random.default_rng(0)
    for i, name in enumerate(order):
        in_a_row = in_a_row + 1 if name.startswith("plain") else 0
        seconds = by_place[min(in_a_row, len(by_place)) - 1] if in_a_row else 3.4
        steps.append((name, sampling, 1 + i, float(i), seconds * random.lognormal(0, 0.03)))
    rows = pl.DataFrame(steps, ["method", "sampling", "step", "at_s", "step_s"], orient="row")
    methods = [SimpleNamespace(name=name, kind=kind) for name, kind in KINDS.items()]
    run = SimpleNamespace(
        all_rounds=rows.sample(fraction=1, shuffle=True, seed=1),
        twins={"plain (twin)": "plain"},
        manifest={"together": 4},
    )
    return run, SimpleNamespace(methods=methods, sampling="T=0", prompts=(0,))


IN_A_ROW = ["plain", "plain (twin)", "plain", "chain 4", "2-ary 2"] * 40


def test_plain_steps_that_are_quicker_behind_their_own_kind():
    caution = turns_caution(*in_turns([1.5, 1.4, 1.1], IN_A_ROW))
    assert "took 0.73 of the time" in caution or "took 0.74 of the time" in caution


@pytest.mark.parametrize(
    ("by_place", "order"),
    [
        ([1.5, 1.48, 1.45], IN_A_ROW),  # turns cost little
        ([1.5, 1.4, 1.1], IN_A_ROW[:50]),  # too few to say
        ([1.5, 1.4, 1.1], ["plain", "chain 4", "plain (twin)", "2-ary 2"] * 60),  # never in a row
        ([1.5, 1.4, 1.1], ["chain 4", "2-ary 2"] * 60),  # no plain decoding
    ],
)
def test_turns_are_mentioned_for_a_reason(by_place, order):
    assert turns_caution(*in_turns(by_place, order)) is None


def test_steps_of_another_setting_say_nothing():
    assert turns_caution(*in_turns([1.5, 1.4, 1.1], IN_A_ROW, sampling="T=1")) is None
