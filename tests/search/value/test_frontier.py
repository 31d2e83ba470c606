import numpy as np
import pytest

from treespec.search import (
    InfeasibleTree,
    InvalidLimit,
    expected_tokens,
    optimal_frontier,
    optimal_tree,
)

SIZE = 14


@pytest.mark.parametrize("limits", [{}, {"depth": 3}, {"depth": 6, "branching": 1}])
@pytest.mark.parametrize("kind", ["plain", "zeros", "ties"])
@pytest.mark.parametrize("by_depth", [False, True])
@pytest.mark.parametrize("monotone", [False, True])
def test_every_entry_is_what_the_search_for_it_gives(oracle, monotone, by_depth, kind, limits):
    rng = np.random.default_rng(3)
    table = oracle.random_table(
        rng,
        by_depth=by_depth,
        monotone=monotone,
        levels=6,
        zeros=kind == "zeros",
        ties=kind == "ties",
    )
    acceptance = table if by_depth else table[0]
    frontier = optimal_frontier(acceptance, SIZE, **limits)
    deepest = limits.get("depth", 6 if by_depth else SIZE - 1)
    assert (frontier.size, frontier.depth) == (SIZE, deepest)
    for depth in range(deepest + 1):
        for size in range(1, SIZE + 1):
            try:
                shape = optimal_tree(acceptance, size, **{**limits, "depth": depth})
            except InfeasibleTree:
                with pytest.raises(InfeasibleTree, match="give size <= "):
                    frontier.shape(size, depth)
                assert frontier.values[min(depth, len(frontier.values) - 1), size] == -np.inf
                continue
            assert frontier.shape(size, depth) == shape
            value = expected_tokens(shape, acceptance)
            assert frontier.value(size, depth) == pytest.approx(value, rel=1e-12)


def test_without_a_depth_it_is_the_tree_of_any_depth():
    for rates in ([0.6, 0.3], [0.3, 0.6]):
        frontier = optimal_frontier(rates, 20)
        assert frontier.shape(20) == optimal_tree(rates, 20)
        assert frontier.value(20) == pytest.approx(expected_tokens(frontier.shape(20), rates))


@pytest.mark.parametrize("rates", [[0.3, 0.2], [0.2, 0.3]])
def test_rows_end_where_more_depth_gains_nothing(rates):
    frontier = optimal_frontier(rates, 60)
    assert len(frontier.values) < 12
    assert frontier.value(60, 59) == pytest.approx(expected_tokens(optimal_tree(rates, 60), rates))
    assert (frontier.values[1:] >= frontier.values[:-1]).all()
    assert (frontier.values[-1] > frontier.values[-2]).any()
    assert (frontier.values[:, 0] == -np.inf).all()


@pytest.mark.parametrize("rates", [[0.6, 0.3], [0.3, 0.6]])
def test_refuses_what_is_not_on_it(rates):
    frontier = optimal_frontier(rates, 9, depth=2)
    assert frontier.values[2, 8] == -np.inf
    with pytest.raises(InfeasibleTree, match="size <= 7"):
        frontier.shape(8)
    with pytest.raises(InvalidLimit, match=r"size = 10.* ends at size 9"):
        frontier.value(10)
    with pytest.raises(InvalidLimit, match=r"depth = 3.* and depth 2"):
        frontier.value(5, 3)
    assert frontier.value(np.int64(5), np.int64(2)) == frontier.value(5, 2)


def test_a_certain_child_makes_a_chain():
    frontier = optimal_frontier([1.0, 0.0], 6)
    assert [frontier.shape(size).depth for size in range(1, 7)] == [0, 1, 2, 3, 4, 5]
    assert frontier.shape(4, 2) == optimal_tree([1.0, 0.0], 4, depth=2)
