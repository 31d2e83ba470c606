"""OPT-Tree and SpecExec find the best of all nodes of the draft without drafting them all."""

import heapq
from itertools import combinations, count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.search.growth import OptTree, SpecExec

CALIBRATIONS = {
    "none": None,
    "root": np.sqrt,
    "half": lambda p: 0.5 * p,
    "cap": lambda p: np.minimum(p, 0.4),
}


def largest(values, n):
    return sorted(values, reverse=True)[:n]


def reference_opt_tree(draft, size, delta, depth, calibration=None):
    """The paper's algorithm over all nodes: the values of the tree, and its depth of drafting."""
    nodes = draft.all_nodes(depth, calibration=calibration)
    before, reached = 0.0, 0
    for reached in range(1, depth + 1):
        values = largest((v for p, v in nodes.items() if len(p) <= reached), size - 1)
        if sum(values) - before <= delta:
            break
        before = sum(values)
    return values, reached


def reference_spec_exec(draft, size, branching, depth):
    """Best-first search with a heap: pop the most probable candidate, push its children."""
    ticket = count()
    heap = [(-draft.value(p), next(ticket), p) for p in draft.best_children((), branching)]
    heapq.heapify(heap)
    kept = []
    while heap and len(kept) < size - 1:
        _, _, path = heapq.heappop(heap)
        kept.append(path)
        if len(path) < depth:
            for child in draft.best_children(path, branching):
                heapq.heappush(heap, (-draft.value(child), next(ticket), child))
    return set(kept)


@settings(max_examples=30)
@given(
    st.integers(0, 500), st.integers(2, 14), st.sampled_from([0.0, 0.02, 0.1, 0.4]),
    st.sampled_from(sorted(CALIBRATIONS)),
)  # fmt: skip
def test_opt_tree_is_the_papers(growing, seed, size, delta, calibration):
    draft, calibration = growing.Draft(seed, vocab=4), CALIBRATIONS[calibration]
    values, reached = reference_opt_tree(draft, size, delta, 4, calibration)
    paths = draft.paths(OptTree(size, delta, 4, branching=4, calibration=calibration))
    found = [draft.value(path, calibration) for path in paths]
    assert sorted(found, reverse=True) == pytest.approx(values)
    assert len(draft.passes) <= reached


def test_opt_tree_has_the_largest_sum_of_all_trees_of_the_explored_nodes(growing):
    for seed in range(5):
        draft = growing.Draft(seed, vocab=3)
        nodes = draft.all_nodes(2)
        trees = (
            tree
            for tree in map(set, combinations(nodes, 4))
            if all(len(path) == 1 or path[:-1] in tree for path in tree)
        )
        best = max(sum(nodes[path] for path in tree) for tree in trees)
        found = draft.paths(OptTree(5, 0.0, 2, branching=3))
        assert sum(nodes[path] for path in found) == pytest.approx(best)


def test_opt_tree_drafts_no_level_for_less_than_delta(growing):
    draft = growing.Draft(1)
    passes = []
    for delta in (0.0, 0.05, 0.3, 2.0):
        draft.paths(OptTree(10, delta, 6, branching=5))
        passes.append(len(draft.passes))
    assert passes == sorted(passes, reverse=True)
    assert passes[0] > passes[-1] == 1


def test_opt_tree_weighs_delta_against_what_the_kept_nodes_gain(growing):
    """The second level's gain to the size - 1 best nodes is slightly above and slightly below delta."""
    tried = 0
    for seed in range(20):
        draft = growing.Draft(seed, vocab=4)
        nodes = draft.all_nodes(2)
        first = largest((v for p, v in nodes.items() if len(p) == 1), 3)
        both = largest(nodes.values(), 3)
        gain = sum(both) - sum(first)
        if not any(len(p) == 2 and v > both[-1] for p, v in nodes.items()):
            continue  # a third level could not change anything
        tried += 1
        for delta, passes in ((gain + 1e-9, 2), (gain - 1e-9, 3)):
            draft.paths(OptTree(4, delta, 3, branching=4))
            assert len(draft.passes) == passes
    assert tried > 5


@settings(max_examples=40)
@given(st.integers(0, 500), st.integers(1, 16), st.integers(1, 5), st.integers(1, 4))
def test_spec_exec_is_best_first_over_the_whole_tree(growing, seed, size, branching, depth):
    draft = growing.Draft(seed)
    found = draft.paths(SpecExec(size, branching, depth))
    assert set(found) == reference_spec_exec(draft, size, branching, depth)
    assert len(draft.passes) <= depth


@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_spec_exec_is_exact_with_a_calibration(growing, calibration):
    calibrate = CALIBRATIONS[calibration]
    for seed in range(8):
        draft = growing.Draft(seed, vocab=4)
        nodes = draft.all_nodes(3, branching=3, calibration=calibrate)
        found = draft.paths(SpecExec(9, 3, 3, calibrate))
        assert largest((nodes[p] for p in found), 8) == pytest.approx(largest(nodes.values(), 8))


def test_spec_exec_is_opt_tree_without_a_threshold(growing):
    for seed in range(10):
        draft = growing.Draft(seed)
        assert draft.paths(SpecExec(9, 5, 4)) == draft.paths(OptTree(9, 0.0, 4, branching=5))


def test_nodes_that_cannot_be_kept_are_not_run(growing):
    drafted = growing.Draft(4, spread=4.0)
    drafted.paths(SpecExec(6, 5, 4))
    assert sum(drafted.passes) < 6 * 2
    for policy in (SpecExec(1, 5, 4), OptTree(1, 0.0, 4)):
        assert drafted.paths(policy) == []
        assert drafted.passes == []


def test_a_draft_without_doubt_is_a_chain(growing):
    for seed in range(10):
        draft = growing.Draft(seed, spread=300.0)
        for policy in (SpecExec(5, 3, 4), OptTree(5, 0.0, 4, branching=3)):
            paths = draft.paths(policy)
            assert [len(path) for path in paths][:1] == [1]
            assert sum(draft.value(path) for path in paths) == pytest.approx(4, abs=0.2)
