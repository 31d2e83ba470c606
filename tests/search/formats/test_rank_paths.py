import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.search.formats import MalformedTree, dump, load
from treespec.testing import plane_trees


def test_paths_are_the_rank_paths_by_length_and_rank():
    for size in range(1, 7):
        for shape in plane_trees(size):
            by_hand = [shape.rank_path(node) for node in range(1, shape.size)]
            ordered = sorted(by_hand, key=lambda path: (len(path), path))
            assert [tuple(path) for path in dump(shape, "medusa").value] == ordered


@given(st.permutations([[0], [1], [0, 0], [1, 0], [0, 0, 0], [0, 0, 1]]), st.booleans())
def test_order_brackets_space_and_a_name_do_not_matter(paths, tuples):
    paths = [tuple(path) for path in paths] if tuples else paths
    right = TreeShape.from_parents([-1, 0, 0, 1, 2, 3, 3])
    text = str(paths)
    for form in (text, text.replace(" ", ""), text.replace(",", " ,\n"), f"tree_1 = {text}\n"):
        assert load(form) == right
    assert load(text[:-1] + ",]") == right
    assert load(f"({text[1:-1]})") == right


def test_no_paths_are_a_root_alone():
    assert load("[]") == load(" [ ] ") == load([]) == TreeShape.chain(0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *(
            (text, "not JSON")
            for text in ("", "[", "[[0]", "[[0] [1]]", "[[0],, [1]]", "[[0]] + []")
        ),
        *((text, "not JSON") for text in ("[[0], [0 1]]", "x.y = [[0]]", "[[0], [f(1)]]")),
        ("0", "a list of rank paths"),
        ("[[0], 1]", "path 1 must be a list"),
        ("[[0], [-1]]", r"path 1\[0\] = -1"),
        ("[[0], [1.0]]", r"path 1\[0\] = 1.0"),
        ("[[[0]]]", r"path 0\[0\] = \[0\]"),
        ("[[]]", "empty path"),
        ("[[0], [0]]", "appears twice"),
        ("[[0, 0]]", r"\(0, 0\) has no parent"),
        ("[[1]]", r"\(1,\) has no elder sibling"),
    ],
)
def test_malformed_texts(text, problem):
    with pytest.raises(MalformedTree, match=problem):
        load(text, "medusa")
