import math

import numpy as np
import pytest

from treespec.experiments.report import statistics
from treespec.experiments.report.statistics import bootstrap, paired_bootstrap


def test_the_ratio_is_of_totals_not_a_mean_of_ratios():
    ratio = paired_bootstrap([10, 90], [1, 1], [10, 90], [2, 4])
    assert ratio.estimate == pytest.approx((100 / 2) / (100 / 6))
    assert ratio.low <= ratio.estimate <= ratio.high


def test_pairing_takes_out_what_prompts_share():
    rng = np.random.default_rng(0)
    hard = np.exp(rng.normal(0, 0.5, 12))
    mine, theirs = hard * np.exp(rng.normal(0, 0.02, 12)), 2 * hard
    paired = paired_bootstrap([64] * 12, mine, [64] * 12, theirs)
    unpaired = paired_bootstrap([64] * 12, mine, [64] * 12, rng.permutation(theirs))
    assert paired.half_width < unpaired.half_width / 5


def test_one_prompt_has_no_interval_and_excludes_nothing():
    ratio = paired_bootstrap([64], [1.0], [64], [2.0])
    assert ratio.estimate == 2
    assert not ratio.bounded
    assert ratio.contains(1.0)


def test_a_ratio_over_zero_is_no_number():
    totals = bootstrap({"wasted": [1, 2], "drafted": [0, 0]})
    assert math.isnan(totals.ratio(["wasted"], ["drafted"]).estimate)


def test_the_seed_decides_and_blocks_do_not(monkeypatch):
    columns = {"a": np.arange(1, 8), "b": np.arange(2, 9)}
    first = bootstrap(columns, seed=3).ratio(["a"], ["b"])
    assert first == bootstrap(columns, seed=3).ratio(["a"], ["b"])
    assert first != bootstrap(columns, seed=4).ratio(["a"], ["b"])
    monkeypatch.setattr(statistics, "_BLOCK", 7000)
    blocks = bootstrap(columns, seed=3)
    assert len(blocks.resampled["a"]) == statistics.RESAMPLES
    assert blocks.ratio(["a"], ["b"]).low == pytest.approx(first.low, abs=0.01)


@pytest.mark.parametrize("early_stops", [False, True])
def test_coverage_at_twelve_prompts(early_stops):
    """With 1,000 experiments the standard error of a coverage of 94 % is 0.75 %."""
    experiments, resamples, prompts = 1000, 1000, 12
    rng = np.random.default_rng(0)

    def experiment(shape):
        tokens = np.where(rng.random(shape) < 0.4 * early_stops, rng.integers(8, 64, shape), 64)
        hard = np.exp(rng.normal(0, 0.08, shape))
        base = tokens * hard * np.exp(rng.normal(0, 0.03, shape))
        mine = tokens * hard / (2 * np.exp(rng.normal(0, 0.2, shape)))
        return tokens, mine * np.exp(rng.normal(0, 0.03, shape)), tokens, base

    _, mine, _, base = (column.sum() for column in experiment(500_000))
    truth = base / mine
    # one bootstrap with a column for each experiment: they share the resamples, not the data
    data = experiment((experiments, prompts))
    columns = {(i, k): data[k][i] for i in range(experiments) for k in range(4)}
    totals = bootstrap(columns, resamples=resamples)
    found = [totals.ratio([(i, 0), (i, 3)], [(i, 1), (i, 2)]) for i in range(experiments)]
    coverage = np.mean([interval.contains(truth) for interval in found])
    plain = []
    for i in range(experiments):
        ratios = totals.resampled[i, 3] / totals.resampled[i, 1]
        low, high = np.quantile(ratios, [0.025, 0.975])
        plain.append(low <= truth <= high)
    assert 0.92 <= coverage <= 0.97
    assert coverage > np.mean(plain) + 0.01


def test_excerpts_of_a_file_are_resampled_together():
    """Four identical excerpts of each of eight files carry as much information as eight prompts."""
    rng = np.random.default_rng(0)
    mine, theirs = np.exp(rng.normal(0, 0.2, (2, 8)))
    ones = np.ones(8)
    once = paired_bootstrap(ones, mine, ones, theirs)
    files, order = np.repeat(np.arange(8), 4), rng.permutation(32)
    four = [np.repeat(column, 4)[order] for column in (ones, mine, ones, theirs)]
    together = paired_bootstrap(*four, files=files[order])
    assert (together.low, together.high) == pytest.approx((once.low, once.high))
    assert paired_bootstrap(*four).half_width < 0.6 * once.half_width
