"""Families of methods are compared whatever the order of prompts and methods, and without flattery."""

import numpy as np
import pytest

from treespec.experiments.report.halvings import MOST_HALVINGS, fit, halvings


def family(rng, methods, samples, noise=0.06, faster=()):
    """Tokens and seconds: prompts differ, and methods on a prompt by noise."""
    rates = np.exp(rng.normal(0, noise, (methods, samples)))
    rates[: len(faster)] *= np.array(faster)[:, None]
    tokens = rng.integers(20, 65, samples).astype(float)
    return np.stack([np.broadcast_to(tokens, rates.shape), tokens / rates], axis=1)


@pytest.mark.parametrize(
    ("samples", "count"), [(4, 3), (5, 10), (6, 10), (10, 126), (24, MOST_HALVINGS)]
)
def test_halves_are_equal_and_listed_once(samples, count):
    halves = halvings(samples)
    assert halves.shape == (count, samples)
    assert set(halves.sum(1)) == {samples // 2}
    both = np.concatenate([halves, ~halves]) if samples % 2 == 0 else halves
    assert len(np.unique(both, axis=0)) == len(both) or samples > 10


def test_each_half_is_measured_with_the_choice_of_the_other():
    """Written out for four prompts: three halvings, of which each measures two choices."""
    tokens = np.full(4, 64.0)
    left, right = np.array([[1, 4, 1, 5], [2, 3, 2.5, 3]]), np.ones((1, 4))
    logs = []
    for half in ([0, 1], [0, 2], [0, 3]):
        rest = [i for i in range(4) if i not in half]
        spent = 0.0
        for chose, measures in ((half, rest), (rest, half)):
            spent += left[left[:, chose].sum(1).argmin(), measures].sum()
        logs.append(np.log(4 / spent))
    found = fit([[tokens, row] for row in left], [[tokens, row] for row in right])
    assert found.ratio.value == pytest.approx(np.mean(logs))
    assert found.left == (0, 1)
    assert found.right == (0,)


@pytest.mark.parametrize("samples", [4, 7, 12, 30])
def test_no_order_changes_a_bit(samples):
    rng = np.random.default_rng(samples)
    left, right = family(rng, 4, samples), family(rng, 3, samples)
    found = fit(left, right)
    for _ in range(20):
        prompts, trees, chains = (rng.permutation(n) for n in (samples, 4, 3))
        again = fit(left[trees][..., prompts], right[chains][..., prompts])
        assert again.ratio == found.ratio
        assert tuple(trees[list(again.left)]) == found.left
        assert tuple(chains[list(again.right)]) == found.right


def test_the_standard_error_is_that_of_many_experiments():
    rng = np.random.default_rng(0)
    found = [fit(family(rng, 1, 12), family(rng, 1, 12)) for _ in range(400)]
    spread = np.std([f.ratio.value for f in found])
    assert np.sqrt(np.mean([f.ratio.error**2 for f in found])) == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize(("trees", "chains"), [(4, 4), (8, 1)])
def test_choosing_does_not_flatter(trees, chains):
    """The best of eight equal trees looks faster than one chain, by 2 %, but is not."""
    rng = np.random.default_rng(1)
    found = [fit(family(rng, trees, 12), family(rng, chains, 12)) for _ in range(300)]
    assert abs(np.mean([f.ratio.value for f in found])) < 0.004
    named = np.mean([not f.ratio.interval().contains(1.0) for f in found])
    assert named < 0.06


def test_a_tree_that_is_faster_is_found():
    rng = np.random.default_rng(2)
    found = [fit(family(rng, 4, 12, faster=[1.08]), family(rng, 4, 12)) for _ in range(100)]
    assert np.mean([f.ratio.interval().low > 1 for f in found]) > 0.6
    assert np.mean([f.left[0] == 0 for f in found]) > 0.9


def test_another_draw_of_halvings_hardly_moves_the_result():
    rng = np.random.default_rng(3)
    left, right = family(rng, 4, 24), family(rng, 4, 24)
    one, other = fit(left, right), fit(left, right, seed=1)
    assert one.ratio.value == pytest.approx(other.ratio.value, abs=0.2 * one.ratio.error)
    assert one.ratio.error == pytest.approx(other.ratio.error, rel=0.05)


def test_methods_with_the_same_steps_on_other_prompts_have_one_order():
    """Two trees of 3, 4, 3 and 4, 3, 3 steps have the same values, sorted: either used to come first."""
    rng = np.random.default_rng(0)
    tokens = np.full(12, 16.0)
    left = [[tokens, rng.permutation([5.0] * 4 + [6.0] * 4 + [7.0] * 4)] for _ in range(4)]
    right = [[tokens, rng.permutation([5.0] * 4 + [6.0] * 4 + [7.0] * 4)] for _ in range(3)]
    left, right = np.array(left), np.array(right)
    found = fit(left, right)
    for _ in range(50):
        prompts, trees, chains = (rng.permutation(n) for n in (12, 4, 3))
        again = fit(left[trees][..., prompts], right[chains][..., prompts])
        assert again.ratio == found.ratio
        assert tuple(trees[list(again.left)]) == found.left
