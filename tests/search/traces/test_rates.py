"""Rates from counts: shrunk, scaled to sum to one, and resampled."""

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import InvalidLimit, estimate_acceptance

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")


def test_shrinkage_is_pseudo_counts_at_the_rate_of_all_depths(make_trace):
    trace = make_trace(texts=4)
    raw = estimate_acceptance(trace, by="depth", depth=4)
    found = estimate_acceptance(trace, by="depth", depth=4, shrinkage=20)
    mass = raw.rates * raw.trials
    pooled = mass.sum(axis=0) / raw.trials.sum(axis=0)
    np.testing.assert_allclose(found.rates, (mass + 20 * pooled) / (raw.trials + 20))
    assert found.shrinkage == 20
    far = estimate_acceptance(trace, by="depth", depth=4, shrinkage=1e9)
    np.testing.assert_allclose(far.rates, np.tile(pooled, (4, 1)), atol=1e-6)


def test_shrinkage_stands_in_for_what_was_never_seen():
    tree = TreeShape.expansion([2, 1])
    steps = [[(tree, (0, 1, 3)), (tree, (0, 2))]] * 5
    found = estimate_acceptance(steps, by="depth", shrinkage=1.0)
    assert found.trials[1, 1] == 0
    assert found.rates[1, 1] == pytest.approx(0.5)
    assert any("the rate of all depths" in text for text in found.warnings)


def test_resamples_spread_as_the_bootstrap_says(make_trace):
    found = estimate_acceptance(make_trace(texts=25), interval="bootstrap", by="depth", depth=2)
    rng = np.random.default_rng(0)
    drawn = np.stack([found.resample(rng) for _ in range(600)])
    assert drawn.shape[1:] == found.rates.shape
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    np.testing.assert_allclose(drawn.mean(axis=0), found.rates, atol=0.01)
    np.testing.assert_allclose(high - low, found.high - found.low, rtol=0.25)


def test_one_text_is_resampled_as_if_positions_were_independent(make_trace):
    found = estimate_acceptance(make_trace(texts=1, positions=400))
    drawn = np.stack([found.resample(np.random.default_rng(i)) for i in range(400)])
    spread = np.sqrt(found.rates * (1 - found.rates) / found.trials)
    np.testing.assert_allclose(drawn.std(axis=0), spread, rtol=0.2)
    assert any("only one text" in text for text in found.warnings)
    with pytest.raises(InvalidLimit, match="there is only one text"):
        estimate_acceptance(make_trace(texts=1), interval="bootstrap")


def test_rates_that_sum_to_more_than_one_are_scaled_and_said_so():
    wide, narrow = TreeShape.expansion([2]), TreeShape.expansion([1])
    found = estimate_acceptance([[(narrow, (0, 1))] * 40 + [(wide, (0, 2))] * 40])
    np.testing.assert_allclose(found.rates, [0.5 / 1.5, 1 / 1.5])
    assert any("summed to 1.500" in text for text in found.warnings)


def test_children_of_one_position_are_resampled_together(pairs_of):
    """At most one of them is accepted, so a sum of rates near 1 hardly varies."""
    found = estimate_acceptance(pairs_of((0.6, 0.38), 1, 400, 0))
    drawn = np.stack([found.resample(np.random.default_rng(i)) for i in range(400)])
    assert (drawn.sum(axis=1) <= 1).all()
    share = found.rates.sum()
    expected = np.sqrt(share * (1 - share) / 400)
    assert drawn.sum(axis=1).std() == pytest.approx(expected, rel=0.2)
    np.testing.assert_allclose(drawn.mean(axis=0), found.rates, atol=0.01)
    uneven = [[(TreeShape.expansion([3]), (0, 3))] * 10 + [(TreeShape.chain(1), (0, 1))] * 30]
    mixed = estimate_acceptance(uneven)
    again = mixed.resample(np.random.default_rng(0))
    assert again.shape == mixed.rates.shape
    assert again[1] == 0


def lopsided(**settings):
    """Three texts, of which only the first reaches below the root."""
    chain = TreeShape.chain(2)
    deep = [(chain, (0, 1, 2))] * 20 + [(chain, (0, 1))] * 20
    flat = [(chain, (0,))] * 20
    return estimate_acceptance([deep, flat, flat], by="depth", **settings)


def test_what_no_drawn_text_tried_keeps_its_rate():
    """Without the first text, which 8 of 27 resamples lack, there is no trial below the root."""
    found, rng = lopsided(), np.random.default_rng(0)
    assert found.rates.tolist() == [[0.5], [0.5]]
    drawn = np.stack([found.resample(rng) for _ in range(200)])
    lacking = drawn[:, 0, 0] == 0
    assert 0.2 < lacking.mean() < 0.4
    assert (drawn[:, 1, 0] == 0.5).all()


def test_bounds_do_not_count_what_no_drawn_text_tried():
    found = lopsided(interval="bootstrap")
    assert (found.low[1, 0], found.high[1, 0]) == (0.5, 0.5)
    assert found.low[0, 0] == 0  # texts without the first accept nothing at all


def test_what_nobody_ever_tried_stays_without_a_rate():
    tree = TreeShape.expansion([2, 1])
    texts = [[(tree, (0, 1, 3)), (tree, (0, 1))] * 10, [(tree, (0,))] * 5] * 2
    found = estimate_acceptance(texts, by="depth")
    assert found.trials[1, 1] == 0
    rng = np.random.default_rng(0)
    drawn = np.stack([found.resample(rng) for _ in range(50)])
    assert (drawn[:, 1, 1] == 0).all()
