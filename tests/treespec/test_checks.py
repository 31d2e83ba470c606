"""What people call first reports a wrong argument in one of our sentences, which names the argument."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from wrong_values import WRONG

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, decode, verify
from treespec.checks import integer, number, plain_integer, sequence, shown
from treespec.decoding import NullObserver
from treespec.draft import ModelDrafter, PromptLookup
from treespec.errors import InvalidArgument, InvalidSetting, InvalidTree, TreespecError
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

pytestmark = pytest.mark.usefixtures("without_shape_checks")


SHAPE = TreeShape.expansion([2, 1])
ROW = torch.tensor([0.2, 0.3, 0.5])
MODEL = TabularModel(random_table(3, 0), 3)
PROMPT = torch.tensor([0, 1])
TREE = TokenTree(SHAPE, torch.tensor([0, 1, 2, 0, 1]), ROW.expand(3, 3).clone(), Law.IID)
NODES = list("abcde")
JSON = '{"version": 1, "parents": [-1], "order": "node"}'


def decoded(target, drafter, verifier, prompt, **others):
    return list(decode(target, drafter, verifier, prompt, **others))


DOORS = {
    "TreeShape": (TreeShape, {"parents": (-1, 0, 0)}),
    "from_parents": (TreeShape.from_parents, {"parents": [-1, 0]}),
    "chain": (TreeShape.chain, {"depth": 2}),
    "kary": (TreeShape.kary, {"branching": 2, "depth": 2}),
    "expansion": (TreeShape.expansion, {"branching": [2, 1]}, {"empty"}),
    "independent_chains": (TreeShape.independent_chains, {"width": 2, "depth": 2}),
    "from_paths": (TreeShape.from_paths, {"paths": [(0,)]}, {"empty"}, "path"),
    "from_json": (TreeShape.from_json, {"text": JSON}, {}, "JSON"),
    "path": (SHAPE.path, {"node": 1}),
    "draw": (SHAPE.draw, {"labels": NODES}, {"None"}),
    "Law.of": (Law.of, {"given": "iid"}, {}, "law"),
    "TokenTree": (
        TokenTree,
        {"shape": SHAPE, "tokens": TREE.tokens, "draft_probs": TREE.draft_probs, "law": "iid"},
        {},
        "draft_probs|law|tokens|shape|children|tree",
    ),
    "TorchCoins": (TorchCoins, {"seed": 0}, {"negative"}),
    "coins.draw": (TorchCoins(0).draw, {"probabilities": ROW}, {"floats"}),
    "draw_many": (
        TorchCoins(0).draw_many,
        {"probabilities": ROW[None], "k": 2, "law": Law.IID},
    ),
    "Sampling": (
        Sampling,
        {"temperature": 1.0, "top_k": 2, "top_p": 0.5, "min_p": 0.5},
        {("temperature", "float"), ("top_k", "None"), ("top_p", "None"), ("min_p", "None")},
    ),
    "Sampling of": (Sampling(top_k=2, top_p=0.9), {"logits": ROW}, {"floats", "deep"}),
    "Sampling.rows": (Sampling().rows, {"logits": ROW[None]}),
    "typical.using": (verify.typical.using, {"epsilon": 0.5, "delta": 0.5}),
    "on_host": (verify.on_host, {"rule": verify.rrs}, {}, "acceptance rule"),
    "PromptLookup": (
        PromptLookup,
        {"depth": 2, "size": 4, "branching": 2, "ngram": 2, "places": 3},
    ),
    "decode": (
        decoded,
        {
            "target": ModelTarget(MODEL),
            "drafter": ModelDrafter(MODEL, SHAPE, Law.IID, Sampling()),
            "verifier": verify.rrs,
            "prompt": PROMPT,
            "sampling": Sampling(),
            "coins": TorchCoins(0),
            "max_new_tokens": 2,
            "stop": lambda ids: False,
            "observer": NullObserver(),
        },
        {("observer", "None")},
    ),
}


def cases():
    for door, (_, right, *_) in DOORS.items():
        for argument in right:
            yield pytest.param(door, argument, id=f"{door}-{argument}")


@pytest.mark.parametrize(("door", "argument"), cases())
def test_something_else_in_each_argument(door, argument):
    function, right, *more = DOORS[door]
    also_right = more[0] if more else ()
    words = more[1] if len(more) > 1 else argument
    function(**right)
    for kind, value in WRONG.items():
        if kind in also_right or (argument, kind) in also_right:
            continue
        try:
            taken = function(**right | {argument: value})
        except TreespecError as error:
            said = str(error)
        else:
            pytest.fail(f"{argument} = {shown(value)} is taken in silence: {taken!r}")
        assert any(word in said for word in words.split("|")), (kind, said)
        assert "Error" not in said
        assert len(said) < 400


@pytest.mark.parametrize("name", ["path", "rank_path"])
@pytest.mark.parametrize("node", [-1, 5, 1.0, True])
def test_paths_of_nodes_that_are_not_there(name, node):
    with pytest.raises(InvalidTree, match=rf"there is no node {node}: the tree has nodes 0\.\.4"):
        getattr(SHAPE, name)(node)


@pytest.mark.parametrize(
    "tokens", [[0.0, 1.0], [True, False], [float("nan"), 1.0], [1 + 1j, 0j], [[0, 1]]], ids=str
)
def test_tokens_that_are_no_ids(tokens):
    wrong = torch.tensor(tokens)
    with pytest.raises(InvalidTree, match="tokens = "):
        TokenTree(TreeShape.chain(1), wrong, None, "deterministic")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_integers_of_every_width_are_ids(dtype):
    tree = TokenTree(TreeShape.chain(1), torch.tensor([0, 1], dtype=dtype), None, "deterministic")
    assert tree.token_ids == (0, 1)


def test_coins_by_no_probability():
    for wrong in (float("nan"), torch.tensor(torch.nan)):
        with pytest.raises(TreespecError, match="NaN"):
            TorchCoins(0).accept(wrong)
    with pytest.raises(TreespecError, match=r"negative probabilities, the least is -0.5"):
        TorchCoins(0).draw(torch.tensor([1.0, -0.5, 0.5]))
    # What a difference leaves by rounding is no reason to stop.
    assert TorchCoins(0).draw(torch.tensor([0.5, -1e-9, 0.5])) in (0, 2)


def test_integers():
    kinds = (3, np.int64(3), np.uint8(3), torch.tensor(3), np.array(3))
    assert [plain_integer(value) for value in kinds] == [3] * 5
    wrong = (True, np.bool_(True), torch.tensor(True), 3.0, np.float32(3), "3", None, float("nan"))
    assert [plain_integer(value) for value in wrong] == [None] * 8
    assert integer("k", np.int32(2), 2) == 2
    with pytest.raises(InvalidArgument, match=r"k = 1, but must be an integer of at least 2"):
        integer("k", 1, 2)
    assert Sampling(top_k=np.int64(3)).top_k == 3
    with pytest.raises(InvalidSetting, match="lenience of rule 'lenient' = True is not a number"):
        verify.lenient.using(lenience=True)
    assert number("x", np.float32(0.5)) == 0.5


def test_values_in_messages_are_short():
    assert len(shown("x" * 10_000)) <= 80
    assert shown(torch.zeros(3, 4)) == "a tensor float32 [3, 4]"
    assert shown("two\nlines") == r"'two\nlines'"
    assert sequence("x", iter([1, 2]), "numbers") == (1, 2)


def test_users_without_the_checks_of_the_tests_have_the_same_door():
    code = """
import sys, torch
from treespec import *
from treespec.errors import TreespecError
tree = TokenTree(TreeShape.chain(1), torch.tensor([0, 1]), torch.tensor([[0.5, 0.5]]), "iid")
assert "beartype" not in sys.modules
for wrong in (
    lambda: verify.rrs(tree, torch.ones(2, 2), TorchCoins(0)),
    lambda: verify.kseq(tree, [[0.5, 0.5]], TorchCoins(0)),
    lambda: verify.rrs(None, torch.ones(2, 2), TorchCoins(0)),
    lambda: TokenTree(TreeShape.chain(1), [0, 1], None, "deterministic"),
    lambda: TreeShape.chain(1).path(-1),
):
    try:
        wrong()
    except TreespecError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
