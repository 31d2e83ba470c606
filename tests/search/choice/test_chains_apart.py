"""Chains ranked by their own rates."""

import pytest

from treespec.search import (
    InvalidLimit,
    LatencyModel,
    NotMeasured,
    best_tree,
    expected_tokens,
    optimal_frontier,
)
from treespec.search.choice.candidates import fastest_of_frontier

TREES = [[0.5, 0.3], [0.8, 0.1], [0.8, 0.1]]
CHAINS = [[0.5], [0.05], [0.05]]


def test_chains_are_ranked_by_their_own_rates(flat):
    mixed = best_tree(TREES, flat, max_size=8)
    apart = best_tree(TREES, flat, max_size=8, chains=CHAINS)
    assert [row.shape for row in apart.rows if row.kind == "tree"] == [
        row.shape for row in mixed.rows if row.kind == "tree"
    ]
    chains = [row for row in apart.rows if row.kind == "chain"]
    assert sorted(row.depth for row in chains) == [1, 2, 3]
    for row in chains:
        assert row.tokens_per_step.estimate == expected_tokens(row.shape, CHAINS)
    assert mixed.chain.depth > 1 == apart.chain.depth


def test_no_chain_takes_the_place_of_a_tree():
    """By the rates of trees, chains may look faster than all trees; they must not displace any."""
    frontier = optimal_frontier([0.9, 0.05], 6)
    cost = lambda sizes, depth: 1.0 + 0.1 * sizes  # noqa: E731
    kept = {
        chains: fastest_of_frontier(
            frontier, range(2, 7), cost, lambda shape: cost(shape.size, 0), chains=chains
        )[0]
        for chains in (True, False)
    }
    assert kept[True][0].is_chain
    assert len(kept[False]) > 1
    assert not any(shape.is_chain for shape in kept[False])


def test_chains_of_a_law_of_their_own(two_laws):
    trees = {"without_replacement": [0.5, 0.3]}
    ranking = best_tree(trees, two_laws(), max_size=8, chains={"iid": [0.6]})
    assert {(row.kind, row.law) for row in ranking.rows} == {
        ("tree", "without_replacement"), ("chain", "iid"), ("plain", "without_replacement"),
    }  # fmt: skip
    with pytest.raises(InvalidLimit, match="different sampling settings"):
        best_tree(
            trees | {"iid": [0.5]}, two_laws(sampling="T=0.5"), max_size=8, chains={"iid": [0.6]}
        )
    named = best_tree(
        trees, two_laws(sampling="T=0.5"), max_size=8, laws=list(trees), chains={"iid": [0.6]}
    )
    assert named.chain.law == "iid"


def test_times_end_chains_where_trees_may_be_larger():
    laws = [
        LatencyModel.from_tables(verify={1: 0.02, 32: 0.021}, draft=0.0001, law=law, accept=accept)
        for law, accept in (("without_replacement", 0.0), ("iid", {1: 0.0, 4: 0.0}))
    ]
    both = LatencyModel({1: {**laws[0].times(), **laws[1].times()}})
    trees, chains = {"without_replacement": [0.5, 0.2]}, {"iid": [0.9]}
    ranking = best_tree(trees, both, max_size=16, chains=chains)
    assert max(row.depth for row in ranking.rows if row.kind == "chain") == 3
    assert max(row.size for row in ranking.rows) == 16
    with pytest.raises(NotMeasured, match="up to 4 nodes"):
        best_tree(chains, both, max_size=16)


def test_rates_end_chains_where_trees_may_be_deeper(flat):
    ranking = best_tree(TREES, flat, max_size=8, depth=3, chains=[[0.9]])
    assert any("no chain is longer than 1" in note for note in ranking.notes)
    assert {row.depth for row in ranking.rows if row.kind == "chain"} == {1}
    assert max(row.depth for row in ranking.rows if row.kind == "tree") == 3
    with pytest.raises(InvalidLimit, match="depth = 4"):
        best_tree(TREES, flat, max_size=8, depth=4, chains=[[0.9]])
