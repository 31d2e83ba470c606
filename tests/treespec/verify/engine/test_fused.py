"""Fused rules against the rules themselves: same verdict, same position of the stream afterwards.

Triton decides at import whether it interprets kernels, so this file runs itself in a process with
TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import importlib
import os
import pickle
import sys
from unittest import mock

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, Verdict, verify
from treespec.errors import (
    InvalidSetting,
    NonFiniteLogits,
    NotADistribution,
    RefusedTree,
    TreespecError,
    Unavailable,
)
from treespec.testing import EnumeratingCoins
from treespec.verify.engine.fused import fused

fused_module = importlib.import_module("treespec.verify.engine.fused")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
compiled = pytest.mark.skipif(INTERPRETED, reason="needs Triton outside its interpreter")

RULES = [
    verify.greedy,
    verify.naive,
    verify.chain,
    verify.rrs,
    verify.rrsw,
    verify.onehot,
    verify.greedy_multidraft,
    verify.spechub,
    verify.lenient.using(lenience=0.7),
]
ROWS = {
    "plain": None,
    "cold": Sampling(temperature=0.0),
    "0.7": Sampling(temperature=0.7),
    "1": Sampling(),
    "top_p": Sampling(temperature=1.3, top_p=0.8),
}
PER_CASE = 34
"""Random trees for each of 9 rules and 5 kinds of rows: 1530 in total."""


@pytest.fixture(autouse=True, scope="module")
def _quick(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


class Given(TorchCoins):
    """Coins whose stream is given."""

    def __init__(self, *uniforms):
        super().__init__(0)
        self.left = list(uniforms)

    def uniform(self):
        return self.left.pop(0)

    def peek(self, count):
        return (self.left + [0.5] * count)[:count]

    def skip(self, count):
        del self.left[:count]


@pytest.fixture
def by_kernel(outcome):
    """The outcome of the kernel; fails if it falls back to the rule."""

    def decide(rule, tree, rows, coins, block=16):
        fallback = AssertionError("the rule was called")
        with mock.patch.object(verify.Rule, "__call__", side_effect=fallback):
            return outcome(fused(rule, block=block), tree, rows, coins)

    return decide


@pytest.fixture
def agree(outcome, by_kernel):
    """Assert that kernel and rule agree on the same streams; return the verdicts."""

    def compare(rule, tree, rows, seeds=range(6), block=4):
        expected = [outcome(rule, tree, rows, TorchCoins(seed)) for seed in seeds]
        assert [by_kernel(rule, tree, rows, TorchCoins(seed), block) for seed in seeds] == expected
        return [verdict for verdict, _ in expected]

    return compare


def flat(law, tokens, target, draft):
    """A root and its children."""
    shape = TreeShape.expansion([len(tokens)])
    tree = TokenTree(shape, torch.tensor([0, *tokens]), torch.tensor([draft]), law)
    return tree, torch.tensor(target).expand(shape.size, -1)


@interpreted
@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_random_trees(rule, kind, random_tree, outcome, by_kernel):
    paths = []
    for seed in range(PER_CASE):
        generator = torch.Generator().manual_seed(seed)
        vocab = 12 + 4 * seed % 29
        tree, logits = random_tree(rule, generator, vocab, 1 + seed % 10)
        sampling = Sampling(temperature=0.0) if rule.one_hot else ROWS[kind]
        dtype = [torch.float32, torch.float32, torch.float16, torch.bfloat16][seed % 4]
        rows = (sampling or Sampling()).rows(logits.to(dtype))
        if kind == "plain":
            rows = torch.stack([rows[node] for node in range(tree.shape.size)])
        expected = outcome(rule, tree, rows, TorchCoins(seed))
        block = 16 if seed % 4 == 0 else 64
        assert by_kernel(rule, tree, rows, TorchCoins(seed), block) == expected, seed
        paths.append((expected[0].accepted, tree.shape.depth))
    assert max(accepted for accepted, _ in paths) >= 2
    assert any(accepted < depth for accepted, depth in paths)


@interpreted
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_one_token_one_node_and_vocabularies_that_fill_no_block(rule, random_tree, agree):
    usual = rule.laws & {Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC}
    law = next(iter(usual or rule.laws))
    sampling = Sampling(temperature=0.0) if rule.one_hot else Sampling()
    alone = TokenTree(TreeShape((-1,)), torch.tensor([3]), torch.zeros(0, 5), law)
    agree(rule, alone, sampling.rows(torch.randn(1, 5)))
    single = TokenTree(TreeShape((-1, 0)), torch.tensor([0, 0]), torch.ones(1, 1), law)
    agree(rule, single, sampling.rows(torch.randn(2, 1)))
    for vocab, block in ((257, 128), (128, 64), (5000, 4096)):
        tree, logits = random_tree(rule, torch.Generator().manual_seed(vocab), vocab, 7)
        agree(rule, tree, sampling.rows(logits), range(3), block)


@interpreted
@pytest.mark.parametrize("rule", [verify.naive, verify.rrs, verify.rrsw, verify.onehot], ids=str)
def test_float64_and_rows_with_gaps_between_them(rule, random_tree, agree):
    for seed in range(2):
        tree, logits = random_tree(rule, torch.Generator().manual_seed(seed), 11, 8)
        wide = torch.full((9, 15), torch.nan)
        wide[:8, :11] = logits
        gaps = TokenTree(tree.shape, tree.tokens, tree.draft_probs.T.contiguous().T, tree.law)
        agree(rule, gaps, Sampling().rows(wide[:, :11]), range(3), 8)
        agree(rule, tree, Sampling().rows(logits.double()), range(3), 8)
        double = TokenTree(tree.shape, tree.tokens, tree.draft_probs.double(), tree.law)
        agree(rule, double, logits.double().softmax(-1), range(3), 8)
        agree(rule, double, Sampling(min_p=0.1).rows(logits), range(3), 8)


@interpreted
def test_a_draft_that_is_the_target_and_one_that_covers_it(agree):
    p = [0.25, 0.5, 0.125, 0.125]
    verdicts = agree(verify.rrs, *flat(Law.IID, [1, 1], p, p))
    assert {v.path for v in verdicts} == {(0, 1)}
    # A rejection leaves nothing of the target, so the target stays unchanged.
    covering = [2 * x for x in p]
    tree, rows = flat(Law.IID, [1, 2], p, covering)
    verdicts = agree(verify.rrs, tree.vouched(), rows, range(40))
    assert {v.path for v in verdicts} == {(0,), (0, 1), (0, 2)}
    assert len({v.bonus for v in verdicts if v.path == (0,)}) > 2


@interpreted
def test_disjoint_supports(agree):
    verdicts = agree(
        verify.rrs, *flat(Law.IID, [2, 3, 2], [0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5])
    )
    assert {v.path for v in verdicts} == {(0,)}
    assert {v.bonus for v in verdicts} == {0, 1}


@interpreted
def test_tokens_of_probability_zero_are_never_drawn(by_kernel):
    target = [0.0] * 5 + [0.25, 0.0, 0.0, 0.0, 0.75] + [0.0] * 8
    tree = TokenTree(TreeShape((-1,)), torch.tensor([0]), None, Law.DETERMINISTIC)
    for uniform, token in ((0.0, 5), (0.25, 9), (0.25 - 2**-54, 5), (1 - 2**-53, 9)):
        for block in (2, 4, 16):
            got = by_kernel(verify.naive, tree, torch.tensor([target]), Given(uniform), block)
            assert got == (Verdict((0,), token), [0.5])


@interpreted
def test_the_last_number_of_the_stream_draws_the_last_token_that_has_mass(outcome, by_kernel):
    """Sums in another order may end below the point, but no token after the last with mass is drawn."""
    tree = TokenTree(TreeShape((-1,)), torch.tensor([0]), None, Law.DETERMINISTIC)
    for seed in range(10):
        logits = torch.randn(1, 37, generator=torch.Generator().manual_seed(seed))
        logits[0, 30:] = -300.0  # exp gives 0
        rows = Sampling().rows(logits)
        expected = outcome(verify.naive, tree, rows, Given(1 - 2**-53))
        assert by_kernel(verify.naive, tree, rows, Given(1 - 2**-53), 4) == expected
        assert expected[0].bonus == 29


@interpreted
def test_draws_are_by_float64_sums(by_kernel):
    row = torch.tensor([[0.5] + [2**-26] * 16 + [0.5 - 2**-22]])
    tree = TokenTree(TreeShape((-1,)), torch.tensor([0]), None, Law.DETERMINISTIC)
    for token in range(1, 17):
        for block in (2, 32):
            uniform = 0.5 + (token - 0.5) * 2**-26
            assert by_kernel(verify.naive, tree, row, Given(uniform), block)[0].bonus == token


@interpreted
def test_a_number_equal_to_the_probability_rejects(outcome, by_kernel):
    tree, rows = flat(Law.IID, [1], [0.75, 0.25, 0.0], [0.25, 0.5, 0.25])
    for uniform, path in ((0.5, (0,)), (0.5 - 2**-54, (0, 1))):
        got = by_kernel(verify.rrs, tree, rows, Given(uniform, 0.25), 2)
        assert got == outcome(verify.rrs, tree, rows, Given(uniform, 0.25))
        assert got[0].path == path
    tree, rows = flat(Law.IID, [2], [0.75, 0.25, 0.0], [0.25, 0.5, 0.25])
    assert by_kernel(verify.rrs, tree, rows, Given(0.0, 0.25), 2)[0].path == (0,)


@interpreted
def test_repeated_siblings_of_rrs(agree):
    target, draft = [0.1, 0.2, 0.3, 0.4, 0.0], [0.4, 0.3, 0.2, 0.05, 0.05]
    paths = {
        v.path for v in agree(verify.rrs, *flat(Law.IID, [0, 0, 2, 0], target, draft), range(30))
    }
    assert {(0,), (0, 1), (0, 3)} <= paths


@interpreted
def test_rrsw_when_the_draft_is_exhausted(agree):
    target, draft = [0.02, 0.03, 0.3, 0.25, 0.4], [0.5, 0.5, 0.0, 0.0, 0.0]
    for tokens in ([0, 1], [1, 0, 4], [0, 1, 3, 2, 4]):
        tree, rows = flat(Law.WITHOUT_REPLACEMENT, tokens, target, draft)
        paths = {v.path for v in agree(verify.rrsw, tree, rows, range(15), 8)}
        assert len(paths) >= 2


@interpreted
@pytest.mark.parametrize("sampling", [*ROWS.values()][1:], ids=[*ROWS][1:])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite(bad, sampling, agree):
    tree = TokenTree(TreeShape((-1, 0, 0)), torch.tensor([0, 4, 5]), None, Law.DETERMINISTIC)
    logits = torch.zeros(3, 19)
    logits[0, 4], logits[1, 17] = 99.0, bad  # node 1 is visited
    with pytest.raises(NonFiniteLogits, match=r"the draft model returned.*node 1") as caught:
        fused(verify.naive, block=8)(tree, sampling.rows(logits, "draft"), TorchCoins(0))
    assert caught.value.node == 1
    logits[1, 17], logits[2, 0] = 0.0, bad  # node 2 is not
    agree(verify.naive, tree, sampling.rows(logits), range(3), 8)


@interpreted
def test_errors_are_the_rules_own(outcome):
    third = [1 / 3] * 3
    zero = flat(Law.IID, [1, 2], third, [0.5, 0.5, 0.0])
    spent = flat(Law.WITHOUT_REPLACEMENT, [1, 2], third, [0.5, 0.5, 0.0])
    deep = TokenTree(
        TreeShape((-1, 0, 0, 2, 2, 2)), torch.tensor([0, 0, 1, 2, 0, 2]),
        torch.full((2, 3), 1 / 3), Law.WITHOUT_REPLACEMENT,
    )  # fmt: skip
    fixed = TokenTree(deep.shape, deep.tokens, None, Law.DETERMINISTIC)
    narrow = flat(Law.IID, [1], third, [0.5, 0.5])
    nan = torch.tensor([[0.5, 0.5, torch.nan]]).expand(6, -1)
    root = TokenTree(TreeShape((-1,)), torch.tensor([0]), None, Law.DETERMINISTIC)
    beyond = TokenTree(TreeShape((-1, 0)), torch.tensor([0, 7]), None, Law.DETERMINISTIC)
    for case, rule, (tree, rows), expected in (
        ("draft probability 0", verify.rrs, zero, RefusedTree),
        ("the same after its elder", verify.rrsw, spent, RefusedTree),
        (
            "repeated below a node not visited",
            verify.rrsw,
            (deep, torch.eye(3)[[0] * 6]),
            RefusedTree,
        ),
        ("repeated, deterministic", verify.onehot, (fixed, torch.eye(3)[[0] * 6]), RefusedTree),
        ("not one-hot", verify.greedy, (fixed, Sampling().rows(torch.zeros(6, 3))), RefusedTree),
        ("not one-hot, plain", verify.greedy, (fixed, torch.full((6, 3), 1 / 3)), RefusedTree),
        ("foreign law", verify.rrs, (deep, torch.full((6, 3), 1 / 3)), RefusedTree),
        ("no chain", verify.chain, zero, RefusedTree),
        ("draft too narrow", verify.rrs, narrow, RefusedTree),
        ("draft too narrow", verify.naive, narrow, RefusedTree),
        ("no distribution", verify.naive, (root, nan), TreespecError),
        ("no mass", verify.naive, (root, torch.zeros(1, 3)), TreespecError),
        ("sum 2", verify.naive, (root, torch.tensor([[0.4, 0.6, 1.0]])), NotADistribution),
        ("negative", verify.naive, (root, torch.tensor([[0.7, 0.5, -0.2]])), NotADistribution),
        ("draft's sum 2", verify.rrs, flat(Law.IID, [1], third, [1.0, 1.0, 0.0]), NotADistribution),
        (
            "the same, not read",
            verify.naive,
            flat(Law.IID, [1], third, [1.0, 1.0, 0.0]),
            NotADistribution,
        ),
        ("no such token", verify.onehot, (beyond, torch.full((2, 3), 1 / 3)), RefusedTree),
    ):
        for seed in range(8):
            got = outcome(fused(rule, block=2), tree, rows, TorchCoins(seed))
            assert got == outcome(rule, tree, rows, TorchCoins(seed)), case
        assert issubclass(outcome(rule, tree, rows, Given(0.999, 0.999, 0.999))[0], expected), case
    for rows in (2, 5):
        with pytest.raises(RefusedTree, match=f"6 nodes, but {rows} target rows"):
            fused(verify.naive)(fixed, torch.full((rows, 3), 1 / 3), TorchCoins(0))


@interpreted
def test_a_tiny_residual_counts(outcome):
    """The draft cannot supply 1e-8 of the target: a rejection yields that token and no other."""
    draft = torch.tensor([[0.4, 0.6, 0.0]], dtype=torch.float64)
    rows = torch.tensor([[0.4, 0.6 - 1e-8, 1e-8]], dtype=torch.float64).expand(2, -1).contiguous()
    for rule, law in ((verify.rrs, Law.IID), (verify.rrsw, Law.WITHOUT_REPLACEMENT)):
        tree = TokenTree(TreeShape.chain(1), torch.tensor([0, 1]), draft, law)
        got = outcome(fused(rule, block=2), tree, rows, Given(1 - 1e-9, 0.5))
        assert got == outcome(rule, tree, rows, Given(1 - 1e-9, 0.5))
        assert (got[0].path, got[0].bonus) == ((0,), 2)


@interpreted
@pytest.mark.parametrize("bad", [torch.nan, -0.25, 0.0])
def test_invalid_draft_probabilities_of_a_tested_child(bad, outcome):
    target, draft = [0.0, 0.25, 0.25, 0.5], [0.5, bad, 0.25, 0.25]
    for rule, law, tokens in (
        (verify.rrs, Law.IID, [1, 2]),
        (verify.rrs, Law.IID, [0, 1]),
        (verify.chain, Law.IID, [1]),
        (verify.rrsw, Law.WITHOUT_REPLACEMENT, [1, 2]),
    ):
        for uniform in (0.0, 0.999):
            tree, rows = flat(law, tokens, target, draft)
            got = outcome(fused(rule, block=4), tree, rows, Given(*[uniform] * 3))
            assert got == outcome(rule, tree, rows, Given(*[uniform] * 3))
            if bad:
                assert got[0] is NotADistribution
                says = f"draft's row of node 0 is not a distribution: token 1 has the probability {bad:g}"
                assert says in got[1]
            # Of rows that are vouched for, only the tested child's probability is checked.
            got = outcome(fused(rule, block=4), tree.vouched(), rows, Given(*[uniform] * 3))
            assert got == outcome(rule, tree, rows, Given(*[uniform] * 3))
            assert got[0] is RefusedTree
            assert "token 1 cannot have been drawn" in got[1]


@interpreted
def test_arguments_that_a_fused_rule_does_not_cover():
    tree, rows = flat(Law.IID, [1], [0.5, 0.5], [0.5, 0.5])
    half = TokenTree(tree.shape, tree.tokens, tree.draft_probs.half(), Law.IID)
    for wrong, message in (
        ((tree, rows, EnumeratingCoins()), "peek and skip, such as TorchCoins"),
        ((tree, [rows[0], rows[1]], TorchCoins(0)), "reads `Sampling.rows.*not list"),
        ((tree, rows.half(), TorchCoins(0)), "float32 or float64, not torch.float16"),
        ((half, rows, TorchCoins(0)), "draft_probs in float32 or float64"),
    ):
        with pytest.raises(Unavailable, match=message):
            fused(verify.rrs)(*wrong)


@interpreted
@pytest.mark.parametrize("rule", [verify.greedy, verify.naive], ids=str)
def test_mixed_trees(rule, agree, outcome):
    """Of rules that read no draft's row; siblings that must be distinct are checked as by the rule."""
    law = [[(Law.WITHOUT_REPLACEMENT, 2), (Law.DETERMINISTIC, 1)], (), (), ()]
    for tokens in ([0, 1, 2, 1], [0, 2, 2, 1]):
        tree = TokenTree(
            TreeShape.expansion([3]), torch.tensor(tokens), torch.tensor([[0.0, 0.5, 0.5]]), law
        )
        rows = Sampling(temperature=0.0 if rule.one_hot else 1.0).rows(torch.eye(3)[[1, 0, 2, 1]])
        if tokens[1] != tokens[2]:
            assert any(verdict.accepted for verdict in agree(rule, tree, rows))
        else:
            got = outcome(fused(rule), tree, rows, TorchCoins(0))
            assert got == outcome(rule, tree, rows, TorchCoins(0))
            assert got[0] is RefusedTree


@interpreted
def test_a_pair_without_the_hub_is_the_rules_own_error(outcome):
    """Also a spoke that is never drawn, and a hub that has all the mass."""
    for tokens, draft in (
        ([1, 2], [0.6, 0.2, 0.2]),
        ([0, 1], [0.6, 0.0, 0.4]),
        ([0, 1], [1.0, 0.0, 0.0]),
    ):
        tree, rows = flat(Law.HUB, tokens, [0.2, 0.3, 0.5], draft)
        for seed in range(6):
            got = outcome(fused(verify.spechub, block=2), tree, rows, TorchCoins(seed))
            assert got == outcome(verify.spechub, tree, rows, TorchCoins(seed))


@interpreted
@pytest.mark.parametrize("lenience", [0.0, 0.3])
def test_lenience(lenience, agree):
    rule = verify.lenient.using(lenience=lenience)
    verdicts = agree(rule, *flat(Law.IID, [1, 2], [0.8, 0.1, 0.1], [0.2, 0.4, 0.4]), range(12))
    assert {v.path for v in verdicts} == ({(0, 1)} if not lenience else {(0,), (0, 1)})


@interpreted
def test_inputs_are_not_mutated(random_tree, agree):
    tree, logits = random_tree(verify.rrsw, torch.Generator().manual_seed(5), 20, 9)
    before = [tensor.clone() for tensor in (tree.tokens, tree.draft_probs, logits)]
    agree(verify.rrsw, tree, Sampling(top_p=0.9).rows(logits), range(5))
    agree(verify.rrsw, tree, Sampling().rows(logits), range(5))
    for tensor, copy in zip((tree.tokens, tree.draft_probs, logits), before, strict=True):
        assert torch.equal(tensor, copy)


@compiled
def test_through_the_interpreter(interpret):
    interpret(__file__)


@compiled
def test_no_silent_fallback(monkeypatch):
    tree, rows = flat(Law.IID, [1], [0.5, 0.5], [0.5, 0.5])
    with pytest.raises(Unavailable, match=r"runs on CUDA tensors, not on 'cpu'.*TRITON_INTERPRET"):
        fused(verify.rrs)(tree, rows, TorchCoins(0))
    with pytest.raises(Unavailable, match=r"'traversal' has no fused kernel.*on_host\(traversal\)"):
        fused(verify.traversal)
    with pytest.raises(Unavailable, match="block = 12, but must be a power of two"):
        fused(verify.rrs, block=12)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "treespec.verify.engine.fused_kernel", raising=False)
    monkeypatch.delattr(verify.engine, "fused_kernel", raising=False)
    fused_module._kernel.cache_clear()
    with pytest.raises(Unavailable, match="need Triton"):
        fused(verify.rrs)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_attributes_are_the_rules(rule):
    verifier = pickle.loads(pickle.dumps(fused(rule, block=16).using()))
    for name in ("laws", "lossless", "one_hot", "reference", "settings", "__name__"):
        assert getattr(verifier, name) == getattr(rule, name)
    assert (str(verifier), repr(verifier), verifier.block) == (str(rule), f"fused({rule})", 16)
    with pytest.raises(InvalidSetting, match="has no setting 'threshold'"):
        verifier.using(threshold=0.5)
    foreign = TokenTree(TreeShape((-1, 0, 0)), torch.zeros(3).long(), torch.ones(1, 1), Law.HUB)
    if Law.HUB not in rule.laws:
        with pytest.raises(RefusedTree, match=f"'{rule}' does not cover"):
            verifier.require(foreign)


@pytest.mark.usefixtures("without_shape_checks")
def test_which_rules_are_covered():
    """Copies of our rules are covered; other rules of the same name are not."""
    for rule in RULES:
        assert fused(rule.using()).rule is not rule

    @verify.rule(laws={Law.IID}, reference="mine")
    def rrs(tree, target_probs, coins, /):
        return Verdict((0,), 0)

    own_chain = verify.rule(laws={Law.IID}, reference="mine")(verify.chain.__wrapped__)
    for rule, name in ((rrs, "rrs"), (own_chain, "chain"), (verify.typical.using(), "typical")):
        with pytest.raises(Unavailable, match=rf"'{name}' has no fused kernel.*of treespec.verify"):
            fused(rule)
    for wrong in ("rrs", verify.rrs.__wrapped__, None):
        with pytest.raises(
            TypeError, match=r"not an acceptance rule.*give a rule of treespec\.verify"
        ):
            fused(wrong)
