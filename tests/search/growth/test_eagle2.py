import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import Law, Sampling
from treespec.search.errors import InvalidGrowth
from treespec.search.growth import Eagle2


def pool_of(draft, k, depth):
    """The paper's procedure over paths: (value, depth, place) of every candidate."""
    pool = draft.best_children((), k)
    frontier = pool
    for _ in range(depth - 1):
        chosen = sorted(frontier, key=lambda p: (-draft.value(p), frontier.index(p)))[:k]
        frontier = [
            child for path in frontier if path in chosen for child in draft.best_children(path, k)
        ]
        pool = pool + frontier
    return pool


def reference(draft, k, depth, size):
    pool = pool_of(draft, k, depth)
    ranked = sorted(pool, key=lambda p: (-draft.value(p), len(p), pool.index(p)))
    return set(ranked[: size - 1])


@settings(max_examples=40)
@given(st.integers(0, 500), st.integers(1, 4), st.integers(1, 4), st.integers(1, 20))
def test_is_the_best_of_the_pool(growing, seed, k, depth, size):
    draft = growing.Draft(seed)
    paths = draft.paths(Eagle2(k, depth, size))
    assert set(paths) == reference(draft, k, depth, size)
    assert len(paths) == min(size - 1, k + (depth - 1) * k * k)
    assert max(map(len, paths), default=0) <= depth


def test_the_pool_is_that_of_the_paper(growing):
    draft = growing.Draft(0)
    assert len(pool_of(draft, 3, 4)) == 3 + 3 * 9
    assert len(draft.paths(Eagle2(3, 4, 1000))) == 3 + 3 * 9
    assert draft.passes == [1, 3, 3, 3]


def test_ties_go_to_the_shallower_then_the_first(growing):
    """A draft that is always certain: all values on its path are 1, like the root's."""
    sure = growing.Draft(0, row=lambda c: torch.tensor([0, 900.0, 0, 0, 0]).double())
    assert sure.paths(Eagle2(2, 4, 4)) == [(1,), (1, 1), (1, 1, 1)]
    flat = growing.Draft(0, row=lambda c: torch.zeros(5).double())
    first, second = flat.paths(Eagle2(2, 3, 3))
    assert len(first) == len(second) == 1
    paths = flat.paths(Eagle2(2, 3, 5))
    assert [len(p) for p in paths] == [1, 1, 2, 2]
    assert paths[2][:1] == paths[3][:1] == paths[0]


def test_no_node_is_orphaned_by_saturated_probabilities(growing):
    for seed in range(20):
        draft = growing.Draft(seed, spread=200.0)
        assert len(draft.paths(Eagle2(2, 6, 8))) == 7


@pytest.mark.parametrize("power", [0.3, 1.0, 2.5])
def test_a_calibration_that_keeps_the_order_of_paths_changes_nothing(growing, power):
    """The product of powers is the power of the product, so it is monotone in a path's value."""
    for seed in range(10):
        draft = growing.Draft(seed)
        plain = draft.paths(Eagle2(3, 3, 9))
        assert draft.paths(Eagle2(3, 3, 9, lambda p: p**power)) == plain


def test_a_calibration_that_changes_the_order_changes_the_tree(growing):
    changed = 0
    for seed in range(10):
        draft = growing.Draft(seed)
        flat = draft.paths(Eagle2(3, 3, 9, lambda p: np.clip(p, 0.3, 0.35)))
        changed += set(flat) != set(draft.paths(Eagle2(3, 3, 9)))
    assert changed


def test_at_temperature_0_ranks_by_the_plain_distribution(growing):
    draft = growing.Draft(3)
    cold = draft.paths(Eagle2(3, 3, 9), sampling=Sampling(temperature=0.0))
    assert cold == draft.paths(Eagle2(3, 3, 9))


@pytest.mark.parametrize("law", [law for law in Law if law is not Law.DETERMINISTIC])
def test_drawn_children_are_refused_by_name(growing, law):
    with pytest.raises(ValueError, match=f"'Eagle2' is not made for children of law {law}"):
        growing.Draft(0).tree(Eagle2(2, 2, 4), law)


def test_calibrations_out_of_range_are_named(growing):
    for wrong, message in [
        (lambda p: p + 1, r"gives 1\.\d+ for the probability 0\.\d+"),
        (lambda p: p * np.nan, "gives nan"),
        (lambda p: p[:1], r"gives \[1\] numbers for \[2\]"),
    ]:
        with pytest.raises(InvalidGrowth, match=message):
            growing.Draft(0).tree(Eagle2(2, 2, 4, wrong))


def test_has_no_memory(growing):
    """Two drafters share one policy, repeatedly."""
    policy = Eagle2(3, 3, 8)
    one, two = growing.Draft(1), growing.Draft(2)
    first = one.paths(policy), two.paths(policy)
    assert first == (one.paths(Eagle2(3, 3, 8)), two.paths(Eagle2(3, 3, 8)))
    assert first == (one.paths(policy), two.paths(policy))
