"""Acceptance rates of children by depth and rank, as merges use them."""

import pytest
import torch

from treespec import Law, Scores, TokenTree, TreeShape, Verdict
from treespec.draft import acceptance_rates
from treespec.errors import InvalidArgument
from treespec.step import Step

SHAPE = TreeShape((-1, 0, 0, 1, 1, 3))


def steps(*paths):
    tree = TokenTree(SHAPE, torch.arange(SHAPE.size), None, Law.DETERMINISTIC)
    return [
        Step(tree, Verdict(path, 8), Scores(torch.zeros(SHAPE.size, 9)), (8,)) for path in paths
    ]


PATHS = [(0,), (0, 2), (0, 1), (0, 1, 3), (0, 1, 4), (0, 1, 3, 5)]


def test_a_child_counts_where_its_parent_was_accepted():
    right = ((4 / 6, 1 / 6), (2 / 4, 1 / 4), (1 / 2,))
    assert acceptance_rates(steps(*PATHS)) == right


def test_what_was_seen_too_rarely_has_no_rate():
    assert acceptance_rates(steps(*PATHS), least=3) == ((4 / 6, 1 / 6), (2 / 4, 1 / 4))
    assert acceptance_rates(steps(*PATHS), least=5) == ((4 / 6, 1 / 6),)
    assert acceptance_rates(steps(*PATHS), least=6) == ((4 / 6, 1 / 6),)
    with pytest.raises(InvalidArgument, match=r"drafted 6 times, but least = 7"):
        acceptance_rates(steps(*PATHS), least=7)
    with pytest.raises(InvalidArgument, match="least"):
        acceptance_rates(steps(*PATHS), least=0)
    with pytest.raises(InvalidArgument, match="no drafted node"):
        acceptance_rates([])
