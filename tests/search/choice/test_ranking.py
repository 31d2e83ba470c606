"""Bounds of a ranking's predictions, regret, and the probability that the tree beats the chain."""

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import (
    InvalidAcceptance,
    InvalidLimit,
    LatencyModel,
    NotMeasured,
    best_tree,
    expected_tokens,
)
from treespec.search.choice.rows import bounds
from treespec.search.intervals import draws as drawn_texts
from treespec.search.intervals import expanded_tail
from treespec.search.optimum.expected import tokens_of

NOISY_TABLES = {
    "verify": {
        1: [0.0198, 0.0200, 0.0203, 0.0199, 0.0201], 64: [0.024, 0.026, 0.028, 0.025, 0.027],
    },
    "draft": [0.0005, 0.0006, 0.0004],
}  # fmt: skip
NOISY = LatencyModel.from_tables(**NOISY_TABLES)


def noisy_again(rng):
    """A repetition of these measurements: each cell's samples, drawn with replacement."""
    verify = {size: rng.choice(times, len(times)) for size, times in NOISY_TABLES["verify"].items()}
    return LatencyModel.from_tables(verify=verify, draft=rng.choice(NOISY_TABLES["draft"], 3))


def test_intervals_come_from_both_inputs(flat, measured):
    rates = measured([0.6, 0.2, 0.1])
    both = best_tree(rates, NOISY).best
    of_times = best_tree(rates.rates, NOISY, sizes=[both.size]).best
    of_rates = best_tree(rates, flat, sizes=[both.size]).best
    assert of_times.tokens_per_step.low == pytest.approx(of_times.tokens_per_step.high)
    assert of_rates.step_s.low == pytest.approx(of_rates.step_s.high)
    assert both.speedup.low < both.speedup.estimate < both.speedup.high
    widths = [row.speedup.high - row.speedup.low for row in (both, of_times, of_rates)]
    assert widths[0] > max(widths[1:]) > min(widths[1:]) > 0.01


def test_intervals_are_those_of_a_plain_loop_over_resamples(measured):
    rates, draws = measured([0.6, 0.2, 0.1], trials=100), 400
    row = best_tree(rates, NOISY, draws=draws, seed=3, level=0.9).best
    rng, speeds = np.random.default_rng(8), []
    for _ in range(draws):
        latency = noisy_again(rng)
        tokens = expected_tokens(row.shape, rates.resample(rng))
        speeds.append(tokens / latency.step_s(row.shape) * latency.plain_s())
    low, high = np.quantile(speeds, [0.05, 0.95])
    assert (row.speedup.low, row.speedup.high) == pytest.approx((low, high), rel=0.03)


def test_the_probability_that_the_tree_beats_the_chain(flat, measured):
    near = LatencyModel.from_tables(verify={1: 0.020, 4: 0.0226, 8: 0.04}, draft=0.001)
    unsure = best_tree(measured([0.55, 0.22], trials=60), near, draws=400)
    assert 0.05 < unsure.tree_beats_chain < 0.95
    sure = best_tree(measured([0.55, 0.22], trials=60), flat)
    assert sure.tree_beats_chain > 0.99


def test_regret(measured):
    ranking = best_tree(measured([0.6, 0.2, 0.1]), NOISY)
    assert ranking.regret(ranking.best.shape) == (0.0, 0.0, 0.0)
    chain = ranking.regret(TreeShape.chain(3))
    expected = 1 - ranking.rows[0].tokens_per_s.estimate ** -1 * next(
        row.tokens_per_s.estimate for row in ranking.rows if row.shape == TreeShape.chain(3)
    )
    assert chain.estimate == pytest.approx(expected)
    assert 0 < chain.low < chain.estimate < chain.high
    plain = ranking.regret(TreeShape.chain(0))
    assert plain.estimate == pytest.approx(1 - 1 / ranking.best.speedup.estimate)
    with pytest.raises(InvalidLimit, match="'hub'"):
        ranking.regret(TreeShape.chain(3), "hub")
    with pytest.raises(NotMeasured):
        ranking.regret(TreeShape.chain(80))


def test_regret_of_a_tree_that_the_rates_do_not_cover_is_refused(flat):
    ranking = best_tree([0.6, 0.2, 0.1], flat, max_size=8)
    with pytest.raises(InvalidAcceptance, match="rates for 3 child ranks"):
        ranking.regret(TreeShape.expansion([4]))
    by_depth = best_tree([[0.6, 0.2], [0.5, 0.2]], flat, max_size=8)
    with pytest.raises(InvalidAcceptance, match="rates for 2 depths"):
        by_depth.regret(TreeShape.chain(3))
    with pytest.raises(InvalidAcceptance, match="rates for 2 child ranks"):
        tokens_of(TreeShape.expansion([3]), np.full((5, 1, 2), 0.1), by_depth=False)


def test_few_texts_widen_the_bounds_and_say_when_resamples_do_not_reach_them(flat, two_rows):
    rng = np.random.default_rng(0)
    counts = [
        (int(a), int(b))
        for a, b in zip(rng.integers(20, 70, 8), rng.integers(5, 30, 8), strict=True)
    ]
    found, own = two_rows(counts), np.random.default_rng([0, 8, 0])
    ranking = best_tree(found, flat, max_size=8, level=0.9)
    row = ranking.best
    drawn = [expected_tokens(row.shape, found.resample(own)) for _ in range(ranking.draws)]
    tail = expanded_tail(8, 0.9)
    assert tail < 0.04
    assert row.tokens_per_step[1:] == pytest.approx(tuple(np.quantile(drawn, [tail, 1 - tail])))
    assert not any("resamples" in note for note in ranking.notes)
    assert ranking.regret(TreeShape.chain(1)).low < ranking.regret(TreeShape.chain(1)).high
    few = best_tree(two_rows(), flat, max_size=4)
    assert any("intervals of 2 texts reach beyond all 1000" in note for note in few.notes)
    assert not any("give draws" in note for note in few.notes)  # no number would do
    assert few.advice.use is None
    assert any("97.5 % intervals" in note for note in few.notes)  # of each of two comparisons
    five = best_tree(two_rows(counts[:5]), flat, max_size=4)
    assert any("or give draws = 21490" in note for note in five.notes)
    assert five.advice.use is None
    more = best_tree(two_rows(counts[:5]), flat, max_size=4, draws=21490)
    assert not any("reach beyond" in note for note in more.notes)
    assert not any("reach beyond" in n for n in best_tree([0.6], flat, max_size=4).notes)


def test_expanded_bounds_cover_where_plain_percentiles_do_not():
    rng, texts, rounds = np.random.default_rng(5), 6, 1500
    covered = np.zeros(2)
    weights = drawn_texts(texts, 1000) / texts
    for values in rng.normal(size=(rounds, texts)):
        drawn = weights @ values
        for i, known in enumerate((None, texts)):
            low, high = bounds(values.mean(), drawn, 0.95, known)[1:]
            covered[i] += low <= 0 <= high
    assert covered[0] / rounds < 0.90
    assert covered[1] / rounds > 0.93
