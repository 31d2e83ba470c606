"""Candidates of assisted generation race in turns, and bursts of other processes do not decide."""

from types import SimpleNamespace

import pytest

from treespec.experiments.config.build import build
from treespec.experiments.config.schema import Config
from treespec.experiments.records.outcome import Outcome, StepOutcome
from treespec.experiments.run import tuning
from treespec.step import Verdict
from treespec.tree import TreeShape

SHORT, LONG = (2, 0.0), (3, 0.0)


@pytest.fixture
def assisted(settings):
    """A config that tunes over two lengths on one prompt."""
    method = {"kind": "assisted", "lengths": [2, 3], "thresholds": [0.0], "tune_prompts": 1}
    return settings | {"methods": [method], "samplings": [{"temperature": 0}]}


@pytest.mark.parametrize("room", [None, 2, 1])
def test_candidates_take_turns_as_far_as_there_is_room(start, assisted, monkeypatch, room):
    real, raced = tuning.take_turns, []

    def seen(decodings, *, seed):
        outcomes = real(decodings, seed=seed)
        raced.append(outcomes)
        return outcomes

    monkeypatch.setattr(tuning, "take_turns", seen)
    start(assisted | {"max_new_tokens": 24, "together": room})
    spans = [
        (outcome.steps[0].at, outcome.steps[-1].at)
        for outcomes in raced
        for outcome in outcomes.values()
    ]
    (first, last), (begun, ended) = spans
    assert (max(first, begun) < min(last, ended)) is (room != 1)
    assert len(raced) == (2 if room == 1 else 1)


def steps(times, size):
    """Steps of one token each, at these times and with these durations."""
    verdict = Verdict((0,), 7)
    shape = TreeShape.chain(size - 1)
    return [StepOutcome(shape, (7,) * size, verdict, 1, {}, at, took) for at, took in times]


def race(turns):
    """Outcomes of two candidates that took turns like that, the first 10 % quicker where nothing disturbs.

    Args:
        turns: whose turn it was, and how slow the machine was.
    """
    times, now = {SHORT: [], LONG: []}, 0.0
    for setting, slow in turns:
        took = slow * (0.010 if setting == SHORT else 0.011)
        times[setting].append((now, took))
        now += took
    return {s: Outcome.of(steps(found, s[0] + 1)) for s, found in times.items()}


@pytest.mark.parametrize("burst", [1.0, 3.0])
def test_a_burst_that_meets_one_candidate_more_chooses_none(assisted, monkeypatch, burst):
    settings = [(SHORT, 1.0), (LONG, 1.0)]
    met = [(SHORT, burst)] * 3 + [(LONG, burst)]
    after = [(LONG, 1.0)] * 2
    turns = settings * 40 + met * 5 + after * 5 + settings * 40
    outcomes = race(turns)
    assert len(outcomes[SHORT].steps) == len(outcomes[LONG].steps)
    measured = [outcomes[s].total_s for s in (SHORT, LONG)]
    assert (measured[0] < measured[1]) is (burst == 1.0)  # by totals the burst decides
    monkeypatch.setattr(tuning, "_race", lambda *arguments: outcomes)
    experiment = build(Config.model_validate(assisted))
    prompts = [SimpleNamespace(index=0)]
    found = tuning.tune(SimpleNamespace(experiment=experiment), prompts, together=2)
    (by_sampling,) = found.values()
    (tuned,) = by_sampling.values()
    assert (tuned["chosen"]["length"], tuned["chosen"]["threshold"]) == SHORT
    rates = {(row["length"], row["threshold"]): row["tokens_per_second"] for row in tuned["table"]}
    assert rates[SHORT] / rates[LONG] == pytest.approx(1.1, rel=0.02)
    assert all(row["prompts"] == 1 for row in tuned["table"])


def test_totals_decide_where_memory_does_not_hold_all_candidates(assisted, monkeypatch):
    """The nearest neighbours of the second group's steps are the first group's last, which say nothing."""
    outcomes = race([(SHORT, 1.0)] * 56 + [(SHORT, 2.0)] * 4 + [(LONG, 1.0)] * 60)
    totals = {s: 60 / outcomes[s].total_s for s in (SHORT, LONG)}
    monkeypatch.setattr(tuning, "_race", lambda *arguments: outcomes)
    bench = SimpleNamespace(experiment=build(Config.model_validate(assisted)))
    for together in (1, 2):
        tuned = tuning.tune(bench, [SimpleNamespace(index=0)], together=together)
        (by_sampling,) = tuned.values()
        (one,) = by_sampling.values()
        rates = {
            (row["length"], row["threshold"]): row["tokens_per_second"] for row in one["table"]
        }
        assert (rates == pytest.approx(totals)) is (together == 1)
        assert one["totals_because"] == (tuning.NOT_TOGETHER if together == 1 else None)
