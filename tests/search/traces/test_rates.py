"""Rates from counts: shrunk, scaled to sum to one, and resampled."""

import numpy as np
import pytest

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


def test_shrinkage_stands_in_for_what_was_never_seen(counted):
    found = counted([[[1, 1], [1, 0]]] * 5, [[[2, 2], [2, 0]]] * 5, shrinkage=1.0)
    assert found.trials[1, 1] == 0
    assert found.rates[1, 1] == pytest.approx(0.5)


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


def test_rates_that_sum_to_more_than_one_are_scaled(counted):
    found = counted([[[40, 40]]], [[[80, 40]]])
    np.testing.assert_allclose(found.rates, [0.5 / 1.5, 1 / 1.5])


def test_children_of_one_position_are_resampled_together(counted):
    """At most one of them is accepted, so a sum of rates near 1 hardly varies."""
    found = counted([[[240, 152]]], [[[400, 400]]])
    drawn = np.stack([found.resample(np.random.default_rng(i)) for i in range(400)])
    assert (drawn.sum(axis=1) <= 1).all()
    share = found.rates.sum()
    expected = np.sqrt(share * (1 - share) / 400)
    assert drawn.sum(axis=1).std() == pytest.approx(expected, rel=0.2)
    np.testing.assert_allclose(drawn.mean(axis=0), found.rates, atol=0.01)
    mixed = counted([[[30, 0, 10]]], [[[40, 10, 10]]])
    again = mixed.resample(np.random.default_rng(0))
    assert again.shape == mixed.rates.shape
    assert again[1] == 0


LOPSIDED = [[[40], [20]], [[0], [0]], [[0], [0]]], [[[40], [40]], [[20], [0]], [[20], [0]]]
"""Hits and trials of three texts, of which only the first reaches below the root."""


def test_what_no_drawn_text_tried_keeps_its_rate(counted):
    """Without the first text, which 8 of 27 resamples lack, there is no trial below the root."""
    found, rng = counted(*LOPSIDED), np.random.default_rng(0)
    assert found.rates.tolist() == [[0.5], [0.5]]
    drawn = np.stack([found.resample(rng) for _ in range(200)])
    lacking = drawn[:, 0, 0] == 0
    assert 0.2 < lacking.mean() < 0.4
    assert (drawn[:, 1, 0] == 0.5).all()


def test_bounds_do_not_count_what_no_drawn_text_tried(counted):
    found = counted(*LOPSIDED, interval="bootstrap")
    assert (found.low[1, 0], found.high[1, 0]) == (0.5, 0.5)
    assert found.low[0, 0] == 0  # texts without the first accept nothing at all


def test_what_nobody_ever_tried_stays_without_a_rate(counted):
    hits = [[[20, 0], [10, 0]], [[0, 0], [0, 0]]] * 2
    found = counted(hits, [[[20, 20], [20, 0]], [[5, 5], [0, 0]]] * 2)
    assert found.trials[1, 1] == 0
    rng = np.random.default_rng(0)
    drawn = np.stack([found.resample(rng) for _ in range(50)])
    assert (drawn[:, 1, 1] == 0).all()
