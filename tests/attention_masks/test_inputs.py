"""Every public function with a wrong value in each argument: one of our errors, naming the argument."""

import numpy as np
import pytest
import torch
from wrong_values import WRONG

import attention_masks as am
from attention_masks._plain import plain_integers, plain_items, shown
from attention_masks.commit_rows import commit_rows
from attention_masks.errors import AttentionMaskError, InvalidInput, NotATree
from attention_masks.intervals import depth_first, intervals
from attention_masks.tree_attention.api import choose

pytestmark = pytest.mark.usefixtures("without_shape_checks")

TREE = am.topology([-1, 0, 0, 1])
Q, K = torch.zeros(1, 2, 4, 8), torch.zeros(1, 2, 10, 8)
PAGES = torch.zeros(4, 2, 4, 8)
TABLE = torch.tensor([[0, 1]], dtype=torch.int32)
MASK = {"topology": TREE, "prefix_len": 3, "rows": [0, 1], "window": 2}
BATCH = {"trees": [TREE], "prefix_lens": [3], "rows": [[0, 1]], "window": 2}
NONE = {(name, "None") for name in ("rows", "window", "max_tokens", "values", "sinks", "softcap")}
ATTEND = {"q": Q, "k": K, "v": K, "window": 2, "sinks": None, "softcap": None, "impl": "reference"}
NUMBERS = {("scale", kind) for kind in ("None", "float", "negative")} | {("softcap", "float")}

DOORS = {
    "topology": (am.topology, {"parents": [-1, 0, 0]}),
    "Topology.to": (TREE.to, {"device": "cpu"}),
    "dense_mask": (am.dense_mask, MASK),
    "additive_mask": (am.additive_mask, MASK | {"dtype": torch.float32}),
    "mask_mod": (am.mask_mod, MASK | {"group": 1}),
    "block_mask": (am.block_mask, MASK | {"group": 1, "block_size": 128}),
    "packed_rows": (am.packed_rows, {"topology": TREE, "rows": [0], "window": 2}),
    "flashinfer_mask": (am.flashinfer_mask, BATCH),
    "tensorrt_llm_mask": (am.tensorrt_llm_mask, {"trees": [TREE], "max_tokens": 8}),
    "unpacked": (am.unpacked, {"packed": torch.tensor([[5]], dtype=torch.int32), "size": 3}),
    "forest": (am.forest, {"trees": [TREE, TREE], "prefix_len": 3, "window": 2}),
    "ragged_mask": (am.ragged_mask, BATCH),
    "ragged_additive_mask": (am.ragged_additive_mask, BATCH | {"dtype": torch.float32}),
    "intervals": (intervals, {"topology": TREE}),
    "visible": (
        intervals(TREE).visible,
        {"row": torch.tensor(1), "key": torch.tensor(0), "window": 2},
    ),
    "depth_first": (depth_first, {"tree": TREE}),
    "TreePass": (am.TreePass, {"topology": TREE, "prefix_len": 3, "rows": [0, 1]}),
    "RaggedPass": (am.RaggedPass, {"passes": [am.TreePass(TREE, 3)]}),
    "tree_attention": (
        am.tree_attention,
        ATTEND | {"topology": TREE, "prefix_len": 3, "rows": [0, 1, 2, 3], "scale": 1.0},
    ),
    "attend": (am.attend, ATTEND | {"tree_pass": am.TreePass(TREE, 3), "scale": 1.0}),
    "attend, chosen": (
        lambda q, k, v: am.attend(q, k, v, am.TreePass(TREE, 3)),
        {"q": Q, "k": K, "v": K},
    ),
    "pages": (
        lambda **kwargs: am.tree_attention(topology=TREE, prefix_len=3, impl="reference", **kwargs),
        {"q": Q, "k": PAGES, "v": PAGES, "block_table": TABLE},
    ),
    "choose": (
        choose,
        {"device": "cpu", "rows": 1, "head_dim": 128, "dtype": torch.float32},
    ),
    "commit_rows": (
        lambda **kwargs: commit_rows(**kwargs),
        {
            "keys": torch.zeros(1, 1, 1, 6, 2),
            "values": None,
            "source": [3, 5],
            "start": 2,
            "impl": "torch",
        },
    ),
}
TAKEN = NONE | NUMBERS | {("sinks", "floats")}
"""Pairs (argument, kind) that are valid; "floats" has as many numbers as there are heads."""
SOMETIMES = {
    ("pages", "block_table", "None"),  # without pages, the error is about shapes
    ("choose", "rows", "negative"),
    ("choose", "head_dim", "negative"),
}


def cases():
    for door, (_, right) in DOORS.items():
        for argument in right:
            yield pytest.param(door, argument, id=f"{door}-{argument}")


@pytest.mark.parametrize(("door", "argument"), cases())
def test_a_wrong_value_in_each_argument(door, argument):
    function, valid = DOORS[door]
    function(**valid)
    for kind, value in WRONG.items():
        if (argument, kind) in TAKEN or (door, argument, kind) in SOMETIMES:
            continue
        if door == "topology" and kind == "empty":
            continue  # the message says that it is empty
        try:
            result = function(**valid | {argument: value})
        except AttentionMaskError as error:
            message = str(error)
        else:
            pytest.fail(f"{argument} = {shown(value)} is accepted silently: {result!r}")
        names = {argument, argument.split("_")[0], "k" if argument == "v" else argument}
        names |= {"trees"} if argument == "topology" else set()
        assert any(name in message for name in names), (kind, message)
        assert "Error" not in message
        assert len(message) < 400


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
