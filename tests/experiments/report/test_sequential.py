"""Boundaries of looks against published values, and properties of repeated intervals."""

from math import inf, isinf

import numpy as np
import pytest
from scipy.stats import norm, skew, t

from treespec.experiments.report.halvings import fit
from treespec.experiments.report.sequential import (
    boundaries,
    boundary_at,
    looks,
    spent,
)
from treespec.experiments.report.statistics import student


def one_each(tokens, seconds, b_tokens, b_seconds):
    """The comparison of two families of one method each."""
    return fit([[tokens, seconds]], [[b_tokens, b_seconds]]).ratio


def reach(fitted, boundary):
    """How far the bounds of an interval lie from its estimate, in standard errors."""
    found = fitted.interval(boundary)
    logs = np.log([found.estimate / found.low, found.high / found.estimate])
    return tuple(logs / fitted.error)


FIVE = (0.2, 0.4, 0.6, 0.8, 1.0)


def test_five_equal_looks_have_the_published_boundaries():
    """Reboussin, DeMets, Kim and Lan 2000; see the docstring of the module."""
    assert boundaries(FIVE) == pytest.approx((4.877, 3.357, 2.680, 2.290, 2.031), abs=5e-4)


def test_one_look_spends_everything():
    assert boundaries((1.0,)) == pytest.approx((norm.isf(0.025),), abs=1e-6)
    assert spent(1.0) == pytest.approx(0.05)


@pytest.mark.parametrize("most", [24, 60, 200])
def test_paths_of_a_brownian_motion_cross_as_often_as_is_spent(most):
    ends, rng = looks(most), np.random.default_rng(0)
    shares = np.array(ends) / most
    steps = rng.normal(0, np.sqrt(np.diff(shares, prepend=0)), (200_000, len(ends)))
    scores = np.abs(steps.cumsum(1)) / np.sqrt(shares)
    crossed = np.logical_or.accumulate(scores > boundaries(tuple(shares)), 1).mean(0)
    assert crossed == pytest.approx([spent(share) for share in shares], abs=2e-3)


def test_looks_are_those_of_the_plan():
    assert looks(250) == [12, 18, 27, 40, 60, 90, 135, 202, 250]
    assert looks(8) == [8]
    assert looks(1) == [1]


def test_student_has_the_tail_of_the_normal_boundary():
    assert t.sf(student(3.5, 12), 11) == pytest.approx(norm.sf(3.5))
    assert isinf(student(inf, 12))


@pytest.mark.parametrize("shares", [(), (0.0, 1.0), (0.5, 0.5), (0.6, 0.4), (0.5, 1.2)])
def test_shares_must_grow(shares):
    with pytest.raises(ValueError, match="shares of looks must increase"):
        boundaries(shares)


def test_boundary_of_a_look_spends_the_rest_at_the_end():
    """Failed prompts make looks smaller than planned, including the last one."""
    full = boundary_at(60, 60, [12, 18, 27, 40], last=True)
    assert full == pytest.approx(student(boundaries(tuple(n / 60 for n in looks(60)))[-1], 60))
    fewer = boundary_at(55, 60, [12, 18, 27, 40], last=True)
    assert fewer == pytest.approx(full, rel=0.01)
    assert boundary_at(12, 60, [8], last=False) > boundary_at(18, 60, [8, 12], last=False)
    assert isinf(boundary_at(12, 60, [8, 12], last=False))  # nothing new was seen
    assert isinf(boundary_at(1, 60, [], last=False))
    assert isinf(boundary_at(8, 100_000, [], last=False))  # a tail that is no number


def test_an_interval_without_a_boundary_excludes_nothing():
    fitted = one_each([64] * 4, [1.0, 1.1, 1.0, 1.0], [64] * 4, [2.0, 2.1, 1.9, 2.0])
    ratio = fitted.interval(inf)
    assert (ratio.low, ratio.high, ratio.contains(1.0)) == (0.0, inf, True)


def hall(statistic, skewness, n):
    """Hall 1992, equation 2.5: Student's statistic without its skew."""
    root = np.sqrt(n)
    transformed = statistic + skewness * statistic**2 / (3 * root)
    return transformed + skewness**2 * statistic**3 / (27 * n) + skewness / (6 * root)


@pytest.mark.parametrize("boundary", [2.0, 6.0])
@pytest.mark.parametrize("dear", ["tree", "chain"])
def test_bounds_are_those_of_halls_statistic_where_these_are_farther(boundary, dear):
    """If a few prompts are expensive for one side, its interval extends further toward slower speeds."""
    rng = np.random.default_rng(0)
    ones, even, skewed = np.ones(20), np.ones(20), 1 + rng.exponential(0.2, 20)
    tree, chain = (skewed, even) if dear == "tree" else (even, skewed)
    below, above = reach(one_each(ones, tree, ones, chain), boundary)
    skewness = skew(chain / chain.sum() - tree / tree.sum(), bias=False)
    farther, nearer = (below, above) if dear == "tree" else (above, below)
    assert nearer == pytest.approx(boundary)
    assert farther > boundary
    statistic = farther if dear == "tree" else -farther
    assert abs(hall(statistic, skewness, 20)) == pytest.approx(boundary)


def test_without_a_skew_bounds_are_equally_far():
    ones, seconds = np.ones(4), np.array([1.0, 1.2, 0.8, 1.0])
    assert reach(one_each(ones, seconds, ones, ones), 3.0) == pytest.approx((3, 3), rel=0.01)


@pytest.mark.parametrize("most", [60, 200])
def test_equals_are_rarely_told_apart_however_often_one_looks(most):
    """2,000 runs: the standard error of 5 % is 0.5 %. Fixed intervals name a winner far more often."""
    rng, ends, runs = np.random.default_rng(0), looks(most), 2000
    mine, theirs = (np.exp(rng.normal(0, 0.1, (runs, most))) for _ in range(2))
    out, naive = np.zeros(runs, bool), np.zeros(runs, bool)
    for place, n in enumerate(ends):
        boundary = boundary_at(n, most, ends[:place], last=n == most)
        for run in range(runs):
            fitted = one_each(np.ones(n), mine[run, :n], np.ones(n), theirs[run, :n])
            out[run] |= not fitted.interval(boundary).contains(1.0)
            naive[run] |= not fitted.interval().contains(1.0)
    assert out.mean() <= 0.06
    assert naive.mean() > 2 * out.mean()
