"""The bounds of rates: their coverage, and their centres."""

import numpy as np
import pytest

from treespec.search import estimate_acceptance
from treespec.search.intervals import wilson

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")
RATES = (0.5, 0.2, 0.1)


def test_intervals_cover_the_rates(make_trace):
    for interval, least in (("wilson", 108), ("bootstrap", 105)):
        covered = np.zeros(3)
        for seed in range(40):
            trace = make_trace(seed, texts=12, positions=50, rates=RATES)
            found = estimate_acceptance(trace, interval=interval)
            covered += (found.low <= RATES) & (found.high >= RATES)
        assert covered.sum() >= least, interval  # of 120


def test_only_the_bootstrap_sees_that_texts_differ(counted):
    """Ten easy and ten hard texts: the rate over similar texts is much less certain than within a text."""
    hits, trials = [[[45]]] * 10 + [[[5]]] * 10, [[[50]]] * 20
    widths = [
        (found := counted(hits, trials, interval=kind)).high[0] - found.low[0]
        for kind in ("wilson", "bootstrap")
    ]
    assert widths[1] > 3 * widths[0]


def test_upper_bounds_of_siblings_may_sum_to_more_than_one(counted):
    """Not all siblings are at their upper bounds at once: scaling bounds would make them too low."""
    found = counted([[[45, 5]]], [[[50, 50]]])
    np.testing.assert_allclose(found.high, [0.957, 0.214], atol=1e-3)
    np.testing.assert_allclose(found.low, [0.786, 0.043], atol=1e-3)


def test_bounds_cover_rates_that_almost_sum_to_one(counted):
    rates, rng, rounds, covered = (0.9, 0.08), np.random.default_rng(0), 1000, np.zeros(2)
    for _ in range(rounds):
        hits = rng.multinomial(60, [*rates, 0.02])[:2].tolist()
        found = counted([[hits]], [[[60, 60]]])
        covered += (found.low <= rates) & (found.high >= rates)
    assert (covered / rounds > 0.92).all()


def test_bounds_are_around_the_rate_and_not_around_the_hits(counted):
    """By chance there were 20 hits where 30 were expected."""
    found = counted([[[20]]], [[[100]]], [[[30.0]]])
    assert found.rates.tolist() == [0.3]
    low, high = wilson(np.array([30.0]), np.array([100.0]))
    assert (found.low[0], found.high[0]) == pytest.approx((low[0], high[0]))
