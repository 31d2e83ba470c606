"""Bounds of a ranking's predictions."""

import numpy as np
import pytest

from treespec.search import LatencyModel, best_tree, expected_tokens
from treespec.search.choice.rows import bounds
from treespec.search.intervals import draws as drawn_texts

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


def test_two_texts_advise_nothing(flat, two_rows):
    assert best_tree(two_rows(), flat, max_size=4).advice.use is None


def test_bounds_of_few_texts_cover_where_normal_ones_do_not():
    rng, texts, rounds = np.random.default_rng(5), 6, 1500
    covered = np.zeros(2)
    weights = drawn_texts(texts, 1000) / texts
    for logs in 0.01 * rng.normal(size=(rounds, texts)):
        for i, known in enumerate((None, texts)):
            found = bounds(np.exp(logs.mean()), np.exp(weights @ logs), 0.95, known)
            covered[i] += found.contains(1.0)
    assert covered[0] / rounds < 0.91
    assert covered[1] / rounds == pytest.approx(0.95, abs=0.02)
