"""DDTree: best first over products of marginals, against a heap over all continuations."""

import heapq
from itertools import count

import pytest
import torch

from treespec import Law, TreeShape
from treespec.errors import InvalidArgument
from treespec.search.errors import InvalidLimit
from treespec.search.value.marginals import marginal_tree


def by_heap(marginals, size, branching):
    """The paper's search: the most probable continuation that is not in the tree yet, one by one."""
    order = [row.argsort(descending=True).tolist()[:branching] for row in marginals]
    ticks, found = count(), []
    waiting = []

    def look(path, value):
        if len(path) < len(order):
            for token in order[len(path)]:
                step = value * float(marginals[len(path)][token])
                heapq.heappush(waiting, (-step, next(ticks), (*path, token)))

    look((), 1.0)
    while waiting and len(found) < size - 1:
        value, _, path = heapq.heappop(waiting)
        if not value:
            break
        found.append((-value, path))
        look(path, -value)
    return found


def paths_of(tree):
    return [
        tuple(tree.token_ids[node] for node in tree.shape.path(n)[1:])
        for n in range(1, tree.shape.size)
    ]


@pytest.mark.parametrize("size", [2, 6, 16, 64, 256])
@pytest.mark.parametrize("branching", [None, 1, 3])
def test_it_is_what_the_heap_finds(size, branching):
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        marginals = (2 * torch.randn(6, 12, generator=generator)).double().softmax(-1)
        tree = marginal_tree(marginals, 3, size, branching=branching)
        wanted = {path for _, path in by_heap(marginals, size, branching)}
        assert set(paths_of(tree)) == wanted
        assert len(wanted) == tree.shape.size - 1
        assert tree.token_ids[0] == 3
        assert tree.laws == {Law.DETERMINISTIC}


def test_a_thousand_nodes_have_the_largest_sum():
    marginals = torch.randn(16, 400, generator=torch.Generator().manual_seed(1)).softmax(-1)
    tree = marginal_tree(marginals, 0, 1024)
    values = [
        float(torch.stack([marginals[i, t] for i, t in enumerate(path)]).double().prod())
        for path in paths_of(tree)
    ]
    assert len(values) == 1023
    heap = [value for value, _ in by_heap(marginals.double(), 1024, None)]
    assert sorted(values) == pytest.approx(sorted(heap), rel=1e-5)


def test_by_hand():
    """.6, .42, .3, .21, .12 of the paths a, ax, b, bx, ay; then c with .1."""
    rows = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    assert set(paths_of(marginal_tree(rows, 0, 6))) == {(0,), (0, 2), (1,), (1, 2), (0, 1)}
    assert set(paths_of(marginal_tree(rows, 0, 7))) > {(2,)}


def test_what_has_no_probability_is_not_drafted():
    rows = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    tree = marginal_tree(rows, 1, 50)
    assert set(paths_of(tree)) == {(0,), (0, 0), (0, 1)}
    assert marginal_tree(rows, 1, 1).shape.size == 1


def test_an_expansion_of_single_children_first_is_delayed_expansion():
    """A chain of two that opens into three chains (arXiv:2602.16994): no shape of its own is needed."""
    delayed = TreeShape.expansion([1, 1, 3, 1])
    assert delayed.level_sizes == (1, 1, 1, 3, 3)
    assert [len(children) for children in delayed.children] == [1, 1, 3, 1, 1, 1, 0, 0, 0]


def test_what_is_no_distribution_is_refused():
    good = torch.full((2, 4), 0.25)
    for said, wrong in {
        r"shape \[4\]": good[0], r"shape \[0, 4\]": good[:0], "must be a distribution": 2 * good,
    }.items():  # fmt: skip
        with pytest.raises(InvalidLimit, match=said):
            marginal_tree(wrong, 0, 4)
    with pytest.raises(InvalidLimit, match="each row of marginals must be a distribution"):
        marginal_tree(good * torch.nan, 0, 4)
    with pytest.raises(InvalidArgument, match="size = 0"):
        marginal_tree(good, 0, 0)
    with pytest.raises(InvalidArgument, match="branching = 0"):
        marginal_tree(good, 0, 4, branching=0)
    for root in (-1, 4):
        with pytest.raises(InvalidArgument, match=rf"root = {root}, .* 0\.\.3"):
            marginal_tree(good, root, 4)
