"""Intervals of ratios of totals: how often they hold the truth, and that no order counts."""

import math

import numpy as np
import pytest

from treespec.experiments.report.statistics import Totals, paired_ratio


def test_the_ratio_is_of_totals_not_a_mean_of_ratios():
    ratio = paired_ratio([10, 90] * 2, [1, 1] * 2, [10, 90] * 2, [2, 4] * 2)
    assert ratio.estimate == pytest.approx((100 / 2) / (100 / 6))
    assert ratio.low <= ratio.estimate <= ratio.high


def test_pairing_takes_out_what_prompts_share():
    rng = np.random.default_rng(0)
    hard = np.exp(rng.normal(0, 0.5, 12))
    mine, theirs = hard * np.exp(rng.normal(0, 0.02, 12)), 2 * hard
    paired = paired_ratio([64] * 12, mine, [64] * 12, theirs)
    unpaired = paired_ratio([64] * 12, mine, [64] * 12, rng.permutation(theirs))
    assert paired.half_width < unpaired.half_width / 5


def test_three_prompts_have_no_interval_and_exclude_nothing():
    ratio = paired_ratio([64] * 3, [1.0, 1.0, 1.1], [64] * 3, [2.0] * 3)
    assert ratio.estimate == pytest.approx(6 / 3.1)
    assert not ratio.bounded
    assert ratio.contains(1.0)


def test_a_ratio_over_zero_is_no_number():
    totals = Totals.of({"wasted": [1, 2], "drafted": [0, 0]})
    assert math.isnan(totals.ratio(["wasted"], ["drafted"]).estimate)


def test_a_total_of_zero_or_below_has_the_interval_of_the_ratio_itself():
    rng = np.random.default_rng(0)
    metric = rng.normal(-2, 0.5, 16)
    found = Totals.of({"m": metric, "n": np.ones(16), "none": np.zeros(16)})
    ratio = found.ratio(["m"], ["n"])
    error = metric.std(ddof=1) / 4
    assert (ratio.estimate, ratio.half_width) == pytest.approx(
        (metric.mean(), 2.1314 * error), rel=1e-4
    )
    assert found.ratio(["none"], ["n"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("files", [False, True])
def test_no_order_of_prompts_changes_a_bit(files):
    rng = np.random.default_rng(0)
    columns = {name: np.exp(rng.normal(0, 0.3, 24)) for name in "abcd"}
    of = np.repeat(np.arange(8), 3) if files else None
    found = Totals.of(columns, of).ratio(["a", "b"], ["c", "d"])
    for _ in range(50):
        order, renumbered = rng.permutation(24), rng.permutation(8)
        moved = {name: column[order] for name, column in columns.items()}
        again = Totals.of(moved, None if of is None else renumbered[of[order]])
        assert again.ratio(["a", "b"], ["c", "d"]) == found


@pytest.mark.parametrize(("early_stops", "skewed"), [(False, False), (True, False), (True, True)])
def test_coverage_at_twelve_prompts(early_stops, skewed):
    """With 2,000 experiments the standard error of a coverage of 94 % is 0.5 %."""
    rng = np.random.default_rng(0)

    def experiment(shape):
        tokens = np.where(rng.random(shape) < 0.4 * early_stops, rng.integers(8, 64, shape), 64)
        hard = np.exp(rng.normal(0, 0.08, shape))
        base = tokens * hard * np.exp(rng.normal(0, 0.03, shape))
        cost = 0.3 + rng.gamma(2.0, 0.1, shape) if skewed else np.exp(rng.normal(0, 0.2, shape)) / 2
        return tokens, tokens * hard * cost * np.exp(rng.normal(0, 0.03, shape)), tokens, base

    _, mine, _, base = (column.sum() for column in experiment(500_000))
    found = [paired_ratio(*columns) for columns in zip(*experiment((2000, 12)), strict=True)]
    assert 0.925 <= np.mean([interval.contains(base / mine) for interval in found]) <= 0.975


def test_excerpts_of_a_file_are_one_sample():
    """Four identical excerpts of each of eight files carry as much information as eight prompts."""
    rng = np.random.default_rng(0)
    mine, theirs = np.exp(rng.normal(0, 0.2, (2, 8)))
    ones = np.ones(8)
    once = paired_ratio(ones, mine, ones, theirs)
    files, order = np.repeat(np.arange(8), 4), rng.permutation(32)
    four = [np.repeat(column, 4)[order] for column in (ones, mine, ones, theirs)]
    together = paired_ratio(*four, files=files[order])
    assert (together.low, together.high) == pytest.approx((once.low, once.high))
    assert paired_ratio(*four).half_width < 0.6 * once.half_width
