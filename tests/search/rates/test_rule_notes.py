"""Rules whose rates depend on the number of children or on the whole tree say so."""

import pytest

from treespec import TreeShape
from treespec.search import InvalidTrace, Records, estimate_acceptance

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")
WHOLE_TREE = ("block", "traversal", "gbv")


def test_rules_whose_rates_depend_on_the_number_of_children_say_so():
    steps = [[(TreeShape.chain(1), (0, 1))] * 40] * 2
    found = estimate_acceptance(Records(steps, "iid", "kseq"))
    assert any("'kseq'" in text for text in found.warnings)
    assert not any(
        "'rrs'" in text for text in estimate_acceptance(Records(steps, "iid", "rrs")).warnings
    )


@pytest.mark.parametrize("rule", WHOLE_TREE)
def test_rules_that_look_at_the_whole_tree_say_so(rule):
    steps = [[(TreeShape.chain(1), (0, 1))] * 40] * 2
    found = estimate_acceptance(Records(steps, "iid", rule))
    assert any(f"'{rule}'" in text and "recorded" in text for text in found.warnings)


@pytest.mark.parametrize("rule", ["kseq", "canonical", "optimal_transport", "traversal", "gbv"])
def test_nodes_of_different_width_are_not_pooled_where_rates_depend_on_it(rule):
    """A root of 3 children above nodes of 1: by rank these are one count, by depth they are not."""
    shape = TreeShape.expansion([3, 1])
    texts = [[(shape, (0, 1, 4))] * 40] * 2
    with pytest.raises(InvalidTrace, match=rf"'{rule}'.* nodes with 1, 3 of them.*by='depth'"):
        estimate_acceptance(Records(texts, "iid", rule))
    assert estimate_acceptance(Records(texts, "iid", rule), by="depth").rates.shape == (2, 3)
    uneven = TreeShape((-1, 0, 0, 1, 2, 2))
    texts = [[(uneven, (0, 1, 3)), (uneven, (0, 2, 4))] * 40]
    with pytest.raises(InvalidTrace, match=r"nodes at depth 1 with 1, 2 of them"):
        estimate_acceptance(Records(texts, "iid", rule), by="depth")
    estimate_acceptance(Records(texts, "iid", "rrs"), by="depth")
