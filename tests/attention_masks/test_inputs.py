"""Wrong numbers in arguments: one of our errors, naming the argument."""

import numpy as np
import pytest
import torch

import attention_masks as am
from attention_masks._plain import plain_integers, plain_items
from attention_masks.errors import InvalidInput, NotATree

pytestmark = pytest.mark.usefixtures("without_shape_checks")

TREE = am.topology([-1, 0, 0, 1])
Q = torch.zeros(1, 2, 4, 8)
PAGES = torch.zeros(4, 2, 4, 8)
TABLE = torch.tensor([[0, 1]], dtype=torch.int32)


@pytest.mark.parametrize("number", [-1, 4, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_pages_that_do_not_exist(number, impl):
    """Refused where a sequence uses them; entries after its last page may hold anything."""
    for place in (0, 1):
        table = TABLE.clone()
        table[0, place] = number
        message = rf"block_table\[0, {place}\] = {number}, but the pages are 0\.\.3"
        with pytest.raises(InvalidInput, match=message):
            am.tree_attention(Q, PAGES, PAGES, TREE, 3, block_table=table, impl=impl)
    longer = torch.tensor([[0, 1, number]], dtype=torch.int32)
    expected = am.tree_attention(Q, PAGES, PAGES, TREE, 3, block_table=TABLE, impl=impl)
    found = am.tree_attention(Q, PAGES, PAGES, TREE, 3, block_table=longer, impl=impl)
    assert torch.equal(found, expected)


def test_pages_of_sequences_of_different_length():
    trees = [am.topology([-1]), TREE]
    q, table = torch.zeros(2, 2, 4, 8), torch.tensor([[3, -7], [0, 1]], dtype=torch.int32)
    am.tree_attention(q, PAGES, PAGES, trees, [2, 3], block_table=table, impl="reference")
    table[1, 1] = -7
    with pytest.raises(InvalidInput, match=r"block_table\[1, 1\] = -7"):
        am.tree_attention(q, PAGES, PAGES, trees, [2, 3], block_table=table, impl="reference")


@pytest.mark.parametrize("truth", [True, np.bool_(True), torch.tensor(True)], ids=repr)
def test_booleans_are_not_integers(truth):
    with pytest.raises(InvalidInput, match=r"prefix_len = .*rue.*must be a plain integer"):
        am.dense_mask(TREE, truth)
    with pytest.raises(NotATree, match=r"parents\[1\] = .*rue"):
        am.topology([-1, truth])


def test_integers_of_any_type_are_accepted():
    for three in (3, np.int64(3), np.uint8(3), torch.tensor(3)):
        assert am.dense_mask(TREE, three).shape == (4, 7)
    for array in (np.array([-1, 0, 0]), torch.tensor([-1, 0, 0]), (-1, 0, 0), iter([-1, 0, 0])):
        assert am.topology(array).parents == (-1, 0, 0)
    assert plain_integers([1, np.int32(2)]) == (1, 2)
    assert plain_items({1: 2}) is plain_items("ab") is plain_items(3) is None
