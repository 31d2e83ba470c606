"""Small versions of the study of advice."""

import numpy as np
import pytest

from treespec.experiments.studies import search_advice as module
from treespec.search import replay


def test_halves_are_all_texts_once():
    trace = module.stretches(np.random.default_rng(0), 7, 20)
    one, other = module.halves(trace, np.random.default_rng(1))
    assert (one.texts, other.texts) == (3, 4)
    whole = sorted(map(tuple, np.split(trace.ranks, trace.offsets[1:-1])))
    both = [text for half in (one, other) for text in np.split(half.ranks, half.offsets[1:-1])]
    assert sorted(map(tuple, both)) == whole


def test_stretches_are_easy_and_hard_for_as_long_as_asked():
    trace = module.stretches(np.random.default_rng(0), 200, 200, stay=0.9)
    hard = (trace.accepted[:, 0] == module.HARD[0]).reshape(200, -1)
    assert hard.mean() == pytest.approx(0.5, abs=0.03)
    assert (hard[:, 1:] != hard[:, :-1]).mean() == pytest.approx(0.1, abs=0.01)
    first = (trace.ranks == 0).reshape(200, -1)
    assert first[hard].mean() == pytest.approx(module.HARD[0], abs=0.02)
    assert first[~hard].mean() == pytest.approx(module.EASY[0], abs=0.02)


@pytest.mark.slow
def test_predictions_hold_on_unseen_texts_and_rates_do_not():
    trace = module.stretches(np.random.default_rng(2), 60, 120)
    found = module.unseen(trace, module.UNIT, 3)
    assert found["quotients"]["advised"] == pytest.approx(1, abs=0.06)
    assert found["choice"]["of best there"] > 0.93
    assert found["agreed"] > 0.9
    old = module.by_rates(trace, module.UNIT).best
    value = replay.replay(trace, old.shape).tokens_per_step
    assert old.tokens_per_step.estimate > 1.3 * value


def test_one_of_two_equals_is_rarely_advised():
    found = module.false_advice(25)
    assert found["share"] <= 0.12
    assert found["searches"] == 25


def test_the_best_of_all_small_trees_is_found():
    found = module.exhaustive(1, 40, nodes=(16,))
    assert found["of the best"]["worst"] > 0.99
    assert found["over rates"]["16"]["worst"] > 0.99
