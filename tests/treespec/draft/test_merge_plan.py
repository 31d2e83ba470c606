"""The values of deterministic nodes that several sources propose."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec import Law, TokenTree, TreeShape
from treespec.draft.merge_plan import Trie

SURE = Law.DETERMINISTIC

SMALL = st.lists(st.floats(0.01, 0.3), min_size=1, max_size=3)


@given(SMALL, SMALL)
def test_values_follow_from_sources_that_err_independently(first, second):
    """By Bayes: a child is right if its source means it and the other source means none of its own."""
    trie, rests = Trie(), [1 - sum(first), 1 - sum(second)]
    for name, row, start in (("a", first, 1), ("b", second, 11)):
        tokens = torch.tensor([0, *range(start, start + len(row))])
        tree = TokenTree(TreeShape.expansion([len(row)]), tokens, None, SURE)
        trie.add(name, tree, (tuple(row),), whole=False)
    joint = [r * rests[1] for r in first] + [r * rests[0] for r in second]
    possible = sum(joint) + rests[0] * rests[1]
    assert trie.values()[1:] == pytest.approx([weight / possible for weight in joint])


@pytest.mark.parametrize(
    ("rates", "value"),
    [((0.8, 0.75), 12 / 13), ((0.8, 0.4), 0.8), ((0.4, 0.3), 0.4), ((0.4, 0.8, 0.75), 12 / 13)],
)
def test_sources_that_agree_count_where_they_are_sure(rates, value):
    """Odds of 4 and 3 make 12; odds below 1 beside larger ones change nothing, in any order."""
    for order in permutations(rates):
        trie = Trie()
        for name, one in enumerate(order):
            tree = TokenTree(TreeShape.chain(1), torch.tensor([0, 1]), None, SURE)
            trie.add(str(name), tree, ((one,),), whole=False)
        assert trie.values() == pytest.approx([1.0, value])


def test_a_token_that_a_source_drafts_twice_counts_once():
    trie = Trie()
    twice = TokenTree(TreeShape.expansion([3]), torch.tensor([0, 1, 1, 2]), None, SURE)
    trie.add("a", twice, ((0.4, 0.3, 0.2),), whole=False)
    assert trie.values() == pytest.approx([1.0, 0.4, 0.2])
