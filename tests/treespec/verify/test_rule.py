"""What every rule shares: the walk from the root, refusals of trees, pickling."""

import pickle

import pytest
import torch

from treespec import Law, TokenTree, TorchCoins, TreeShape, Verdict, verify
from treespec.errors import RefusedTree
from treespec.verify.rule import ratio


def siblings(law, *tokens, draft):
    """A root with these children, all drawn from `draft`."""
    shape = TreeShape.expansion([len(tokens)])
    return TokenTree(shape, torch.tensor([0, *tokens]), torch.tensor([draft]), law)


def test_rules_pickle_by_name():
    for rule in verify.RULES.values():
        assert pickle.loads(pickle.dumps(rule)) is rule


def mixed_tree():
    """Two children drawn at the root, one chosen without chance below the first of them."""
    shape = TreeShape.from_parents([-1, 0, 0, 1])
    rows = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype=torch.float64)
    laws = [Law.IID, Law.DETERMINISTIC, Law.IID, Law.IID]
    return TokenTree(shape, torch.tensor([0, 1, 2, 0]), rows, laws)


def test_no_draft_distribution_where_nothing_was_drawn():
    tree, seen = mixed_tree(), []

    def first_child(target_probs, draft_probs, children, coins):
        seen.append((draft_probs, children))
        return verify.NodeChoice(child=0)

    rows = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    assert verify.top_down(tree, rows, TorchCoins(0), first_child).path == (0, 1, 3)
    (drawn, children), (chosen, only) = seen
    assert torch.equal(drawn, tree.draft_probs[0])
    assert children == [1, 2]
    assert chosen is None
    assert only == [0]


@pytest.mark.parametrize("rule", [verify.rrs, verify.rrsw, verify.onehot], ids=str)
def test_one_foreign_node_is_enough_to_refuse(rule):
    foreign = {Law.IID, Law.DETERMINISTIC} - rule.laws
    with pytest.raises(RefusedTree, match=f"drawn {', '.join(sorted(map(str, foreign)))}: "):
        rule(mixed_tree(), torch.full((4, 3), 1 / 3), TorchCoins(0))


@pytest.mark.parametrize("rule", [verify.chain, verify.rrs, verify.rrsw, verify.naive], ids=str)
def test_vocabularies_of_different_length(rule):
    tree = siblings(sorted(rule.laws, key=str)[-1], 1, draft=[0.2, 0.3, 0.5])
    with pytest.raises(RefusedTree, match="node 0 has 3 tokens, the target's has 4"):
        rule(tree, torch.full((2, 4), 1 / 4), TorchCoins(0))


class Rejecting(TorchCoins):
    def accept(self, probability):
        return False


@pytest.mark.parametrize(
    ("rule", "law", "tokens"),
    [
        (verify.chain, Law.IID, [2]),
        (verify.chain, Law.WITHOUT_REPLACEMENT, [2]),
        (verify.rrs, Law.IID, [0, 2]),
        (verify.rrsw, Law.WITHOUT_REPLACEMENT, [0, 2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("target", [[0.2, 0.2, 0.6], [0.6, 0.4, 0.0]])
def test_a_child_that_cannot_have_been_drawn(rule, law, tokens, target):
    """Its ratio is infinite (or 0 / 0): it would always be accepted, and the output biased."""
    tree, rows = siblings(law, *tokens, draft=[0.5, 0.5, 0.0]), torch.tensor([target] * 3)
    with pytest.raises(RefusedTree, match=r"node 0.*token 2 cannot.*draft probability is 0"):
        rule(tree, rows, Rejecting(0))


def test_a_ratio_that_overflows_is_no_impossible_child():
    tree = siblings(Law.IID, 1, draft=[1.0, 1e-45])
    assert verify.chain(tree, torch.tensor([[0.5, 0.5]] * 2), TorchCoins(0)).accepted == 1


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ratios_are_finite_however_improbable_the_draft(dtype):
    """Down to the least number of a dtype, which is not a normal one."""
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    for draft in (least, info.tiny, info.eps):
        rows = torch.tensor([0.25, 0.75], dtype=dtype), torch.tensor([1.0, draft], dtype=dtype)
        assert rows[1][1] > 0
        found = float(ratio(*rows, 1))
        assert 1 < found < float("inf")
    assert float(ratio(torch.tensor([1.0, 0.0], dtype=dtype), rows[1], 1)) == 0


@pytest.mark.parametrize("rule", [verify.block, verify.traversal, verify.gbv], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_nothing_times_a_ratio_that_overflows_is_nothing(rule, dtype):
    """Below a token that the target rules out, a ratio beyond the dtype's numbers: 0 times inf is NaN."""
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    tree = TokenTree(
        TreeShape.chain(3),
        torch.tensor([0, 0, 1, 0]),
        torch.tensor([[0.5, 0.5], [1.0, least], [0.5, 0.5]], dtype=dtype),
        Law.IID,
    )
    rows = torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], dtype=dtype)
    for seed in range(5):
        assert rule(tree, rows, TorchCoins(seed)) == Verdict((0,), 1)


def test_rrsw_goes_by_the_draft_without_elder_siblings():
    """The support is exhausted after token 0: the rest was drawn uniformly, and is no impossible child."""
    rows = torch.tensor([[0.2, 0.3, 0.5]] * 3)

    def tree(*tokens):
        return siblings(Law.WITHOUT_REPLACEMENT, *tokens, draft=[1.0, 0.0, 0.0])

    assert verify.rrsw(tree(0, 2), rows, Rejecting(0)).path == (0,)
    with pytest.raises(RefusedTree, match="token 1 cannot have been drawn"):
        verify.rrsw(tree(1, 0), rows, Rejecting(0))


def test_siblings_drawn_without_replacement_do_not_repeat():
    tree = siblings(Law.WITHOUT_REPLACEMENT, 1, 1, draft=[0.2, 0.3, 0.5])
    with pytest.raises(RefusedTree, match=r"'rrsw' needs distinct children.*node 0.*\[1, 1\]"):
        verify.rrsw(tree, torch.full((3, 3), 1 / 3), TorchCoins(0))
