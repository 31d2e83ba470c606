import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec import Law, TokenTree, TreeShape
from treespec.errors import InvalidTree
from treespec.testing import plane_trees
from treespec.tree.shape import LARGEST_TREE, expansion_size


@st.composite
def shapes(draw, max_size=24):
    size = draw(st.integers(1, max_size))
    return TreeShape.from_parents([-1, *(draw(st.integers(0, i - 1)) for i in range(1, size))])


def test_constructors_by_hand():
    assert TreeShape.chain(3).parents == (-1, 0, 1, 2)
    assert TreeShape.chain(0).parents == (-1,)
    assert TreeShape.kary(2, 2).parents == (-1, 0, 0, 1, 1, 2, 2)
    assert TreeShape.expansion([3, 1, 2]).parents == (-1, 0, 0, 0, 1, 2, 3, 4, 4, 5, 5, 6, 6)
    assert TreeShape.independent_chains(2, 3).parents == (-1, 0, 0, 1, 2, 3, 4)
    assert TreeShape.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 1)]).parents == (-1, 0, 0, 1, 2, 2)


def test_families_meet_where_they_should():
    assert TreeShape.kary(1, 5) == TreeShape.chain(5) == TreeShape.independent_chains(1, 5)
    assert hash(TreeShape.kary(3, 2)) == hash(TreeShape.expansion([3, 3]))


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_integers_of_any_kind_become_plain(array):
    one, two = array([1, 2])
    by_hand = {
        TreeShape.from_parents(array([-1, 0, 0])): (-1, 0, 0),
        TreeShape.chain(two): (-1, 0, 1),
        TreeShape.kary(two, one): (-1, 0, 0),
        TreeShape.expansion(array([2, 1])): (-1, 0, 0, 1, 2),
        TreeShape.independent_chains(two, two): (-1, 0, 0, 1, 2),
        TreeShape.from_paths([array([0]), array([0, 0])]): (-1, 0, 1),
    }
    for shape, parents in by_hand.items():
        assert shape.parents == parents
        assert {type(parent) for parent in shape.parents} == {int}
        assert TreeShape.from_json(shape.to_json()) == shape


def test_integers_become_plain_in_the_plain_constructor_too(without_shape_checks):
    assert list(map(type, TreeShape(tuple(np.array([-1, 0]))).parents)) == [int, int]


@given(shapes())
def test_derived_facts_agree_with_walking_up(shape):
    for node in range(shape.size):
        path, at = [], node
        while at != -1:
            path.append(at)
            at = shape.parents[at]
        path = tuple(reversed(path))
        assert shape.path(node) == path
        assert shape.depths[node] == len(path) - 1
        assert shape.children[node] == tuple(
            c for c in range(shape.size) if shape.parents[c] == node
        )
    assert shape.depth == max(shape.depths)
    assert sum(shape.level_sizes) == shape.size
    assert set(shape.leaves) | set(shape.internal) == set(range(shape.size))
    assert shape.is_chain == (len(shape.leaves) == 1)
    assert sorted(shape.depth_first) == list(range(shape.size))
    place = {node: rank for rank, node in enumerate(shape.depth_first)}
    assert all(place[p] < place[n] for n, p in enumerate(shape.parents) if n)


@given(shapes())
def test_json_and_rank_paths_round_trip(shape):
    assert TreeShape.from_json(shape.to_json()) == shape
    assert set(json.loads(shape.to_json())) == {"version", "parents", "order"}
    paths = [shape.rank_path(node) for node in range(1, shape.size)]
    assert sorted(TreeShape.from_paths(paths).rank_path(n) for n in range(1, shape.size)) == sorted(
        paths
    )


@given(shapes())
def test_breadth_first_keeps_the_tree(shape):
    other = shape.breadth_first()
    assert list(other.depths) == sorted(other.depths)
    paths = [{s.rank_path(n) for n in range(s.size)} for s in (shape, other)]
    assert paths[0] == paths[1]
    assert other.breadth_first() == other


def test_plane_trees_are_counted_by_catalan_and_distinct():
    for size, count in zip(range(1, 8), (1, 1, 2, 5, 14, 42, 132), strict=True):
        trees = list(plane_trees(size))
        assert len(set(trees)) == len(trees) == count
        assert all(t.breadth_first() == t for t in trees)


@pytest.mark.parametrize(
    ("parents", "says"),
    [
        ([], "at least its root"),
        ([0], r"parents\[0\] = 0"),
        ([-1, 1], r"parents\[1\] = 1.*0\.\.0"),
        ([-1, 0, 5], r"parents\[2\] = 5.*0\.\.1"),
        ([-1, -1], r"parents\[1\] = -1"),
    ],
)
def test_parents_that_are_no_tree(parents, says):
    with pytest.raises(InvalidTree, match=says):
        TreeShape.from_parents(parents)


def from_json(**changes):
    return TreeShape.from_json(
        json.dumps({"version": 1, "parents": [-1, 0], "order": "node"} | changes)
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TreeShape.chain(-1), "depth = -1"),
        (lambda: TreeShape.kary(0, 2), r"branching\[0\] = 0"),
        (lambda: TreeShape.expansion([2, 0]), r"branching\[1\] = 0"),
        (lambda: TreeShape.independent_chains(0, 2), "width = 0"),
        (lambda: TreeShape.independent_chains(2, 0), "depth = 0"),
        (lambda: TreeShape.from_paths([(0,), (0, 0, 0)]), r"\(0, 0\) is missing"),
        (lambda: TreeShape.from_paths([(1,)]), r"no elder sibling"),
        (lambda: TreeShape.from_paths([(0,), (0,)]), "twice"),
        (lambda: TreeShape.from_paths([()]), "empty path"),
        (lambda: TreeShape.from_json("{"), "not JSON"),
        (lambda: TreeShape.from_json('{"version": 9}'), "version"),
        (lambda: TreeShape.from_json("[-1]"), r"object with the keys.*not \[-1\]"),
        (lambda: from_json(parents=3), "list of integers"),
        (lambda: from_json(parents=[-1, 0.5]), "0.5 is not an integer"),
        (lambda: from_json(parents=[-1, True]), "True is not an integer"),
        (lambda: from_json(order="depth_first"), "'order' must be 'node', not 'depth_first'"),
        (lambda: from_json(order=None), "'order' must be 'node'"),
        (lambda: from_json(tokens=[1]), "keys.*not.*'tokens'"),
        (lambda: TreeShape.chain(True), "depth = True is not an integer"),
        (lambda: TreeShape.from_parents([-1, np.bool_(False)]), r"parents\[1\].*is not an integer"),
        (lambda: TreeShape.from_parents(torch.tensor([True])), r"parents\[0\].*is not an integer"),
        (lambda: TreeShape.from_parents([-1, 0.0]), r"parents\[1\] = 0.0 is not an integer"),
        (lambda: TreeShape.from_paths([(0.0,)]), "0.0 is not an integer"),
    ],
)
def test_bad_constructions_say_what_is_wrong(without_shape_checks, make, says):
    with pytest.raises(InvalidTree, match=says):
        make()


def make_tree(**changes):
    parts = {
        "shape": TreeShape.expansion([2, 1]),
        "tokens": torch.tensor([7, 1, 2, 3, 4]),
        "draft_probs": torch.rand(3, 8),
        "law": Law.IID,
    }
    return TokenTree(**(parts | changes))


def test_token_tree_gives_each_parent_its_row():
    tree = make_tree()
    assert tree.draft_probs is not None
    for row, node in enumerate((0, 1, 2)):
        assert torch.equal(tree.draft_probs_of(node), tree.draft_probs[row])
    with pytest.raises(InvalidTree, match="node 3"):
        tree.draft_probs_of(3)
    assert tree.laws == {Law.IID}
    assert tree.token_ids == (7, 1, 2, 3, 4)
    assert "0:7" in str(tree)


def test_law_per_node():
    laws = [Law.IID, Law.DETERMINISTIC, Law.WITHOUT_REPLACEMENT, Law.IID, Law.IID]
    tree = make_tree(law=laws)
    assert [tree.law_of(n) for n in range(5)] == laws
    assert tree.laws == {Law.IID, Law.DETERMINISTIC, Law.WITHOUT_REPLACEMENT}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokens": torch.tensor([1, 2])}, "needs tokens of shape"),
        ({"draft_probs": torch.rand(2, 8)}, "one row for each of the 3"),
        ({"draft_probs": None}, "children of law iid need draft_probs"),
        ({"law": [Law.IID]}, "1 laws for 5 nodes"),
        (
            {"law": "idd"},
            "law = 'idd' is not a law: choose one of iid, without_replacement, deterministic",
        ),
        ({"law": ["iid"] * 4 + ["top"]}, r"law\[4\] = 'top' is not a law"),
        ({"tokens": torch.tensor([7, 1, -2, 3, 4])}, "node 2 has the token -2, but ids start at 0"),
        ({"tokens": torch.tensor([7, 1, 2, 8, 4])}, "node 3 has the token 8.*end at token 7"),
    ],
)
def test_parts_of_a_token_tree_must_fit(changes, says):
    with pytest.raises(InvalidTree, match=says):
        make_tree(**changes)


def test_a_law_by_its_name():
    assert make_tree(law="iid").law == (Law.IID,) * 5
    mixed = make_tree(law=["iid", "deterministic", Law.WITHOUT_REPLACEMENT, "iid", "iid"])
    assert mixed.laws == {Law.IID, Law.DETERMINISTIC, Law.WITHOUT_REPLACEMENT}


def test_tokens_on_another_device_are_checked_when_they_are_read():
    """Building a tree must not wait for the device; a meta tensor cannot be read at all."""
    tree = make_tree(tokens=torch.empty(5, dtype=torch.int64, device="meta"))
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        tree.token_ids  # noqa: B018


def test_the_root_need_be_no_column_of_the_draft():
    assert make_tree(tokens=torch.tensor([99, 1, 2, 3, 4])).token_ids[0] == 99


@pytest.mark.parametrize(
    "make",
    [
        lambda: TreeShape.chain(10**9),
        lambda: TreeShape.kary(1000, 1000),
        lambda: TreeShape.kary(1, 10**9),
        lambda: TreeShape.expansion([100_000, 100_000]),
        lambda: TreeShape.independent_chains(1, 10**9),
        lambda: TreeShape(tuple(range(-1, LARGEST_TREE))),
    ],
)
def test_large_trees_are_refused_before_they_are_made(make):
    with pytest.raises(InvalidTree, match="more than 1,048,576 nodes"):
        make()


def test_sizes_of_expansions_follow_from_their_numbers():
    for branching in ([], [1], [3, 2, 1], [2] * 8, [1] * 30):
        assert expansion_size(branching) == TreeShape.expansion(branching).size
    assert TreeShape.chain(0).size == TreeShape.kary(5, 0).size == 1
    assert TreeShape.chain(3) == TreeShape.kary(1, 3) == TreeShape.independent_chains(1, 3)
    assert expansion_size([2**20]) == LARGEST_TREE + 1


def test_spines():
    assert TreeShape.spine(3, 0) == TreeShape.chain(3)
    assert TreeShape.spine(0, 4) == TreeShape.chain(0)
    assert TreeShape.spine(3, 2).parents == (-1, 0, 0, 0, 1, 1, 1, 4, 4, 4)
    paths = [path for d in range(3) for path in [(0,) * d + (rank,) for rank in range(2)]]
    assert TreeShape.spine(3, 1) == TreeShape.from_paths(paths)
