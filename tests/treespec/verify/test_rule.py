"""What all rules share: the walk from the root, refusals of trees, pickling."""

import pickle

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, Verdict, verify
from treespec.draft import ModelDrafter
from treespec.errors import InvalidTree, RefusedTree
from treespec.target import ModelTarget
from treespec.testing import TabularModel, plane_trees, random_table
from treespec.verify.rule import ratio


def siblings(law, *tokens, draft):
    """A root with these children, all drawn from `draft`."""
    shape = TreeShape.expansion([len(tokens)])
    return TokenTree(shape, torch.tensor([0, *tokens]), torch.tensor([draft]), law)


def test_rules_pickle_by_name():
    for rule in verify.RULES.values():
        assert pickle.loads(pickle.dumps(rule)) is rule


def mixed_tree():
    """Two children drawn at the root, and one deterministic child below the first of them."""
    shape = TreeShape.from_parents([-1, 0, 0, 1])
    rows = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype=torch.float64)
    laws = [Law.IID, Law.DETERMINISTIC, Law.IID, Law.IID]
    return TokenTree(shape, torch.tensor([0, 1, 2, 0]), rows, laws)


def test_no_draft_distribution_where_nothing_was_drawn():
    tree, calls = mixed_tree(), []

    def first_child(target_probs, draft_probs, children, coins):
        calls.append((draft_probs, children))
        return verify.NodeChoice(child=0)

    rows = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    assert verify.top_down(tree, rows, TorchCoins(0), first_child).path == (0, 1, 3)
    (drawn_probs, drawn_children), (sure_probs, sure_children) = calls
    assert torch.equal(drawn_probs, tree.draft_probs[0])
    assert drawn_children == [1, 2]
    assert sure_probs is None
    assert sure_children == [0]


@pytest.mark.parametrize("rule", [verify.rrs, verify.rrsw, verify.onehot], ids=str)
def test_one_foreign_node_is_enough_to_refuse(rule):
    foreign = {Law.IID, Law.DETERMINISTIC} - rule.laws
    with pytest.raises(RefusedTree, match=f"of law {', '.join(sorted(map(str, foreign)))}: "):
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
    """Its ratio is infinite (or 0 / 0), so it would always be accepted and bias the output."""
    tree, rows = (
        siblings(law, *tokens, draft=[0.5, 0.5, 0.0]),
        torch.tensor([target] * (len(tokens) + 1)),
    )
    with pytest.raises(RefusedTree, match=r"node 0.*token 2 cannot.*draft probability is 0"):
        rule(tree, rows, Rejecting(0))


def test_a_child_whose_ratio_overflows_is_not_refused():
    tree = siblings(Law.IID, 1, draft=[1.0, 1e-45])
    assert verify.chain(tree, torch.tensor([[0.5, 0.5]] * 2), TorchCoins(0)).accepted == 1


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ratios_are_finite_however_improbable_the_draft(dtype):
    """Down to the smallest number of a dtype, which is subnormal."""
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    for draft in (smallest, info.tiny, info.eps):
        rows = torch.tensor([0.25, 0.75], dtype=dtype), torch.tensor([1.0, draft], dtype=dtype)
        assert rows[1][1] > 0
        found = float(ratio(*rows, 1))
        assert 1 < found < float("inf")
    assert float(ratio(torch.tensor([1.0, 0.0], dtype=dtype), rows[1], 1)) == 0


@pytest.mark.parametrize("rule", [verify.block, verify.traversal, verify.gbv], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_share_of_zero_stays_zero_when_the_ratio_overflows(rule, dtype):
    """Below a token of target probability 0, a ratio overflows the dtype: 0 times inf would be NaN."""
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    tree = TokenTree(
        TreeShape.chain(3),
        torch.tensor([0, 0, 1, 0]),
        torch.tensor([[0.5, 0.5], [1.0, smallest], [0.5, 0.5]], dtype=dtype),
        Law.IID,
    )
    rows = torch.tensor([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], dtype=dtype)
    for seed in range(5):
        assert rule(tree, rows, TorchCoins(seed)) == Verdict((0,), 1)


def test_rrsw_uses_the_draft_without_earlier_siblings():
    """The support is exhausted after token 0: token 2 was drawn uniformly, so it is not impossible."""
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


SHAPES = [shape for size in range(1, 6) for shape in plane_trees(size)]
SHAPES += [TreeShape.chain(5), TreeShape.independent_chains(2, 3), TreeShape.expansion([3, 2])]


def drafted(shape, law):
    """A tree drafted by the drafter's own code, and target logits; None if the law gives no such tree."""
    draft, target = (TabularModel(random_table(4, seed), 4) for seed in (0, 1))
    drafter = ModelDrafter(draft, shape, law, Sampling())
    drafter.prefill(torch.tensor([0]))
    try:
        tree = drafter.propose(TorchCoins(3))
    except InvalidTree:
        return None
    target = ModelTarget(target)
    target.prefill(torch.tensor([0]))
    return tree, target.score(tree).logits


@pytest.mark.parametrize("law", Law, ids=str)
def test_a_rule_covers_exactly_the_trees_that_it_decides_on(law):
    """A law's own limits count too: no rule covers trees that cannot be drafted."""
    for shape in SHAPES:
        draft = drafted(shape, law)
        for rule in verify.RULES.values():
            reason = rule.covers(shape, law)
            if draft is None:
                assert reason, (str(rule), shape)
                continue
            tree, logits = draft
            rows = Sampling(temperature=0.0 if rule.one_hot else 1.0)(logits)
            if reason is None:
                assert rule(tree, rows, TorchCoins(5)).path[0] == 0
                continue
            with pytest.raises(RefusedTree) as caught:
                rule(tree, rows, TorchCoins(5))
            assert str(caught.value) == reason
            assert str(rule) in reason


def test_what_a_rule_covers_can_depend_on_the_vocabulary_and_on_each_node():
    pair = TreeShape.expansion([2])
    assert verify.rrsw.covers(pair, "without_replacement", 2) is None
    assert "vocabulary has 1" in verify.rrsw.covers(pair, "without_replacement", 1)
    assert verify.rrs.covers(pair, "iid", 1) is None
    two, laws = TreeShape.kary(2, 2), [Law.IID, Law.WITHOUT_REPLACEMENT]
    assert verify.traversal.covers(two, [*laws, *laws[:1] * 5]) is None
    assert "both of its laws" in verify.optimal_transport.covers(two, [*laws, *laws[:1] * 5])
    assert verify.on_host(verify.block).covers(two, Law.IID) == verify.block.covers(two, Law.IID)
    with pytest.raises(InvalidTree, match="2 laws for 7 nodes"):
        verify.rrs.covers(two, laws)


def test_a_rule_for_chains_equals_its_counterpart_on_trees():
    for law, rule in verify.chain.on_trees.items():
        for seed in range(20):
            tree = drafted(TreeShape.chain(3), law)[0]
            rows = torch.full((4, 4), 1 / 4)
            assert verify.chain(tree, rows, TorchCoins(seed)) == rule(tree, rows, TorchCoins(seed))
