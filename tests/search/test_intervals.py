"""Properties and text of intervals; Wilson's interval, compared with SciPy's."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec.search.intervals import Interval, wilson


@given(st.integers(0, 400), st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_is_scipys(hits, trials, level):
    from scipy.stats import binomtest

    hits = min(hits, trials)
    right = binomtest(hits, trials).proportion_ci(level, method="wilson")
    low, high = wilson(np.array([float(hits)]), np.array([float(trials)]), level)
    np.testing.assert_allclose([low[0], high[0]], [right.low, right.high], atol=1e-9)


def test_an_interval_knows_what_it_contains():
    assert Interval(1.1, 1.0, 1.2).contains(1.0)
    assert not Interval(1.1, 1.01, 1.2).contains(1.0)


@pytest.mark.parametrize(
    ("value", "text", "in_sentence", "plus_minus"),
    [
        (Interval(1.5, 1.25, 1.75), "1.50 1.25–1.75", "1.50 (1.25–1.75)", "1.50±0.25"),
        (Interval(0.1, -0.2, 0.4), "0.10 -0.20 to 0.40", "0.10 (-0.20 to 0.40)", "0.10±0.30"),
        (Interval(1.5, 1.5, 1.5), "1.50", "1.50", "1.50"),
        (Interval(1.5, nan, nan), "1.50", "1.50", "1.50"),
        (Interval(1.5, 0.0, inf), "1.50", "1.50", "1.50"),
    ],
)
def test_an_interval_is_written_where_there_is_one(value, text, in_sentence, plus_minus):
    assert value.text() == text
    assert value.text(in_sentence=True) == in_sentence
    assert value.plus_minus() == plus_minus


def test_bounds_that_are_asked_for_are_written_whatever_they_are():
    assert Interval(1.5, 1.5, 1.5).bounds(between=" to ") == "1.50 to 1.50"
    assert Interval(1.5, 1.25, 1.75).scaled(100).bounds(0, " %") == "125–175 %"


def test_a_missing_bound_is_none_and_a_bound_of_zero_is_one():
    assert not Interval.of(0.5, None, None).bounded
    assert Interval.of(0.5, 0.0, 1.0) == Interval(0.5, 0.0, 1.0)


def test_the_reciprocal_of_an_interval_turns_its_bounds():
    assert Interval(2.0, 1.0, 4.0).inverse() == Interval(0.5, 0.25, 1.0)
    assert Interval.around(2.0, 0.5) == Interval(2.0, 1.5, 2.5)
