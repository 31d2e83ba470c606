"""Trees over marginals that branch less where a position is sure."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import Law, Sampling, TreeShape, verify
from treespec.draft import ModelDrafter
from treespec.search import InvalidLimit, Top2Gap, marginal_tree
from treespec.testing import TabularModel, output_law, random_table, target_law


def marginals(seed, depth, vocab=4, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(depth, vocab, generator=generator, dtype=torch.float64)
    return logits.softmax(-1)


def nodes_of(tree):
    """The drafted continuations, as token paths."""
    shape = tree.shape
    return [tuple(tree.token_ids[n] for n in shape.path(node)[1:]) for node in range(1, shape.size)]


@settings(max_examples=40)
@given(
    st.integers(0, 999), st.integers(1, 3), st.integers(2, 9), st.integers(1, 4),
    st.sampled_from([0.0, 0.5, 1.0, 5.0]), st.sampled_from([-1.0, 0.5, 1.0, 3.0]),
)  # fmt: skip
def test_the_tree_is_the_best_within_the_limits(seed, depth, size, branching, beta, gap):
    rows = marginals(seed, depth)
    limits = []
    for row in rows:
        first, second = row.topk(2).values.log().tolist()
        share = 1 / (1 + math.exp(beta * (first - second - gap))) if beta else 0.5
        limits.append(max(1, round(branching * share)))
    allowed = [row.topk(k).indices.tolist() for row, k in zip(rows, limits, strict=True)]
    every = [
        math.prod(float(rows[d, token]) for d, token in enumerate(path))
        for length in range(1, depth + 1)
        for path in product(*allowed[:length])
    ]
    found = nodes_of(Top2Gap(size, depth, branching, beta, gap).tree_over(rows, 0))
    values = [math.prod(float(rows[d, t]) for d, t in enumerate(path)) for path in found]
    best = sorted(every, reverse=True)[: size - 1]
    assert sorted(values, reverse=True) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(4))
def test_with_a_very_large_gap_it_is_best_first(seed):
    rows = marginals(seed, 3)
    found = Top2Gap(8, 3, branching=3, gap=1e9).tree_over(rows, 0)
    wanted = marginal_tree(rows, 0, 8, branching=3)
    assert (found.shape, found.token_ids) == (wanted.shape, wanted.token_ids)


def test_where_every_position_is_sure_it_is_a_chain():
    rows = marginals(0, 4, spread=50.0)
    assert Top2Gap(9, 4, branching=3).tree_over(rows, 0).shape == TreeShape.chain(4)


def test_limits_are_one_for_each_position():
    with pytest.raises(InvalidLimit, match="2 numbers for 3 positions"):
        marginal_tree(marginals(0, 3), 0, 8, branching=[2, 1])


@pytest.mark.usefixtures("without_shape_checks")
def test_it_keeps_the_law():
    target, draft = (TabularModel(random_table(3, seed), 3) for seed in (3, 4))
    draft_with = lambda *_: ModelDrafter(  # noqa: E731
        draft, Top2Gap(5, 2, 3), Law.DETERMINISTIC, Sampling()
    )
    found = output_law(
        verify.onehot, TreeShape.chain(2), Law.DETERMINISTIC, target=target, draft=draft, tokens=3,
        prompt=(0, 1), draft_with=draft_with,
    )  # fmt: skip
    right = target_law(target, (0, 1), 3, Sampling())
    assert float((found.probs - right).abs().max()) <= 1e-12
