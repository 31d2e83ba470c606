"""Nodes with several groups of children: the rules that cover them, and mistakes that bias the output."""

from functools import partial

import pytest
import torch
from mixed import Mixed, Part

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import InvalidTree, NotADistribution, RefusedTree, Unavailable
from treespec.testing import (
    TabularModel,
    acceptance,
    assert_lossless,
    output_law,
    random_table,
    step_law,
    target_law,
)
from treespec.testing.exact import AsGiven, exactly

IID, WITHOUT, SURE = Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC
IN_TURN = [verify.rrs, verify.rrsw, verify.traversal]
MIXING = [rule for rule in verify.RULES.values() if rule.mixes and rule.lossless]
EVEN, OTHER, SPOILT = (0.3, 0.4, 0.3), (0.5, 0.3, 0.2), (0.6, 0.3, 0.1)
SECOND = (0.1, 0.3, 0.6)


def toy(row):
    """A tabular model with the same row in every context."""
    logits = torch.tensor(row, dtype=torch.float64).log()
    return TabularModel(lambda context: logits, len(row))


def drafted_by(make):
    """A `draft_with` for the oracles that ignores the requested tree."""
    return lambda draft, shape, law, sampling: make(draft, sampling)


def first_token(rule, target, *parts, tokens=lambda *_: [0]):
    """The law of the next token, for one node with these groups."""
    found = step_law(
        rule, TreeShape.chain(1), IID, target=toy(target), draft=toy(target),
        draft_with=lambda *_: Mixed(parts, tokens=tokens),
    )  # fmt: skip
    return found.probs.sum(-1).tolist()


def accepted(rule, target, *parts):
    """The probability that a draft token is accepted, for one node with these groups."""
    shape = TreeShape.expansion([sum(part.count for part in parts)])
    found = acceptance(
        rule, shape, IID, target=toy(target), draft=toy(target),
        draft_with=lambda *_: Mixed(parts, tokens=lambda *_: [0]),
    )  # fmt: skip
    return found.expected


NODES = {
    "drawn, then sure": lambda q, r: (Part(IID, 2, q), Part(SURE, 1)),
    "sure, then drawn": lambda q, r: (Part(SURE, 2), Part(WITHOUT, 1, q)),
    "drawn beside the sure": lambda q, r: (Part(WITHOUT, 2, q, beside=True), Part(SURE, 1)),
    "two sources": lambda q, r: (Part(IID, 1, q), Part(WITHOUT, 2, r)),
    "three": lambda q, r: (Part(IID, 1, q), Part(IID, 1, r), Part(SURE, 1)),
    "a group of three": lambda q, r: (Part(WITHOUT, 3, q), Part(SURE, 1)),
    "sure twice": lambda q, r: (Part(SURE, 1), Part(SURE, 2)),
}


def second_source(draft, sampling):
    """Rows of another source, of the same kind and precision as those of the first."""
    table = random_table(3, 77)

    def row(context):
        probs = table(context).softmax(-1)
        return (probs if isinstance(sampling, AsGiven) else probs.log()).to(draft.row((0,)).dtype)

    return row


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("rule", IN_TURN, ids=str)
def test_mixed_nodes_on_adversarial_tables(rule, node):
    """One node of each kind, on all tables on which rules of this field are known to fail."""

    def make(draft, sampling):
        other = TabularModel(second_source(draft, sampling), 3)
        return Mixed(NODES[node](draft, other), sampling=sampling)

    proof = assert_lossless(
        rule, shapes=[TreeShape.chain(1)], laws=[next(iter(rule.laws))], tables=1,
        draft_with=drafted_by(make),
    )  # fmt: skip
    assert proof.cases > 20
    assert proof.largest_error < 1e-14


def levels(rule, q, r):
    """A tree of two levels with mixed inner nodes, below both drawn and deterministic children."""
    law = WITHOUT if rule is verify.rrsw else IID
    first = Part(law, 1, q), Part(SURE, 1)
    below = Part(IID, 1, r), Part(SURE, 1)
    return Mixed(first, below, grows=((0, 1),), vocab=2)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "rule",
    [pytest.param(r, marks=[pytest.mark.slow] * (r is verify.naive)) for r in MIXING],
    ids=str,
)
def test_several_steps_keep_the_law(rule):
    """All outcomes of all coins through `decode`, with mixed nodes below the root too."""
    target, q, r = (TabularModel(random_table(2, seed), 2) for seed in (3, 4, 5))
    sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling()
    found = output_law(
        rule, TreeShape.chain(1), IID, target=target, draft=q, tokens=3, sampling=sampling,
        draft_with=lambda *_: levels(rule, q, r),
    )  # fmt: skip
    right = target_law(target, (0,), 3, sampling)
    assert rule.one_hot or found.runs > 50
    assert float((found.probs - right).abs().max()) <= 1e-12


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", IN_TURN, ids=str)
def test_two_levels_without_any_error(rule):
    """A step of two levels with a group of two children, in fractions."""
    other = TabularModel(random_table(2, 5), 2)

    def make(draft, sampling):
        rows = exactly(other, Sampling(), 12)
        first = Part(WITHOUT, 2, draft), Part(SURE, 1)
        return Mixed(
            first, (Part(IID, 1, rows), Part(SURE, 1)), grows=((0, 2),), vocab=2, sampling=sampling
        )

    proof = assert_lossless(
        rule, shapes=[TreeShape.chain(2)], laws=[next(iter(rule.laws))], tables=1, vocab=2, exact=True,
        draft_with=drafted_by(make),
    )  # fmt: skip
    assert proof.cases > 10
    assert proof.largest_error == 0


@pytest.mark.parametrize("rule", IN_TURN, ids=str)
def test_a_child_drawn_beside_a_sure_one_is_tested_against_its_own_row(rule):
    """q~ is q without T; tested against the whole q after T, the law would be .5, .375, .125."""
    q = toy(SPOILT)
    right = partial(Part, IID, 1, q, beside=True)
    law = first_token(rule, OTHER, Part(SURE, 1), right())
    assert law == pytest.approx(OTHER, abs=1e-12)
    wrong = first_token(rule, OTHER, Part(SURE, 1), right(said_whole=True))
    assert wrong == pytest.approx((0.5, 0.375, 0.125), abs=1e-12)


@pytest.mark.parametrize("rule", IN_TURN, ids=str)
def test_drawn_children_first_and_beside_the_sure_accept_most(rule):
    """Acceptance is .95; with T first .875; with draws from the whole row .70."""
    q, sure = toy(SPOILT), Part(SURE, 1)
    beside = Part(IID, 1, q, beside=True)
    assert accepted(rule, EVEN, beside, sure) == pytest.approx(0.95, abs=1e-12)
    assert accepted(rule, EVEN, sure, beside) == pytest.approx(0.875, abs=1e-12)
    assert accepted(rule, EVEN, Part(IID, 1, q), sure) == pytest.approx(0.70, abs=1e-12)


@pytest.mark.parametrize("rule", IN_TURN, ids=str)
def test_children_of_two_sources_each_have_their_own_row(rule):
    """Acceptance is .97; with the first row for both, the law would be .3, .3917, .3083."""
    q, r = toy(SPOILT), toy(SECOND)
    own = Part(IID, 1, q), Part(IID, 1, r)
    assert accepted(rule, EVEN, *own) == pytest.approx(0.97, abs=1e-12)
    assert first_token(rule, EVEN, *own) == pytest.approx(EVEN, abs=1e-12)
    wrong = first_token(rule, EVEN, own[0], Part(IID, 1, r, said=q))
    assert wrong == pytest.approx((0.3, 0.3 + 11 / 120, 0.3 + 1 / 120), abs=1e-12)


@pytest.mark.parametrize("rule", IN_TURN, ids=str)
def test_equal_draws_and_sure_children_are_tested_separately(rule):
    """Two i.i.d. draws, equal or not, and a sure child: the oracle catches rules that merge equals."""
    q = toy(SPOILT)
    assert first_token(rule, EVEN, Part(IID, 2, q), Part(SURE, 1)) == pytest.approx(EVEN, abs=1e-12)

    def merging(tree, probs, coins):
        """Keep the first of equal children, whichever groups they belong to."""
        ids, laws, rows = [tree.token_ids[0]], [], []
        for group in tree.groups_of(0):
            new = [tree.token_ids[c] for c in group.children if tree.token_ids[c] not in ids[1:]]
            new = list(dict.fromkeys(new))
            if new:
                laws.append((group.law, len(new)))
                rows += [] if group.row is None else [tree.draft_probs[group.row]]
            ids += new
        shape = TreeShape.expansion([len(ids) - 1])
        entries = [laws, *(() for _ in ids[1:])]
        merged = TokenTree(shape, torch.tensor(ids), torch.stack(rows), entries)
        verdict = rule(merged, probs, coins)
        if not verdict.accepted:
            return verdict
        node = tree.token_ids[1:].index(ids[verdict.path[1]]) + 1
        return type(verdict)((0, node), verdict.bonus)

    wrong = first_token(merging, EVEN, Part(IID, 2, q), Part(SURE, 1))
    assert max(abs(a - b) for a, b in zip(wrong, EVEN, strict=True)) > 0.01


def mixed_tree(**changes):
    """A root with two drawn children and a deterministic one."""
    parts = {
        "shape": TreeShape.expansion([3]),
        "tokens": torch.tensor([0, 1, 1, 2]),
        "draft_probs": torch.tensor([SPOILT]),
        "law": [[(IID, 2), ("deterministic", 1)], (), (), ()],
    }
    return TokenTree(**(parts | changes))


def test_every_other_rule_refuses_mixed_trees_by_name():
    tree, rows = mixed_tree(), torch.tensor([EVEN]).expand(4, -1)
    for name, rule in verify.RULES.items():
        reason = rule.covers(tree.shape, tree.law, 3)
        if rule.mixes:
            assert reason is None
            if not rule.one_hot:
                assert rule(tree, rows, TorchCoins(0)).path[0] == 0
            continue
        assert f"'{name}' does not cover mixed trees" in reason
        with pytest.raises(RefusedTree, match=f"'{name}' does not cover mixed trees"):
            rule(tree, rows, TorchCoins(0))
    assert {str(rule) for rule in MIXING} == {"rrs", "rrsw", "traversal", "naive", "greedy"}


def test_groups_of_laws_that_cannot_be_tested_in_turn_are_refused():
    hub = [[(Law.HUB, 2), (SURE, 1)], (), (), ()]
    reason = verify.rrs.covers(TreeShape.expansion([3]), hub)
    assert "of law hub in mixed trees" in reason
    assert verify.naive.covers(TreeShape.expansion([3]), hub) is None
    wide = [[(WITHOUT, 3), (SURE, 1)], (), (), (), ()]
    assert "vocabulary has 2" in verify.rrs.covers(TreeShape.expansion([4]), wide, 2)


def test_repeated_children_of_a_distinct_group_are_refused():
    tree = mixed_tree(law=[[(WITHOUT, 2), (SURE, 1)], (), (), ()])
    with pytest.raises(RefusedTree, match=r"distinct children, but node 0 has the tokens \[1, 1\]"):
        verify.rrs(tree, torch.tensor([EVEN]).expand(4, -1), TorchCoins(0))


def test_a_tree_tells_its_groups():
    tree = mixed_tree()
    assert tree.is_mixed
    assert tree.laws == {IID, SURE}
    assert tree.groups_of(0) == ((IID, (1, 2), 0), (SURE, (3,), None))
    assert tree.groups_of(1) == ()
    plain = TokenTree(
        TreeShape((-1, 0, 0, 1)),
        torch.tensor([0, 1, 2, 2]),
        torch.eye(3)[:2],
        [IID, SURE, IID, IID],
    )
    assert not plain.is_mixed
    assert plain.groups_of(0) == ((IID, (1, 2), 0),)
    assert plain.groups_of(1) == ((SURE, (3,), None),)
    two = TokenTree(
        TreeShape((-1, 0, 0, 1, 1)), torch.tensor([0, 1, 2, 2, 1]), torch.eye(3),
        [[(IID, 1), (IID, 1)], [(SURE, 1), (WITHOUT, 1)], (), (), ()],
    )  # fmt: skip
    assert [group.row for node in (0, 1) for group in two.groups_of(node)] == [0, 1, None, 2]


@pytest.mark.usefixtures("without_shape_checks")  # which check random items of lists
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"law": [[(IID, 3), (SURE, 1)], (), (), ()]},
            "groups of 4 children in all, but the node has 3",
        ),
        (
            {"law": [[(IID, 0), (SURE, 3)], (), (), ()]},
            "a law and the number of children, at least 1",
        ),
        ({"law": [[IID, (SURE, 1)], (), (), ()]}, "a law and the number of children"),
        ({"law": [[("other", 2), (SURE, 1)], (), (), ()]}, r"law\[0\]\[0\] = 'other' is not a law"),
        ({"law": [[(IID, 2), (IID, 1)], (), (), ()]}, "the 2 groups of drawn children"),
        ({"draft_probs": None}, "children of law iid need draft_probs"),
        ({"tokens": torch.tensor([0, 1, 1, 3])}, "the rows of draft_probs end at token 2"),
    ],
)
def test_groups_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(InvalidTree, match=message):
        mixed_tree(**changes)


def test_a_mixed_tree_has_no_single_law():
    tree = mixed_tree()
    with pytest.raises(InvalidTree, match="use groups_of"):
        tree.law_of(0)
    with pytest.raises(InvalidTree, match="mixed tree"):
        tree.draft_probs_of(0)


def test_every_row_of_a_node_is_checked():
    rows = torch.tensor([SPOILT, (0.5, 0.5, 0.5)])
    law = [[(IID, 2), (WITHOUT, 1)], (), (), ()]
    tree = mixed_tree(draft_probs=rows, law=law)
    assert not tree.look_at_rows()
    assert not tree.is_vouched
    with pytest.raises(NotADistribution, match="row of node 0"):  # token 1 is never accepted
        verify.rrs(tree, torch.tensor([(0.5, 0.0, 0.5)]).expand(4, -1), TorchCoins(0))
    assert mixed_tree().look_at_rows()
    assert tree.vouched().is_vouched


def test_kernels_for_one_law_refuse_mixed_trees():
    pytest.importorskip("triton")
    with pytest.raises(Unavailable, match="mixed trees: use on_host"):
        verify.fused(verify.rrs)(mixed_tree(), torch.tensor([EVEN]).expand(4, -1), TorchCoins(0))
