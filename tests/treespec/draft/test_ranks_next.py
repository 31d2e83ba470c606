import pytest
import torch

from treespec import Law, TokenTree, TreeShape
from treespec.draft import NoDrafter, best_next
from treespec.errors import InvalidTree

ANYONE = NoDrafter()
SHAPE = TreeShape((-1, 0, 0, 1, 1))
TOKENS = torch.tensor([0, 3, 1, 2, 4])


def test_deterministic_children_are_in_rank_order():
    tree = TokenTree(SHAPE, TOKENS, None, Law.DETERMINISTIC)
    assert best_next(ANYONE, tree, range(5)) == [3, 2, None, None, None]
    assert best_next(ANYONE, tree, [1]) == [2]


@pytest.mark.parametrize("law", [Law.IID, Law.WITHOUT_REPLACEMENT])
def test_of_drawn_children_the_distribution_counts_not_the_draw(law):
    rows = torch.tensor([[0.1, 0.2, 0.0, 0.3, 0.4], [0.0, 0.0, 0.5, 0.1, 0.4]])
    tree = TokenTree(SHAPE, TOKENS, rows, law)
    assert best_next(ANYONE, tree, range(5)) == [4, 2, None, None, None]


def test_in_a_mixed_tree_the_first_group_counts():
    rows = torch.tensor([[0.1, 0.2, 0.0, 0.3, 0.4], [0.6, 0.0, 0.2, 0.1, 0.1]])
    law = [[("deterministic", 1), ("iid", 1)], [("iid", 1), ("deterministic", 1)]]
    tree = TokenTree(SHAPE, TOKENS, rows, [*law, *["deterministic"] * 3])
    assert best_next(ANYONE, tree, range(2)) == [3, 0]


class Ranked(NoDrafter):
    def __init__(self, ranked):
        self._ranked = ranked

    def best_next(self):
        return self._ranked


def test_a_drafter_may_answer_itself_for_nodes_without_children_too():
    tree = TokenTree(SHAPE, TOKENS, None, Law.DETERMINISTIC)
    assert best_next(Ranked([9, None, 8, 7, 6]), tree, [0, 1, 4]) == [9, None, 6]
    with pytest.raises(InvalidTree, match="3 tokens for a tree of 5"):
        best_next(Ranked([1, 2, 3]), tree, [0])
