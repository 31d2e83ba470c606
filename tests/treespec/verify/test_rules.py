"""What each rule accepts, refuses and leaves unchanged; `test_lossless_rules` proves losslessness."""

import itertools
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, Verdict, verify
from treespec.draft import ModelDrafter
from treespec.errors import InvalidSetting, NotADistribution, RefusedTree
from treespec.testing import (
    TabularModel,
    covers,
    outcomes,
    plane_trees,
    random_table,
)

SAMPLING = [rule for rule in verify.RULES.values() if not rule.one_hot]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("rule", SAMPLING, ids=str)
def test_every_rule_is_greedy_at_temperature_zero(rule):
    cold, compared = Sampling(temperature=0.0), 0
    shapes = [*plane_trees(4), TreeShape.independent_chains(2, 2)]
    for seed, law, shape in itertools.product(range(20), rule.laws, shapes):
        if not covers(rule, shape, law, 3):
            continue
        target, draft = random_table(3, seed), TabularModel(random_table(3, 100 + seed), 3)
        drafter = ModelDrafter(draft, shape, law, Sampling())
        drafter.prefill(torch.tensor([0]))
        tree = drafter.propose(TorchCoins(seed))
        contexts = [tuple(tree.token_ids[n] for n in shape.path(i)) for i in range(shape.size)]
        rows = cold(torch.stack([target(c) for c in contexts]))
        cold_text = text_of(tree, rule(tree, rows, TorchCoins(1)))
        greedy_text = text_of(tree, verify.greedy(tree, rows, TorchCoins(2)))
        # Rules that judge whole paths may continue below a sibling with the same token as the first.
        short = min(len(cold_text), len(greedy_text))
        assert cold_text[:short] == greedy_text[:short]
        assert len(cold_text) >= len(greedy_text)
        compared += 1
    assert compared >= 20


def text_of(tree, verdict):
    return [*(tree.token_ids[node] for node in verdict.path[1:]), verdict.bonus]


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
    tree = tree_of(Law.IID, [0, 1], [-1, 0], vocab=2)
    with pytest.raises(
        RefusedTree, match=r"one-hot target rows .temperature 0..*node 0 has probability 0.5"
    ):
        verify.greedy(tree, torch.full((2, 2), 0.5), TorchCoins(0))


def test_greedy_refuses_rows_that_are_nearly_one_hot():
    """A rule that rounded a probability of 0.999999 up to 1 would not be lossless."""
    tree = tree_of(Law.IID, [0, 1], [-1, 0])
    with pytest.raises(RefusedTree, match=r"node 0 has probability 0\.999999"):
        verify.greedy(tree, torch.tensor([[1e-6, 1 - 1e-6, 0.0]] * 2).double(), TorchCoins(0))


def test_lenience_by_hand():
    """Child 0 passes with p / (l q) = 0.25; else the output is drawn from norm([p - l q]+)."""
    target = torch.tensor([0.1, 0.5, 0.4], dtype=torch.float64)
    draft = torch.tensor([[0.8, 0.1, 0.1]], dtype=torch.float64)
    tree = TokenTree(TreeShape.chain(1), torch.tensor([0, 0]), draft, Law.IID)
    law = {}
    for weight, verdict in outcomes(lambda c: verify.lenient(tree, target.expand(2, -1), c)):
        key = verdict.path if verdict.accepted else verdict.bonus
        law[key] = law.get(key, 0.0) + weight
    assert law == pytest.approx({(0, 1): 0.25, 1: 0.75 * 0.45 / 0.8, 2: 0.75 * 0.35 / 0.8})


def test_typical_acceptance_at_its_threshold():
    """Only tokens above the threshold pass; among equally good paths the first is accepted."""
    rule = verify.typical.using(epsilon=0.25, delta=1.0)
    rows = torch.tensor([[0.25, 0.75, 0.0]] * 2, dtype=torch.float64)
    for token, path in ((0, (0,)), (1, (0, 1)), (2, (0,))):
        assert rule(tree_of(Law.IID, [0, token], [-1, 0]), rows, TorchCoins(0)).path == path
    rows = torch.tensor([[0.0, 0.5, 0.5]] * 3, dtype=torch.float64)
    for tokens in ([0, 1, 2], [0, 2, 1]):
        assert rule(tree_of(Law.IID, tokens, [-1, 0, 0]), rows, TorchCoins(0)).path == (0, 1)


def acceptance(rule, law, tokens, probs, draft):
    """P(a child is accepted) at the root of a tree of depth one, given the drafted tokens."""
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


@settings(max_examples=20)
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
    with pytest.raises(RefusedTree, match=f"'{rule}'.*of law {law}.*for {covered} only"):
        rule(tree, torch.full((2, 3), 1 / 3), TorchCoins(0))


def test_shapes_that_a_rule_does_not_cover():
    rows = torch.full((3, 3), 1 / 3)
    with pytest.raises(RefusedTree, match="'chain' needs a chain"):
        verify.chain(tree_of(Law.IID, [0, 1, 2], [-1, 0, 0]), rows, TorchCoins(0))
    with pytest.raises(RefusedTree, match=r"'onehot' needs distinct children.*node 0.*\[1, 1\]"):
        verify.onehot(tree_of(Law.DETERMINISTIC, [0, 1, 1], [-1, 0, 0]), rows, TorchCoins(0))


@pytest.mark.parametrize("rule", SAMPLING, ids=str)
def test_rules_do_not_mutate_their_inputs(rule):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1, 2], [-1, 0, 1])
    rows = Sampling()(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    before = (rows.clone(), tree.tokens.clone(), tree.draft_probs.clone())
    for seed in range(50):
        rule(tree, rows, TorchCoins(seed))
    after = (rows, tree.tokens, tree.draft_probs)
    for tensor, copy in zip(after, before, strict=True):
        assert torch.equal(tensor, copy)


def test_rules_visit_only_the_nodes_on_their_way():
    class RecordingRows:
        def __init__(self, rows):
            self.rows, self.visited = rows, set()

        def __getitem__(self, node):
            self.visited.add(node)
            return self.rows[node]

    tree = tree_of(Law.IID, [0, *[1, 2] * 7], [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    for rule in (verify.rrs, verify.naive):
        rows = RecordingRows(torch.full((15, 3), 1 / 3, dtype=torch.float64))
        verdict = rule(tree, rows, TorchCoins(3))
        assert rows.visited == set(verdict.path)


def test_a_residual_without_mass_keeps_the_target():
    """p equals q, but a coin rejects, as rounding can make it."""

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
    lossy = {"typical", "lenient"}
    assert {name for name, rule in verify.RULES.items() if not rule.lossless} == lossy
    for name, rule in verify.RULES.items():
        assert getattr(verify, name) is rule
        assert rule.reference.startswith("arXiv:")
        assert rule.reference.removeprefix("arXiv:") in rule.__doc__


def test_settings_of_a_rule():
    strict = verify.typical.using(epsilon=0.5)
    assert strict.settings == {"epsilon": 0.5, "delta": 0.3}
    assert verify.typical.settings == {"epsilon": 0.09, "delta": 0.3}
    assert pickle.loads(pickle.dumps(strict)).settings == strict.settings
    assert pickle.loads(pickle.dumps(verify.typical)) is verify.typical
    assert "epsilon=0.5" in repr(strict)
    with pytest.raises(
        InvalidSetting, match=r"'typical' has no setting 'eps' .settings: epsilon, de"
    ):
        verify.typical.using(eps=0.5)
    with pytest.raises(InvalidSetting, match=r"lenience = 2 .*must be in .0, 1."):
        verify.lenient.using(lenience=2)
    with pytest.raises(InvalidSetting, match="settings: none"):
        verify.rrs.using(lenience=0.5)


def test_typical_acceptance_by_hand():
    """Node 1 passes the threshold, node 2 does not; node 3 below node 2 is never visited."""
    probs = torch.tensor([[0.6, 0.35, 0.05], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6], [0.0, 1.0, 0.0]])
    tree = tree_of(Law.IID, [0, 0, 2, 1], [-1, 0, 0, 2])
    assert verify.typical(tree, probs, TorchCoins(0)).path == (0, 1)
    tree = tree_of(Law.IID, [0, 0, 1, 1], [-1, 0, 0, 2])
    assert verify.typical(tree, probs, TorchCoins(0)).path == (0, 2, 3)  # the longer path
    tree = tree_of(Law.IID, [0, 1, 0], [-1, 0, 0])
    assert verify.typical(tree, probs[:3], TorchCoins(0)).path == (0, 2)  # the likelier of two
    sure = verify.typical.using(epsilon=1.0, delta=1.0)  # the threshold is exp(-H), about 0.45
    assert sure(tree_of(Law.IID, [0, 1], [-1, 0]), probs[:2], TorchCoins(0)).path == (0,)
    assert sure(tree_of(Law.IID, [0, 0], [-1, 0]), probs[:2], TorchCoins(0)).path == (0, 1)


def test_a_pair_without_the_hub_is_refused():
    rows = torch.tensor([[0.1, 0.6, 0.3]])
    tree = TokenTree(TreeShape.expansion([2]), torch.tensor([0, 0, 2]), rows, Law.HUB)
    with pytest.raises(RefusedTree, match=r"node 0.*\[0, 2\].*most probable token 1"):
        verify.spechub(tree, rows.expand(3, -1), TorchCoins(0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", SAMPLING, ids=str)
def test_rows_of_every_floating_point_dtype(rule, dtype):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1, 2], [-1, 0, 1])
    rows = torch.tensor([0.5, 0.25, 0.25]).expand(3, -1)
    halved = TokenTree(tree.shape, tree.tokens, tree.draft_probs.to(dtype), law)
    for seed in range(10):
        assert rule(halved, rows.to(dtype), TorchCoins(seed)).bonus in range(3)


REJECTING = [rule for rule in SAMPLING if str(rule) not in ("naive", "onehot", "typical")]


@pytest.mark.parametrize("rule", REJECTING, ids=str)
def test_rows_over_different_vocabularies_are_refused(rule):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1, 2], [-1, 0, 1], vocab=5)
    for seed in range(5):
        with pytest.raises(RefusedTree, match="node 0 has 5 tokens, the target's has 4"):
            rule(tree, torch.full((3, 4), 0.25), TorchCoins(seed))


@pytest.mark.parametrize("rule", [r for r in SAMPLING if str(r) != "onehot"], ids=str)
def test_no_token_comes_from_rows_that_hold_nan(rule):
    law = sorted(rule.laws, key=str)[0]
    tree = tree_of(law, [0, 1], [-1, 0])
    rows = torch.tensor([[0.3, torch.nan, 0.4], [0.2, 0.3, 0.5]])
    for seed in range(10):
        with pytest.raises((NotADistribution, RefusedTree)):
            rule(tree, rows, TorchCoins(seed))


@pytest.mark.parametrize("rule", [r for r in SAMPLING if str(r) != "onehot"], ids=str)
def test_no_token_comes_from_rows_with_nan_below_the_root(rule):
    """Node 1 is always accepted, so its row is visited: NaN for its child must not count as a rejection."""
    tree = tree_of(sorted(rule.laws, key=str)[0], [0, 1, 1, 1], [-1, 0, 1, 2])
    rows = torch.tensor([[0.0, 1.0, 0.0]]).repeat(4, 1)
    rows[1, 1] = torch.nan
    for seed in range(5):
        with pytest.raises((NotADistribution, RefusedTree)):
            rule(tree, rows, TorchCoins(seed))


def test_a_pair_that_the_hub_law_cannot_draw_is_refused():
    rows = torch.tensor([[0.6, 0.4, 0.0]])
    tree = TokenTree(TreeShape.expansion([2]), torch.tensor([0, 0, 2]), rows, Law.HUB)
    with pytest.raises(RefusedTree, match="token 2 cannot have been drawn beside the hub 0"):
        verify.spechub(tree, rows.expand(3, -1), TorchCoins(0))
