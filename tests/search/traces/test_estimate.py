"""The estimate of acceptance as an object: its rates, source and settings."""

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import (
    AcceptanceEstimate,
    InvalidTrace,
    estimate_acceptance,
    expected_tokens,
    optimal_tree,
)

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")


def test_an_estimate_is_taken_for_its_rates(make_trace):
    found = estimate_acceptance(make_trace(texts=30))
    assert expected_tokens(TreeShape.chain(1), found) == 1 + found.rates[0]
    assert optimal_tree(found, 9).size == 9
    levels = estimate_acceptance(make_trace(texts=30), by="depth", depth=3)
    assert np.asarray(levels).shape == (3, 3)
    assert optimal_tree(levels, 9).depth <= 3


def test_sources_are_told_apart(make_trace):
    assert estimate_acceptance(make_trace()).source == "on-policy"
    assert estimate_acceptance(make_trace(forced=True)).source == "teacher-forced"


def test_numbers_of_numpy_are_numbers(make_trace):
    found = estimate_acceptance(
        make_trace(), by="depth", depth=np.int64(2), ranks=np.int64(3), seed=np.int64(1)
    )
    assert found.rates.shape == (2, 3)
    assert AcceptanceEstimate.from_json(found.to_json()).seed == 1


def test_one_rank_more_than_was_recorded_is_refused(make_trace):
    trace = make_trace()
    assert estimate_acceptance(trace, ranks=trace.width).rates.shape == (trace.width,)
    with pytest.raises(InvalidTrace, match=f"ranks = {trace.width + 1}, but the trace holds"):
        estimate_acceptance(trace, ranks=trace.width + 1)


def test_two_texts_are_drawn_as_texts(counted):
    """One text of hits and one of misses: resamples with replacement give 0, a half or 1."""
    found = counted([[[40]], [[0]]], [[[40]], [[40]]])
    rng = np.random.default_rng(0)
    drawn = {float(found.resample(rng)[0]) for _ in range(40)}
    assert drawn == {0.0, 0.5, 1.0}


@pytest.mark.parametrize("interval", ["wilson", "bootstrap"])
@pytest.mark.parametrize("hits", [0, 1, 39, 40])
def test_bounds_hold_their_rate(counted, interval, hits):
    halves = [[[hits // 2]], [[hits - hits // 2]]]
    found = counted(halves, [[[20]], [[20]]], interval=interval)
    assert 0 <= found.low[0] <= found.rates[0] <= found.high[0] <= 1
