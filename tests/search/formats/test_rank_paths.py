from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.search.formats import MalformedTree, dump, load
from treespec.search.formats.rank_paths import from_text, to_paths
from treespec.testing import plane_trees

BUSHY = TreeShape.expansion([2, 1, 2])


def test_paths_are_the_rank_paths_by_length_and_rank():
    for size in range(1, 7):
        for shape in plane_trees(size):
            by_hand = [shape.rank_path(node) for node in range(1, shape.size)]
            assert to_paths(shape) == sorted(by_hand, key=lambda path: (len(path), path))


@given(st.permutations([[0], [1], [0, 0], [1, 0], [0, 0, 0], [0, 0, 1]]), st.booleans())
def test_order_brackets_space_and_a_name_do_not_matter(paths, tuples):
    paths = [tuple(path) for path in paths] if tuples else paths
    right = TreeShape.from_parents([-1, 0, 0, 1, 2, 3, 3])
    text = str(paths)
    for form in (text, text.replace(" ", ""), text.replace(",", " ,\n"), f"tree_1 = {text}\n"):
        assert from_text(form) == right
    assert from_text(text[:-1] + ",]") == right
    assert from_text(f"({text[1:-1]})") == right


def test_no_paths_are_a_root_alone():
    assert from_text("[]") == from_text(" [ ] ") == load([]) == TreeShape.chain(0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"must start with '\['"),
        ("0", r"must start with '\['"),
        ("[", "character 1: a path"),
        ("[[0]", "character 4: a comma or ']' must follow"),
        ("[[0)]", r"character 1: a path .*'\[0\)\]'"),
        ("[[0])", r"character 4: a comma or ']'.*'\)'"),
        ("[[0] [1]]", "character 5: a comma"),
        ("[[0],, [1]]", "character 5: a path"),
        ("[[0]] + []", "character 6: nothing may follow"),
        ("[[0], 1]", "character 6: a path"),
        ("[[0], [-1]]", "character 6: a path"),
        ("[[0], [1.0]]", "character 6: a path"),
        ("[[0], [0 1]]", "character 6: '0 1' is not a rank"),
        ("[[0], [,0]]", "character 6: '' is not a rank"),
        ("[[0], [0,,0]]", "character 6: '' is not a rank"),
        ("[[0], [1234567890]]", "is not a rank"),
        ("[(0)]", r"character 1: \(0\) is a number in Python, not a path: \(0,\)"),
        ("[[[0]]]", "character 1: a path"),
        ("x.y = [[0]]", "must start with"),
        ("[[]]", "empty path"),
        ("[[0], [0]]", "appears twice"),
        ("[[0, 0]]", r"\(0, 0\) has no parent"),
        ("[[1]]", r"\(1,\) has no elder sibling"),
    ],
)
def test_malformed_texts(text, problem):
    for format in ("medusa", "vllm"):
        with pytest.raises(MalformedTree, match=problem):
            load(text, format)


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        ([0], "path 0 must be a list"),
        ([[0], ["1"]], r"path 1\[0\] = '1'"),
        ([[0], [True]], r"path 1\[0\] = True"),
        ([[0], [0.0]], r"path 1\[0\] = 0.0"),
        ([[0], [-1]], r"path 1\[0\] = -1"),
        ([[0], [0] * 4096], "path 1 has 4096 ranks"),
        ({}, "a list of rank paths"),
        (7, "a list of rank paths"),
    ],
)
def test_malformed_lists(paths, problem):
    with pytest.raises(MalformedTree, match=problem):
        load(paths, "medusa")


def test_vllm_reads_its_configs():
    tree = dump(BUSHY, "vllm").content
    assert tree == str(to_paths(BUSHY))
    config = (
        f'{{"method": "eagle3", "num_speculative_tokens": 8, "speculative_token_tree": "{tree}"}}'
    )
    assert load(config) == load({"speculative_token_tree": tree}) == BUSHY
    for config, problem in (
        (
            {"speculative_token_tree": tree, "num_speculative_tokens": 9},
            "9, but the tree has 8 paths",
        ),
        (
            {"speculative_token_tree": tree, "num_speculative_tokens": "8"},
            "num_speculative_tokens = '8'",
        ),
        ({"speculative_token_tree": [[0]]}, "must be a string"),
        ({"num_speculative_tokens": 8}, "must be a string, not None"),
    ):
        with pytest.raises(MalformedTree, match=problem):
            load(config, "vllm")


def drawn_by_vllm(shape):
    """The drafted shape: at each node, this level's number of nodes over the previous level's."""
    sizes = shape.level_sizes
    counts = [here // above for above, here in pairwise(sizes)]
    return TreeShape.expansion(counts) if all(counts) else None


def test_vllm_says_when_it_drafts_another_shape():
    for size in range(2, 8):
        for shape in plane_trees(size):
            export = dump(shape, "vllm")
            said = any("equally many" in loss for loss in export.lost)
            assert said == (drawn_by_vllm(shape) != shape.breadth_first())
            assert any("42121" in note for note in export.notes)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("[]", "must be an object"),
        ({}, "num_speculative_tokens = None"),
        ({"num_speculative_tokens": 0}, "in 1..4095"),
        ({"num_speculative_tokens": 2, "speculative_token_tree": "[(0,)]"}, "the format 'vllm'"),
    ],
)
def test_chains_of_vllm(config, problem):
    assert load({"num_speculative_tokens": 3, "method": "eagle"}) == TreeShape.chain(3)
    with pytest.raises(MalformedTree, match=problem):
        load(config, "vllm-chain")
