"""Joint intervals: their boundary, how often they err, and what they find."""

import numpy as np
import pytest
from scipy.stats import t

from treespec.experiments.report.joint import joint, over_all
from treespec.experiments.report.statistics import ONE_LOOK, student


def tables(rng, methods, samples, noise=0.06, faster=1.0):
    tokens = rng.integers(20, 65, samples).astype(float)
    rates = np.exp(rng.normal(0, noise, (methods, samples)))
    rates[0] *= faster
    return {f"m{i}": np.stack([tokens, tokens / row]) for i, row in enumerate(rates)}


def reach(found):
    return np.log(found.high / found.low) / 2


def test_one_pair_has_the_interval_of_one_comparison():
    rng = np.random.default_rng(0)
    of = tables(rng, 2, 12)
    one = joint(of, [("m0", "m1")])["m0", "m1"]
    other = joint(of, [("m0", "m1")], student(ONE_LOOK, 12))["m0", "m1"]
    assert one == other
    errors = [np.log(one.high / one.estimate), np.log(one.estimate / one.low)]
    contributions = [of[m][0] / of[m][0].sum() - of[m][1] / of[m][1].sum() for m in of]
    error = np.sqrt(12 / 11 * ((contributions[0] - contributions[1]) ** 2).sum())
    assert min(errors) / error == pytest.approx(student(ONE_LOOK, 12), rel=0.03)


def test_the_boundary_lies_between_one_pair_and_bonferroni():
    rng = np.random.default_rng(1)
    of, pairs = tables(rng, 8, 24), [(f"m{i}", f"m{j}") for i in range(4) for j in range(4, 8)]
    together = joint(of, pairs)
    apart = {pair: joint(of, [pair])[pair] for pair in pairs}
    ratio = np.median([reach(together[pair]) / reach(apart[pair]) for pair in pairs])
    assert 1.2 < ratio < t.isf(0.025 / 16, 23) / t.isf(0.025, 23)


def test_no_order_of_pairs_methods_or_samples_changes_a_bit():
    rng = np.random.default_rng(2)
    of, pairs = (
        tables(rng, 5, 12),
        [(f"m{i}", f"m{j}") for i in range(5) for j in range(5) if i != j],
    )
    found = joint(of, pairs)
    for _ in range(10):
        samples, names = rng.permutation(12), rng.permutation(5)
        renamed = {f"n{names[i]}": of[f"m{i}"][:, samples] for i in range(5)}
        new = [(f"n{names[int(a[1])]}", f"n{names[int(b[1])]}") for a, b in pairs]
        again = joint(renamed, [new[i] for i in rng.permutation(len(new))])
        assert [again[pair] for pair in new] == [found[pair] for pair in pairs]


def test_among_equals_hardly_any_is_said_to_be_faster_than_all():
    """With 600 runs the standard error of 4 % is 0.8 %."""
    rng, left, right = np.random.default_rng(3), ["m0", "m1", "m2"], ["m3"]
    said = 0
    for _ in range(600):
        of = tables(rng, 4, 12)
        said += any(over_all(of, left, right))
    assert said / 600 <= 0.06


def test_a_method_that_is_faster_than_all_is_found():
    rng = np.random.default_rng(4)
    found = [
        over_all(tables(rng, 6, 24, faster=1.15), ["m2", "m3", "m4", "m5"], ["m0", "m1"])[1]
        for _ in range(50)
    ]
    assert sum(one is not None and one.method == "m0" and one.pairs == 8 for one in found) > 40


def test_an_early_look_says_nothing_jointly():
    rng = np.random.default_rng(5)
    of = tables(rng, 3, 12, noise=0.001, faster=2.0)
    assert over_all(of, ["m0"], ["m1", "m2"])[0] is not None
    assert over_all(of, ["m0"], ["m1", "m2"], student(4.5, 12)) == (None, None)
