import numpy as np
import pytest
import torch

from treespec import TreeShape
from treespec.search import InvalidAcceptance, SearchError, expected_tokens
from treespec.search.value.expected import tokens_of


def one_by_one(shape, rates):
    """By definition: the sum over all nodes of the product of the rates on the path."""
    total = 0.0
    for node in range(shape.size):
        product = 1.0
        for i in shape.path(node)[1:]:
            product *= rates[i]
        total += product
    return total


@pytest.fixture(scope="module")
def random_shapes():
    rng = np.random.default_rng(1)
    return [
        TreeShape.from_parents([-1, *(int(rng.integers(max(0, i - 6), i)) for i in range(1, n))])
        for n in (1, 2, 3, 5, 8, 13, 40, 120)
    ]


def test_equals_the_definition(random_shapes):
    rng = np.random.default_rng(2)
    for shape in random_shapes:
        ranks = max(shape.ranks) + 1
        vector = rng.dirichlet(np.ones(ranks + 1))[:-1]
        matrix = rng.dirichlet(np.ones(ranks + 1), shape.depth + 1)[:, :-1]
        by_node = {
            "rank": (vector, vector[list(shape.ranks)]),
            "depth": (matrix, matrix[np.array(shape.depths) - 1, shape.ranks]),
        }
        for acceptance, rates in by_node.values():
            expected = one_by_one(shape, rates)
            assert expected_tokens(shape, acceptance) == pytest.approx(expected, rel=1e-13)


def test_the_value_does_not_depend_on_the_order_of_nodes(random_shapes):
    rates = [0.4, 0.3, 0.1, 0.05, 0.05, 0.02, 0.01, 0.01]
    for shape in random_shapes:
        found = expected_tokens(shape, rates)
        assert expected_tokens(shape.breadth_first(), rates) == pytest.approx(found, rel=1e-13)


def test_a_chain_has_its_closed_form():
    alpha, depth = 0.8, 7
    expected = (1 - alpha ** (depth + 1)) / (1 - alpha)
    assert expected_tokens(TreeShape.chain(depth), [alpha]) == pytest.approx(expected)


def test_one_row_is_not_one_vector():
    assert expected_tokens(TreeShape.chain(1), [[0.5]]) == 1.5
    with pytest.raises(InvalidAcceptance, match=r"1 depths, but node 2 needs 2.*rows"):
        expected_tokens(TreeShape.chain(2), [[0.5]])


def test_extremes():
    assert expected_tokens(TreeShape.chain(3), [1.0]) == 4
    assert expected_tokens(TreeShape.chain(3), [0.0]) == 1
    assert expected_tokens(TreeShape.chain(0), [0.3]) == 1


@pytest.mark.parametrize("kind", [list, np.float32, np.array, torch.tensor])
def test_vectors_of_any_kind(kind):
    rates = np.array([0.5, 0.25], np.float32) if kind is np.float32 else kind([0.5, 0.25])
    assert expected_tokens(TreeShape.kary(2, 1), rates) == 1.75


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([], "empty"),
        ([[]], "empty"),
        ([0.5, float("nan")], r"acceptance\[1\] = nan"),
        ([0.5, float("inf")], r"acceptance\[1\] = inf"),
        ([-0.1, 0.5], r"acceptance\[0\] = -0.1.*\[0, 1\]"),
        ([[0.5, 0.2], [1.5, 0.0]], r"acceptance\[1\]\[0\] = 1.5"),
        ([0.8, 0.5], r"acceptance sums to 1.3"),
        ([[0.5, 0.2], [0.8, 0.5]], r"acceptance\[1\] sums to 1.3"),
        ([[0.5], [0.5, 0.2]], "equal length"),
        (["a"], "numbers"),
        (0.5, "0 dimensions"),
        ([[[0.5]]], "3 dimensions"),
        ([0.5], "1 child ranks, but node 2 needs 2.*columns"),
    ],
)
def test_refuses_rates(rates, message):
    with pytest.raises(InvalidAcceptance, match=message) as caught:
        expected_tokens(TreeShape.kary(2, 1), rates)
    assert isinstance(caught.value, SearchError)
    assert isinstance(caught.value, ValueError)


def test_published_tables_are_rounded():
    assert expected_tokens(TreeShape.kary(2, 1), [0.7002, 0.3]) == pytest.approx(2.0002)


def test_many_tables_at_once():
    rng = np.random.default_rng(0)
    for shape in (TreeShape.kary(2, 3), TreeShape.chain(4), TreeShape((-1, 0, 0, 2, 2, 3, 5))):
        tables = rng.dirichlet(np.ones(4), size=(5, 4))[..., :3]
        expected = [expected_tokens(shape, table) for table in tables]
        assert tokens_of(shape, tables, by_depth=True) == pytest.approx(expected)
        expected = [expected_tokens(shape, table[0]) for table in tables]
        assert tokens_of(shape, tables[:, :1], by_depth=False) == pytest.approx(expected)
