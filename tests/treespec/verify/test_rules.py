import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, Verdict, verify
from treespec.draft import ModelDrafter
from treespec.errors import RefusedTree
from treespec.testing import (
    NotLossless,
    TabularModel,
    assert_lossless,
    outcomes,
    plane_trees,
    random_table,
)

ALL = list(verify.RULES.values())
SAMPLING = [rule for rule in ALL if not rule.one_hot]
BIG = [TreeShape.expansion(k) for k in ([2, 1], [1, 3], [4], [1, 1, 1, 1])]
"""Trees of five nodes that join the exhaustive set of up to four."""


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", ALL, ids=str)
def test_lossless_on_all_trees_up_to_four_nodes(rule):
    proof = assert_lossless(rule)
    print(f"{rule}: {proof.cases} cases, {proof.runs} runs, error {proof.largest_error:.2g}")
    assert proof.cases >= 90
    assert proof.runs >= proof.cases


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", ALL, ids=str)
def test_lossless_on_some_larger_trees(rule):
    shapes = [shape for shape in BIG if rule is not verify.chain or shape.is_chain]
    assert assert_lossless(rule, shapes=shapes, tables=1, seed=7).runs > 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", SAMPLING, ids=str)
def test_every_rule_is_greedy_at_temperature_zero(rule):
    cold = Sampling(temperature=0.0)
    for seed in range(20):
        target = random_table(3, seed)
        draft = TabularModel(random_table(3, 100 + seed), 3)
        for law in rule.laws:
            for shape in plane_trees(4):
                if max(map(len, shape.children)) > 2 or (
                    rule is verify.chain and not shape.is_chain
                ):
                    continue
                drafter = ModelDrafter(draft, shape, law, Sampling())
                drafter.prefill(torch.tensor([0]))
                tree = drafter.propose(TorchCoins(seed))
                contexts = [tuple(tree.token_ids[n] for n in shape.path(i)) for i in range(4)]
                rows = cold(torch.stack([target(c) for c in contexts]))
                assert rule(tree, rows, TorchCoins(1)) == verify.greedy(tree, rows, TorchCoins(2))


def tree_of(law, tokens, parents, vocab=3):
    shape = TreeShape.from_parents(parents)
    rows = torch.full((len(shape.internal), vocab), 1 / vocab, dtype=torch.float64)
    return TokenTree(shape, torch.tensor(tokens), rows, law)


def test_greedy_by_hand():
    rows = torch.eye(3)[[1, 2, 0, 2]]
    tree = tree_of(Law.DETERMINISTIC, [0, 1, 0, 2], [-1, 0, 0, 1])
    assert verify.greedy(tree, rows, TorchCoins(0)) == Verdict(path=(0, 1, 3), bonus=2)
    tree = tree_of(Law.DETERMINISTIC, [0, 2, 0, 2], [-1, 0, 0, 1])
    assert verify.greedy(tree, rows, TorchCoins(0)) == Verdict(path=(0,), bonus=1)


def test_greedy_refuses_rows_that_are_not_one_hot():
    tree = tree_of(Law.IID, [0, 1], [-1, 0])
    with pytest.raises(
        RefusedTree, match=r"one-hot target rows .temperature 0..*node 0 has probability 0.5"
    ):
        verify.greedy(tree, torch.full((2, 2), 0.5), TorchCoins(0))


def acceptance(rule, law, tokens, probs, draft):
    """P(some child accepted) at the root of a tree of depth one, given the drafted tokens."""
    shape = TreeShape.expansion([len(tokens)])
    tree = TokenTree(shape, torch.tensor([0, *tokens]), draft[None], law)
    rows = probs.expand(shape.size, -1)
    return sum(w for w, v in outcomes(lambda coins: rule(tree, rows, coins)) if v.accepted)


def test_acceptance_by_hand():
    p, q = (torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.3, 0.2], [0.2, 0.6, 0.2]))
    assert acceptance(verify.chain, Law.IID, [1], p, q) == pytest.approx(0.5)
    assert acceptance(verify.rrs, Law.IID, [1, 1], p, q) == pytest.approx(0.5)
    assert acceptance(verify.rrs, Law.IID, [1, 0], p, q) == pytest.approx(1.0)
    # After token 1 is rejected p becomes (1, 0, 0) and q becomes (0.5, 0, 0.5).
    assert acceptance(verify.rrsw, Law.WITHOUT_REPLACEMENT, [1, 2], p, q) == pytest.approx(0.5)
    assert acceptance(verify.naive, Law.IID, [1, 2], p, q) == pytest.approx(0.5)
    assert acceptance(verify.onehot, Law.DETERMINISTIC, [1, 2], p, q) == pytest.approx(0.5)


@given(st.integers(0, 10_000))
def test_rrsw_accepts_always_when_children_cover_the_support(seed):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    p[3] = 0
    p, q = p / p.sum(), q / q.sum()
    order = torch.randperm(4, generator=generator).tolist()
    tokens = order[: max(order.index(t) for t in range(3)) + 1]
    assert acceptance(verify.rrsw, Law.WITHOUT_REPLACEMENT, tokens, p, q) == pytest.approx(1.0)


@given(st.integers(0, 10_000))
def test_single_child_acceptance_is_one_minus_total_variation(seed):
    p, q = torch.rand(2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    p, q = p / p.sum(), q / q.sum()
    expected = float(torch.minimum(p, q).sum())
    cases = [(verify.chain, Law.IID), (verify.rrs, Law.IID), (verify.rrsw, Law.WITHOUT_REPLACEMENT)]
    for rule, law in cases:
        mean = sum(float(q[x]) * acceptance(rule, law, [x], p, q) for x in range(5))
        assert mean == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rule", "law", "covered"),
    [
        (verify.rrs, Law.DETERMINISTIC, "iid"),
        (verify.rrs, Law.WITHOUT_REPLACEMENT, "iid"),
        (verify.rrsw, Law.IID, "without_replacement"),
        (verify.onehot, Law.IID, "deterministic"),
        (verify.chain, Law.DETERMINISTIC, "iid, without_replacement"),
    ],
    ids=str,
)
def test_a_law_that_a_rule_does_not_cover(rule, law, covered):
    tree = tree_of(law, [0, 1], [-1, 0])
    with pytest.raises(RefusedTree, match=f"'{rule}'.*drawn {law}.*for {covered} only"):
        rule(tree, torch.full((2, 3), 1 / 3), TorchCoins(0))


def test_shapes_that_a_rule_does_not_cover():
    rows = torch.full((3, 3), 1 / 3)
    with pytest.raises(RefusedTree, match="'chain' needs a chain"):
        verify.chain(tree_of(Law.IID, [0, 1, 2], [-1, 0, 0]), rows, TorchCoins(0))
    with pytest.raises(RefusedTree, match=r"'onehot' needs distinct children.*node 0.*\[1, 1\]"):
        verify.onehot(tree_of(Law.DETERMINISTIC, [0, 1, 1], [-1, 0, 0]), rows, TorchCoins(0))


@pytest.mark.parametrize("rule", SAMPLING, ids=str)
def test_rules_change_nothing_that_they_are_given(rule):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1, 2], [-1, 0, 1])
    rows = Sampling()(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    before = (rows.clone(), tree.tokens.clone(), tree.draft_probs.clone())
    for seed in range(50):
        rule(tree, rows, TorchCoins(seed))
    for now, then in zip((rows, tree.tokens, tree.draft_probs), before, strict=True):
        assert torch.equal(now, then)


def test_rules_visit_only_the_nodes_on_their_way():
    class Watched:
        def __init__(self, rows):
            self.rows, self.asked = rows, set()

        def __getitem__(self, node):
            self.asked.add(node)
            return self.rows[node]

    tree = tree_of(Law.IID, [0, *[1, 2] * 7], [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    for rule in (verify.rrs, verify.naive):
        rows = Watched(torch.full((15, 3), 1 / 3, dtype=torch.float64))
        verdict = rule(tree, rows, TorchCoins(3))
        assert rows.asked == set(verdict.path)


def test_a_residual_without_mass_keeps_the_target():
    """p and q differ by rounding only, and the coin falls on the wrong side."""

    class AlwaysReject(TorchCoins):
        def accept(self, probability):
            return False

    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    for rule, law in (
        (verify.rrs, Law.IID),
        (verify.rrsw, Law.WITHOUT_REPLACEMENT),
        (verify.chain, Law.IID),
    ):
        tree = TokenTree(TreeShape.chain(1), torch.tensor([0, 1]), p[None], law)
        assert rule(tree, p.expand(2, -1), AlwaysReject(0)).bonus in (0, 1)
    sure = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    tree = tree_of(Law.DETERMINISTIC, [0, 0], [-1, 0])
    assert verify.onehot(tree, sure.expand(2, -1), AlwaysReject(0)).bonus == 0


def test_rules_say_what_they_are():
    assert set(verify.RULES) == {"greedy", "naive", "onehot", "chain", "rrs", "rrsw"}
    for name, rule in verify.RULES.items():
        assert getattr(verify, name) is rule
        assert rule.lossless
        assert rule.reference.startswith("arXiv:")
        assert rule.__doc__.strip()
        assert "lossless" in repr(rule)


def test_nothing_enumerated_is_no_proof():
    with pytest.raises(NotLossless, match="nothing was enumerated"):
        assert_lossless(verify.chain, shapes=[TreeShape.kary(2, 2)])
    with pytest.raises(NotLossless, match="nothing was enumerated"):
        assert_lossless(verify.rrs, shapes=[])
