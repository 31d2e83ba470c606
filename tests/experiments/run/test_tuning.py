"""Candidates of assisted generation race in turns."""

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


def test_the_faster_candidate_is_chosen_by_total_times(assisted, monkeypatch):
    shape, verdict = TreeShape.chain(1), Verdict((0,), 7)

    def outcome(took):
        return Outcome.of([StepOutcome(shape, (7, 7), verdict, 1, {}, 0.0, took)] * 20)

    outcomes = {SHORT: outcome(0.010), LONG: outcome(0.011)}
    monkeypatch.setattr(tuning, "_race", lambda *arguments: outcomes)
    bench = SimpleNamespace(experiment=build(Config.model_validate(assisted)))
    (by_sampling,) = tuning.tune(bench, [SimpleNamespace(index=0)], together=2).values()
    (tuned,) = by_sampling.values()
    assert (tuned["chosen"]["length"], tuned["chosen"]["threshold"]) == SHORT
    rates = [row["tokens_per_second"] for row in tuned["table"]]
    assert rates == pytest.approx([100, 1 / 0.011])
