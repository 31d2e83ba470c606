import heapq
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import Law, Sampling, TorchCoins
from treespec.errors import InvalidTree
from treespec.search.growth import DySpec

WITHOUT = Law.WITHOUT_REPLACEMENT


def paper(draft, size, depth, sampling, coins):
    """The paper's heap of (residual distribution, value): parents and tokens in the order of draws."""
    ticket = count()
    parents, tokens, depths = [-1], [1], [0]

    def row(node):
        path = []
        while node:
            path.append(tokens[node])
            node = parents[node]
        return sampling(draft.row((0, 1, *reversed(path))))

    heap = [(-1.0, next(ticket), 0, None)]
    while heap and len(parents) < size:
        value, _, node, left = heapq.heappop(heap)
        if depths[node] == depth or -value <= 1e-12:
            continue
        left = row(node) if left is None else left
        token = coins.draw(left)
        child = len(parents)
        parents.append(node)
        tokens.append(token)
        depths.append(depths[node] + 1)
        rest = left.clone()
        rest[token] = 0
        share = float(left[token])
        if rest.sum() > 0:
            heapq.heappush(heap, (value * (1 - share), next(ticket), node, rest / rest.sum()))
        heapq.heappush(heap, (value * share, next(ticket), child, None))
    return tuple(parents), tuple(tokens)


@settings(max_examples=40)
@given(
    st.integers(0, 500), st.integers(1, 14), st.integers(1, 4),
    st.sampled_from([Sampling(), Sampling(temperature=0.6), Sampling(top_k=2), Sampling(top_p=0.8)]),
)  # fmt: skip
def test_is_the_papers_heap_from_the_same_coins(growing, seed, size, depth, sampling):
    draft = growing.Draft(seed)
    tree = draft.tree(DySpec(size, depth), WITHOUT, sampling, coins=seed)
    parents, tokens = paper(draft, size, depth, sampling, TorchCoins(seed))
    assert tree.shape.parents == parents
    assert tree.token_ids == tokens
    assert tree.shape.size <= size
    assert tree.shape.depth <= depth


def test_one_pass_for_each_node_that_gets_children_and_no_more(growing):
    for seed in range(10):
        draft = growing.Draft(seed)
        tree = draft.tree(DySpec(10, 4), WITHOUT, coins=seed)
        assert draft.passes == [1] * len(tree.shape.internal)


def test_at_temperature_0_it_is_the_greedy_chain(growing):
    draft = growing.Draft(2)
    tree = draft.tree(DySpec(9, 5), WITHOUT, Sampling(temperature=0.0))
    assert tree.shape.is_chain
    assert tree.shape.depth == 5
    for node in range(1, 6):
        path = [tree.token_ids[n] for n in tree.shape.path(node - 1)[1:]]
        assert tree.token_ids[node] == int(draft.probs(path).argmax())


def test_a_node_never_gets_more_children_than_tokens(growing):
    """Three tokens, with rows in float32 that sum to 1 only up to rounding."""
    for seed in range(10):
        draft = growing.Draft(seed, vocab=3)
        single = draft.row
        draft.model.row = lambda context, single=single: single(context).float()
        tree = draft.tree(DySpec(40, 3), WITHOUT, coins=seed)
        assert tree.shape.size == 1 + 3 + 9 + 27
        assert max(map(len, tree.shape.children)) == 3


def test_a_draft_of_two_tokens_is_exhausted(growing):
    row = torch.tensor([0.3, -1e4, -1e4, 0.1, -1e4]).double()
    tree = growing.Draft(0, row=lambda context: row).tree(DySpec(30, 2), WITHOUT)
    assert tree.shape.level_sizes == (1, 2, 4)
    assert set(tree.token_ids[1:]) == {0, 3}


def test_a_calibration_moves_where_it_draws(growing):
    plain, deep = (
        sum(growing.Draft(s).tree(DySpec(8, 7, c), WITHOUT, coins=s).shape.depth for s in range(10))
        for c in (None, lambda p: 0.5 + 0.5 * p)
    )
    assert deep > plain


def test_no_depth_is_no_limit():
    assert DySpec(9).max_depth == 8
    assert DySpec(9, 3).max_depth == 3
    assert DySpec(3, 9).max_depth == 2


@pytest.mark.parametrize("law", [law for law in Law if law is not WITHOUT])
def test_other_laws_are_refused_by_name(growing, law):
    with pytest.raises(InvalidTree, match=f"'DySpec' is not made for children of law {law}"):
        growing.Draft(0).tree(DySpec(4), law)
