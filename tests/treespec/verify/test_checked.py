"""Invalid rows, for every rule: refused with node and value. Valid rows, however odd, are accepted."""

import re

import numpy as np
import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import (
    InvalidArgument,
    InvalidTree,
    NonFiniteLogits,
    NotADistribution,
    RefusedTree,
)
from treespec.step import Verdict
from treespec.testing import EnumeratingCoins
from treespec.verify.checked import TargetRows

RULES = list(verify.RULES.values())
DRAWN = [rule for rule in RULES if rule.laws - {Law.DETERMINISTIC}]
READ_DRAFTS = [rule for rule in DRAWN if str(rule) not in ("greedy", "typical")]
ROW = [0.2, 0.3, 0.5]

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def tree_of(law, draft=ROW, tokens=(0, 1, 2)):
    shape = TreeShape.chain(len(tokens) - 1)
    rows = None if law is Law.DETERMINISTIC else torch.tensor([draft] * shape.depth)
    return TokenTree(shape, torch.tensor(tokens), rows, law)


def right_rows(rule, n=3):
    return torch.eye(3)[[1, 2, 0]][:n] if rule.one_hot else torch.tensor([ROW] * n)


def drawn_law(rule):
    return sorted(rule.laws - {Law.DETERMINISTIC}, key=str)[0]


def any_law(rule):
    return sorted(rule.laws, key=str)[0]


NUMBERS = {
    "sum 2": ([0.4, 0.6, 1.0], r"its 3 probabilities sum to 2, but must sum to 1"),
    "sum 0": ([0.0, 0.0, 0.0], r"sum to 0, but"),
    "sum 0.9": ([0.2, 0.3, 0.4], r"sum to 0.9, but"),
    "negative": ([-0.25, 0.75, 0.5], r"token 0 has the probability -0.25"),
    "slightly negative": ([0.5, 0.5, -1e-7], r"token 2 has the probability -1e-07"),
    "NaN": ([0.2, torch.nan, 0.5], r"token 1 has the probability nan"),
    "infinite": ([0.2, 0.3, torch.inf], r"token 2 has the probability inf"),
    "minus infinite": ([-torch.inf, torch.inf, 0.5], r"token 0 has the probability -inf"),
}
KINDS = {
    "integers": lambda rows: rows.long(),
    "truth values": lambda rows: rows > 0.4,
    "complex": lambda rows: rows + 0j,
    "numpy": lambda rows: rows.numpy(),
    "lists": lambda rows: rows.tolist(),
    "no columns": lambda rows: rows[:, :0],
    "tensors of one number": lambda rows: list(rows[:, 0]),
    "None inside": lambda rows: [None, None, None],
}
NO_ROWS = {"None": None, "a number": 0.5, "text": "rows", "one row": torch.tensor(ROW)}


def each(rules, kinds):
    """Every rule with the first kind, and all kinds with two rules: all rules read rows alike."""
    first, both = next(iter(kinds)), (verify.rrs, verify.greedy)
    return [(rule, kind) for rule in rules for kind in kinds if kind == first or rule in both]


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "on_host"])
@pytest.mark.parametrize(("rule", "kind"), each(RULES, NUMBERS), ids=str)
def test_target_rows_with_wrong_numbers(rule, kind, wrapped):
    wrong, says = NUMBERS[kind]
    verifier = verify.on_host(rule) if wrapped else rule
    for node in (0, 1, 2):
        rows = right_rows(rule)
        if not rule.one_hot:
            rows[:] = torch.tensor([0.0, 0.5, 0.5])  # lets every node down to the leaf be accepted
        rows[node] = torch.tensor(wrong)
        caught = None
        for seed in range(40):  # rows that are not visited are not checked
            try:
                verifier(tree_of(any_law(rule), [0.0, 0.5, 0.5]), rows, TorchCoins(seed))
            except NotADistribution as error:
                caught = str(error)
                break
        assert caught is not None, f"{kind} at node {node} was never refused"
        assert caught.startswith(f"the target's row of node {node} is not a distribution: ")
        assert re.search(says, caught)


@pytest.mark.parametrize(("rule", "kind"), each(RULES, KINDS), ids=str)
def test_target_rows_of_another_kind(rule, kind):
    rows = KINDS[kind](right_rows(rule))
    with pytest.raises(NotADistribution, match="target's row of node 0 is not a distribution: "):
        rule(tree_of(any_law(rule)), rows, TorchCoins(0))


@pytest.mark.parametrize(("rule", "kind"), each(RULES, NO_ROWS), ids=str)
def test_target_probs_that_are_not_rows(rule, kind):
    for verifier in (rule, verify.on_host(rule)):
        with pytest.raises(InvalidArgument, match=r"target_probs .*must be "):
            verifier(tree_of(any_law(rule)), NO_ROWS[kind], TorchCoins(0))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rows_that_are_too_few_or_too_short(rule):
    tree, rows = tree_of(any_law(rule), tokens=(0, 1, 2)), right_rows(rule)
    with pytest.raises(RefusedTree, match="3 nodes, but 2 target rows"):
        rule(tree, rows[:2], TorchCoins(0))
    with pytest.raises(RefusedTree, match="3 nodes, but 1 target rows"):
        rule(tree, Sampling().rows(torch.zeros(1, 3)), TorchCoins(0))
    more = torch.cat([rows, rows[:1]])
    for too_many in (more, list(more), Sampling(0.0).rows(10 * more)):
        for verifier in (rule, verify.on_host(rule), verify.by_kernel(rule)):
            with pytest.raises(RefusedTree, match="3 nodes, but 4 target rows"):
                verifier(tree, too_many, TorchCoins(0))
    for no_rows in ({}, []):
        with pytest.raises(RefusedTree, match="there is no target row for node 0"):
            rule(tree, no_rows, TorchCoins(0))
    with pytest.raises(RefusedTree, match=r"node 1 has the token 1.* node 0, ends at token 0"):
        rule(tree, torch.ones(3, 1), TorchCoins(0))


@pytest.mark.parametrize(("rule", "kind"), each(READ_DRAFTS, NUMBERS), ids=str)
def test_draft_rows_with_wrong_numbers(rule, kind):
    wrong, says = NUMBERS[kind]
    tree = tree_of(drawn_law(rule), wrong)
    for verifier in (rule, verify.on_host(rule)):
        for seed in range(3):
            with pytest.raises(NotADistribution, match=f"draft's row of node 0 is not a .*{says}"):
                verifier(tree, right_rows(rule), TorchCoins(seed))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_five_columns_against_three(rule):
    """Refused even if the rule does not read the draft rows."""
    for law in rule.laws:
        shape = TreeShape.chain(2)
        tree = TokenTree(shape, torch.tensor([0, 1, 2]), torch.full((2, 5), 0.2), law)
        for verifier in (rule, verify.on_host(rule)):
            with pytest.raises(RefusedTree, match="node 0 has 5 tokens, the target's has 3"):
                verifier(tree, right_rows(rule), TorchCoins(0))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_arguments_that_are_not_a_tree(rule):
    rows = right_rows(rule)
    for wrong in (None, "tree", [-1, 0], rows, TreeShape.chain(2), TokenTree):
        for verifier in (rule, verify.on_host(rule)):
            with pytest.raises(InvalidArgument, match=r"tree = .*, but must be a TokenTree"):
                verifier(wrong, rows, TorchCoins(0))
        with pytest.raises(InvalidArgument, match=r"tree = .*, but must be a TokenTree"):
            rule.require(wrong)


def test_a_custom_rule_has_the_same_checks():
    def first_child(target_probs, draft_probs, children, coins):
        return verify.NodeChoice(child=0)

    tree, coins = tree_of(Law.IID), TorchCoins(0)
    with pytest.raises(NotADistribution, match="the target's row of node 0"):
        verify.top_down(tree, torch.tensor([[0.4, 0.6, 1.0]] * 3), coins, first_child)


@pytest.mark.parametrize("name", ["k", "law", "target_probs", "draft_probs"])
def test_optimal_acceptance(name):
    row = torch.tensor(ROW)
    right = {"target_probs": row, "draft_probs": row, "k": 2, "law": Law.IID}
    assert verify.optimal_acceptance(**right | {"k": np.int64(2)}) == pytest.approx(1.0)
    wrong = {
        "k": [(1.5, "k = 1.5 is no"), (True, "k = True is no"), (torch.nan, "k = nan is no"), (-1, "-1")],
        "law": [("ii", "'ii' is not a law"), (None, "None is not a law"), ([], r"\[\] is not a law")],
    }  # fmt: skip
    rows = [(None, "None is a"), (ROW, "is a list"), (row.numpy(), "is a ndarray")]
    for value, says in wrong.get(name, rows):
        with pytest.raises((InvalidTree, InvalidArgument), match=says):
            verify.optimal_acceptance(**right | {name: value})
    if name in ("target_probs", "draft_probs"):
        for numbers, says in NUMBERS.values():
            with pytest.raises(NotADistribution, match=f"{name} is not a distribution: .*{says}"):
                verify.optimal_acceptance(**right | {name: torch.tensor(numbers)})


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_odd_but_valid_rows(rule):
    """Half precision, exact zeros, one token, lists and mappings, gradients."""
    law = any_law(rule)
    halves = torch.eye(3) if rule.one_hot else torch.tensor([[0.5, 0.5, 0.0]] * 3)
    tree = tree_of(law, [0.5, 0.5, 0.0], tokens=(0, 1, 0))
    for rows in (
        *(halves.to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)),
        list(halves),
        dict(enumerate(halves)),
        halves.clone().requires_grad_(),
        halves.T.contiguous().T,
    ):
        assert rule(tree, rows, TorchCoins(0)).bonus in range(3)
    one = tree_of(law, [1.0], tokens=(0, 0))
    assert rule(one, torch.ones(2, 1), TorchCoins(0)).bonus == 0


def test_a_row_is_read_once_and_only_if_it_is_visited():
    reads = []

    class Rows:
        def __getitem__(self, node):
            reads.append(node)
            return torch.tensor(ROW)

    rows = TargetRows(tree_of(Law.IID), Rows())
    assert rows[1] is rows[1]
    assert reads == [1]
    assert TargetRows.of(rows._tree, rows) is rows
    assert TargetRows.of(tree_of(Law.IID), rows) is not rows


def test_rows_of_sampling_are_not_summed(monkeypatch):
    """They are distributions by construction; rows of a subclass of `Sampling` are checked."""

    class Doubled(Sampling):
        def __call__(self, logits):
            return 2 * super().__call__(logits)

    tree, logits = tree_of(Law.IID), torch.zeros(3, 3)
    with pytest.raises(NotADistribution, match=r"target's row of node 0 .* sum to 2"):
        verify.rrs(tree, Doubled().rows(logits), TorchCoins(0))
    checked = []
    monkeypatch.setattr(
        "treespec.tree.checked_rows.require_distribution", lambda row, name: checked.append(name)
    )
    verify.rrs(tree, Sampling().rows(logits), TorchCoins(0))
    assert not [name for name in checked if name.startswith("the target's")]
    verify.rrs(tree, logits.softmax(-1), TorchCoins(0))
    assert [name for name in checked if name.startswith("the target's")]
    assert len(checked) == len(set(checked))  # draft rows once, although two calls read them


def test_greedy_reads_tokens_of_logits_without_making_rows(monkeypatch):
    cold, rule = Sampling(temperature=0.0), verify.greedy
    tree = TokenTree(TreeShape((-1, 0, 0, 2)), torch.tensor([0, 2, 1, 0]), None, Law.DETERMINISTIC)
    logits = torch.tensor([[0, 3, 3], [5, 0, 0], [2, 1, 2], [0, 0, 1.0]]).bfloat16()
    by_rows = rule(tree, cold(logits), TorchCoins(0))
    with monkeypatch.context() as patch:
        patch.setattr(Sampling, "__call__", None)
        assert rule(tree, cold.rows(logits), TorchCoins(0)) == by_rows == Verdict((0, 2, 3), 2)
    logits[2, 2] = -torch.inf
    with pytest.raises(NonFiniteLogits, match="node 2"):
        rule(tree, cold.rows(logits), TorchCoins(0))
    with pytest.raises(RefusedTree, match=r"node 1 has the token 2, .* ends at token 1"):
        rule(tree, cold.rows(logits[:, :2]), TorchCoins(0))
    with pytest.raises(RefusedTree, match=r"needs one-hot target rows .* has probability 0.5"):
        rule(tree, Sampling().rows(torch.tensor([[0.0, 0.0, -1e4]] * 4)), TorchCoins(0))

    class Doubled(Sampling):
        def __call__(self, logits):
            return 2 * super().__call__(logits)

    with pytest.raises(NotADistribution, match=r"target's row of node 0 .* sum to 2"):
        rule(tree, Doubled(temperature=0.0).rows(torch.eye(3)[[0] * 4]), TorchCoins(0))


def test_draft_rows_that_a_drafter_vouches_for_are_not_checked():
    tree = tree_of(Law.IID, [0.4, 0.6, 1.0])
    assert not tree.is_vouched
    assert not tree.look_at_rows()
    assert tree.vouched() is tree
    assert tree.is_vouched
    assert verify.rrs(tree, torch.tensor([ROW] * 3), TorchCoins(0)).bonus in range(3)
    valid = tree_of(Law.IID)
    assert valid.look_at_rows()
    assert valid.is_vouched


def test_coins_of_any_kind_that_accept_and_draw():
    rows = torch.tensor([ROW] * 3)
    assert verify.rrs(tree_of(Law.IID), rows, EnumeratingCoins()).bonus in range(3)
