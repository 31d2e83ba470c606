"""Names that distinguish the trees of a ranking."""

from itertools import product

from treespec.search.choice.labels import LONGEST_NAME, tree_names
from treespec.shape import TreeShape


def test_every_small_tree_has_a_name_of_its_own():
    """All ordered trees of 2 to 7 nodes, as breadth-first parent arrays."""
    shapes = {
        TreeShape((-1, *parents)).breadth_first()
        for size in range(2, 8)
        for parents in product(*(range(node) for node in range(1, size)))
    }
    assert len(shapes) == 1 + 2 + 5 + 14 + 42 + 132
    assert len(set(tree_names(shapes))) == len(shapes)


def test_names_are_short_where_that_is_enough():
    wide = TreeShape((-1, 0, 0, 0, 1, 1, 1, 2))
    assert tree_names([wide, TreeShape.chain(3)]) == ["3+4", "1+1+1"]
    same_widths = TreeShape((-1, 0, 0, 0, 1, 1, 2, 2))
    assert tree_names([wide, wide, same_widths]) == ["3+4 (3,1)", "3+4 (3,1)", "3+4 (2,2)"]
    (long,) = tree_names([TreeShape.chain(LONGEST_NAME)])
    assert len(long) == LONGEST_NAME
    assert long.endswith("...")
