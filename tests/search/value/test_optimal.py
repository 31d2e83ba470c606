from fractions import Fraction

import numpy as np
import pytest
import torch

from treespec.search import (
    InfeasibleTree,
    InvalidAcceptance,
    InvalidLimit,
    expected_tokens,
    optimal_tree,
)

LARGEST = 9
SEARCHED, REFUSED = 4512, 1968


def cases(tables):
    """(acceptance, table, by_depth, depth, branching): `tables` of each kind, limits in turn."""
    rng = np.random.default_rng(0)
    return [
        (by_depth, monotone, kind, int(rng.integers(2**31)))
        for by_depth in (False, True)
        for monotone in (False, True)
        for kind in ("plain", "zeros", "ties")
        for _ in range(tables)
    ]


def table_of(oracle, by_depth, monotone, kind, seed):
    rng = np.random.default_rng(seed)
    table = oracle.random_table(
        rng, by_depth=by_depth, monotone=monotone, zeros=kind == "zeros", ties=kind == "ties"
    )
    depths = [None, 0, *rng.choice(np.arange(1, 8), 3, replace=False).tolist()]
    branchings = [None, int(rng.integers(1, table.shape[1] + 1))]
    return table, (table if by_depth else table[0]), depths, branchings


def test_equals_brute_force_over_all_trees(oracle):
    searched = refused = 0
    for by_depth, monotone, kind, seed in cases(4):
        table, acceptance, depths, branchings = table_of(oracle, by_depth, monotone, kind, seed)
        for size in range(1, LARGEST + 1):
            values, deep, wide = oracle.values_of_all(size, table, by_depth)
            for depth in depths:
                for branching in branchings:
                    allowed = ~np.isnan(values) & (deep <= (LARGEST if depth is None else depth))
                    allowed &= wide <= (LARGEST if branching is None else branching)
                    for method in ("dynamic_programme", *["best_first"] * monotone):
                        given = {"depth": depth, "branching": branching, "method": method}
                        if not allowed.any():
                            with pytest.raises(InfeasibleTree):
                                optimal_tree(acceptance, size, **given)
                            refused += 1
                            continue
                        shape = optimal_tree(acceptance, size, **given)
                        assert shape.size == size
                        assert depth is None or shape.depth <= depth
                        assert max(shape.ranks) < (branching or table.shape[1])
                        assert shape == shape.breadth_first()
                        best = values[allowed].max()
                        assert expected_tokens(shape, acceptance) == pytest.approx(best, rel=1e-12)
                        searched += 1
    assert (searched, refused) == (SEARCHED, REFUSED)


@pytest.mark.parametrize(("width", "block", "long"), [(512, 1 << 16, 1 << 16), (4, 8, 0)])
def test_the_programme_gives_the_tree_of_plain_loops(oracle, monkeypatch, width, block, long):
    monkeypatch.setattr("treespec.search.value.dynamic_programme.ENTRIES_AT_ONCE", width)
    monkeypatch.setattr("treespec.search.value.tables.SUMS_PER_BLOCK", block)
    monkeypatch.setattr("treespec.search.value.optimal.MANY_SUMS", long)
    trees = 0
    for by_depth, monotone, kind, seed in cases(2):
        table, acceptance, depths, _ = table_of(oracle, by_depth, monotone, kind, seed)
        for size, number in ((7, float), (13, float), (13, np.float32)):
            for depth in depths:
                edges = min([size - 1, *[8] * by_depth, *([] if depth is None else [depth])])
                plain = oracle.plain_loops(table, by_depth, size, edges, number)
                if plain is None:
                    continue
                dtype = np.float64 if number is float else number
                given = {"depth": depth, "method": "dynamic_programme", "dtype": dtype}
                assert optimal_tree(acceptance, size, **given).parents == plain[1]
                trees += 1
    assert trees > 200


def test_best_first_takes_the_tree_of_the_programme_in_exact_arithmetic(oracle):
    trees = several = 0
    for by_depth, monotone, kind, seed in cases(4):
        if not monotone:
            continue
        table, acceptance, depths, _ = table_of(oracle, by_depth, monotone, kind, seed)
        for size in (8, 9, 11):
            for depth in depths:
                edges = min([size - 1, *[8] * by_depth, *([] if depth is None else [depth])])
                plain = oracle.plain_loops(table, by_depth, size, edges, Fraction)
                if plain is None:
                    continue
                assert optimal_tree(acceptance, size, depth=depth).parents == plain[1]
                trees += 1
                if size <= LARGEST:
                    values, deep, _ = oracle.values_of_all(size, table, by_depth)
                    near = np.abs(values - float(plain[0])) < 1e-12
                    several += int((near & (deep <= edges)).sum() > 1)
    assert trees > 200
    assert several > 30  # the rule decided


def test_products_in_another_order_tie(oracle):
    rates = [0.3, 0.27, 0.19, 0.11]
    for size in (20, 21, 27, 29):  # comparing rounded products gives other trees for three of them
        _, parents = oracle.plain_loops(np.array([rates]), False, size, 5, Fraction)
        assert optimal_tree(rates, size, depth=5).parents == parents


@pytest.mark.parametrize("depth", [None, 3, 9])
@pytest.mark.parametrize("by_depth", [False, True])
def test_best_first_equals_the_programme_up_to_256_nodes(by_depth, depth):
    rng = np.random.default_rng(256)
    for size in (2, 17, 100, 255, 256):
        table = -np.sort(-rng.dirichlet(np.full(9, 0.6), 12 if by_depth else 1)[:, :-1], axis=1)
        acceptance = table if by_depth else table[0]
        trees = [
            optimal_tree(acceptance, size, depth=depth, method=method)
            for method in ("auto", "best_first", "dynamic_programme")
        ]
        assert trees[0] == trees[1]
        assert [tree.size for tree in trees] == [size] * 3
        values = [expected_tokens(tree, acceptance) for tree in trees]
        assert values[1] == pytest.approx(values[2], rel=1e-12)


def test_repeats_the_search_of_a_published_vector(oracle):
    published = [7.3246e-01, 8.5874e-02, 3.7976e-02, 2.1108e-02, 1.2809e-02, 1.0283e-02, 8.8400e-03,
                 6.7653e-03, 4.1494e-03, 4.8710e-03, 3.9690e-03]  # fmt: skip
    table = np.array([published])
    for number in (float, np.float32):
        _, parents = oracle.plain_loops(table, False, 32, 9, number)
        dtype = np.float64 if number is float else number
        assert optimal_tree(published, 32, depth=9, dtype=dtype).parents == parents


def test_a_tie_goes_to_fewer_children_and_then_to_the_younger_subtree():
    assert optimal_tree([0.5, 0.25], 3).parents == (-1, 0, 1)
    assert optimal_tree([0.5, 0.5], 4).parents == (-1, 0, 0, 2)
    assert optimal_tree([0.4, 0.2], 6, depth=2).parents == (-1, 0, 0, 1, 1, 2)


def test_more_nodes_than_can_be_accepted():
    assert optimal_tree([1.0, 0.0], 4).parents == (-1, 0, 1, 2)
    assert optimal_tree([0.0], 3).parents == (-1, 0, 1)
    assert optimal_tree([0.0, 0.0], 3).parents == (-1, 0, 1)
    assert optimal_tree([0.0, 1.0], 5).parents == (-1, 0, 0, 2, 2)
    assert optimal_tree([1.0, 0.0], 5, depth=2).parents == (-1, 0, 0, 1, 2)


def test_many_equal_rates():
    shape = optimal_tree([1 / 32] * 32, 500)
    assert expected_tokens(shape, [1 / 32] * 32) == pytest.approx(2 + 467 / 1024)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_vectors_of_any_kind(kind):
    assert optimal_tree(kind([0.6, 0.3]), np.int64(4)).parents == (-1, 0, 0, 1)


def test_only_used_rows_need_to_be_monotone():
    rates = [[0.6, 0.3], [0.2, 0.5]]
    assert optimal_tree(rates, 3, depth=1, method="best_first").parents == (-1, 0, 0)
    with pytest.raises(InvalidAcceptance, match="method"):
        optimal_tree(rates, 4, method="best_first")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "size = 0"),
        ({"depth": -1}, "depth = -1"),
        ({"branching": 0}, "branching = 0"),
        ({"method": "greedy"}, "method = 'greedy'.*best_first"),
        ({"dtype": np.int64}, "dtype = int64"),
        ({"branching": 3}, "branching = 3.*2 child ranks.*<= 2"),
    ],
)
def test_refuses_limits(given, message):
    with pytest.raises(InvalidLimit, match=message):
        optimal_tree([0.6, 0.3], **{"size": 4, **given})


def test_refuses_more_depth_than_rows():
    with pytest.raises(InvalidLimit, match=r"depth = 3.*2 depths"):
        optimal_tree([[0.6, 0.3], [0.5, 0.2]], 4, depth=3)


@pytest.mark.parametrize(
    ("depth", "branching", "largest"), [(0, None, 1), (1, None, 3), (2, None, 7), (5, 1, 6)]
)
def test_says_the_largest_feasible_size(depth, branching, largest):
    for rates in ([0.6, 0.3], [0.3, 0.6]):
        assert optimal_tree(rates, largest, depth=depth, branching=branching).size == largest
        with pytest.raises(InfeasibleTree, match=f"size <= {largest}"):
            optimal_tree(rates, largest + 1, depth=depth, branching=branching)


def test_rows_limit_the_depth():
    with pytest.raises(InfeasibleTree, match="depth 2"):
        optimal_tree([[0.6], [0.5]], 4)


def test_a_hundred_thousand_nodes():
    rates = 0.4 / np.arange(1, 33) ** 1.5
    shape = optimal_tree(rates, 100_000)
    assert shape.size == 100_000
    smaller = optimal_tree(rates, 99_999)
    assert expected_tokens(shape, rates) > expected_tokens(smaller, rates)
