"""Rules by a kernel against the rules themselves: same verdict, same position of the stream."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import NonFiniteLogits, NotADistribution, RefusedTree
from treespec.models.passes.compiled_pass import missing_for_compiling
from treespec.verify.engine.cpu_kernel import by_kernel, verifier_for
from treespec.verify.engine.on_host import OnHost

RULES = [verify.greedy, verify.naive, verify.chain, verify.rrs, verify.rrsw, verify.onehot]
PER_CASE = 60


@pytest.fixture(autouse=True, scope="module")
def _compiler():
    if (missing := missing_for_compiling()) is not None:
        pytest.skip(missing)


@pytest.fixture
def alone(outcome):
    """The outcome of the kernel; fails if it falls back to the rule."""

    def decide(rule, tree, rows, coins):
        fallback = AssertionError("the rule was called")
        with mock.patch.object(verify.Rule, "__call__", side_effect=fallback):
            return outcome(by_kernel(rule), tree, rows, coins)

    return decide


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("temperature", [0.05, 0.6, 1.7])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_random_trees(rule, temperature, random_tree, outcome, alone):
    paths = []
    for seed in range(PER_CASE):
        vocab = (3, 20, 260, 530)[seed % 4] + seed // 4  # less than a vector, and several groups
        tree, logits = random_tree(rule, torch.Generator().manual_seed(seed), vocab, 1 + seed % 12)
        if rule is not verify.onehot:
            tree = tree.vouched()
        dtype = (torch.float32, torch.bfloat16)[seed % 2]
        sampling = Sampling(temperature=0.0 if rule.one_hot else temperature)
        rows = sampling.rows(logits.to(dtype))
        expected = outcome(rule, tree, rows, TorchCoins(seed))
        assert alone(rule, tree, rows, TorchCoins(seed)) == expected, seed
        paths.append((expected[0].accepted, tree.shape.depth))
    assert max(accepted for accepted, _ in paths) >= 2
    assert any(accepted < depth for accepted, depth in paths)


@pytest.mark.usefixtures("without_shape_checks")
def test_the_rule_decides_what_the_kernel_does_not_cover(random_tree, outcome):
    tree, logits = random_tree(verify.rrsw, torch.Generator().manual_seed(1), 40, 9)
    rows = Sampling().rows(logits)
    not_vouched = TokenTree(tree.shape, tree.tokens, tree.draft_probs, tree.law)
    shared = (tree.vouched(), rows), (not_vouched, rows), (tree, logits.softmax(-1))
    settings = (
        Sampling(top_k=9),
        Sampling(top_p=0.8),
        Sampling(min_p=0.01),
        Sampling(temperature=0.0),
    )
    cases = [*shared, *((tree, sampling.rows(logits)) for sampling in settings)]
    cases += [(tree, Sampling().rows(logits.double())), (tree, Sampling().rows(logits.half()))]
    double = TokenTree(tree.shape, tree.tokens, tree.draft_probs.double(), tree.law).vouched()
    cases.append((double, rows))
    for tree_, rows_ in cases:
        for seed in range(4):
            expected = outcome(verify.rrsw, tree_, rows_, TorchCoins(seed))
            assert outcome(by_kernel(verify.rrsw), tree_, rows_, TorchCoins(seed)) == expected
    mixed = TokenTree(
        TreeShape((-1, 0, 0)), torch.tensor([0, 1, 2]), torch.full((1, 40), 1 / 40),
        [[("iid", 1), ("deterministic", 1)], "iid", "iid"],
    ).vouched()  # fmt: skip
    for seed in range(4):
        expected = outcome(verify.rrs, mixed, rows, TorchCoins(seed))
        assert outcome(by_kernel(verify.rrs), mixed, rows, TorchCoins(seed)) == expected


@pytest.mark.usefixtures("without_shape_checks")
def test_rows_of_all_layouts_threads_and_modes(random_tree, outcome):
    cases = []
    for seed in range(40):
        tree, logits = random_tree(verify.rrsw, torch.Generator().manual_seed(seed), 70, 9)
        wide = torch.full((11, 99), torch.nan)
        wide[:9, :70] = logits
        rows = Sampling().rows(wide[:9, :70])
        cases.append((tree.vouched(), rows, outcome(verify.rrsw, tree, rows, TorchCoins(seed))))

    def compare_all(_):
        with torch.inference_mode():
            return [
                outcome(by_kernel(verify.rrsw), tree, rows, TorchCoins(seed)) == expected
                for seed, (tree, rows, expected) in enumerate(cases)
            ]

    with ThreadPoolExecutor(4) as threads:
        assert all(map(all, threads.map(compare_all, range(4))))


@pytest.mark.usefixtures("without_shape_checks")
def test_the_kernel_reads_no_more_than_the_rule(outcome):
    shape = TreeShape((-1,))
    alone = TokenTree(shape, torch.tensor([3]), torch.empty(0, 4), Law.IID)
    rows = Sampling().rows(torch.randn(1, 5))
    expected = outcome(verify.rrs, alone, rows, TorchCoins(0))
    assert outcome(by_kernel(verify.rrs), alone, rows, TorchCoins(0)) == expected
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    sure = TokenTree(TreeShape((-1, 0)), torch.tensor([3, 1]), None, Law.DETERMINISTIC)
    rows = Sampling(temperature=0.0).rows(torch.randn(2, 5))
    by_kernel(verify.greedy)(sure, rows, TorchCoins(generator))
    assert torch.equal(generator.get_state(), before)


def test_errors_are_the_rules(random_tree, outcome):
    tree, logits = random_tree(verify.rrs, torch.Generator().manual_seed(2), 20, 5)
    tree = tree.vouched()
    bad = logits.clone()
    bad[0, 3] = torch.nan
    foreign = TokenTree(
        tree.shape, tree.tokens, tree.draft_probs, Law.WITHOUT_REPLACEMENT
    ).vouched()
    drawn = tree.draft_probs.clone()
    drawn[0, tree.token_ids[tree.shape.children[0][0]]] = 0
    never = TokenTree(tree.shape, tree.tokens, drawn, tree.law).vouched()
    beyond = TokenTree(tree.shape, tree.tokens, tree.draft_probs[:, :19], tree.law).vouched()
    for error, tree_, rows in (
        (NonFiniteLogits, tree, Sampling().rows(bad)),
        (RefusedTree, foreign, Sampling().rows(logits)),
        (RefusedTree, never, Sampling().rows(logits)),
        (RefusedTree, beyond, Sampling().rows(logits)),
        (RefusedTree, tree, Sampling().rows(logits[:3])),
        (NotADistribution, tree, torch.full((5, 20), 0.1)),
    ):
        expected = outcome(verify.rrs, tree_, rows, TorchCoins(0))
        assert expected[0] is error
        coins = TorchCoins(0)
        before = coins.peek(1)
        assert outcome(by_kernel(verify.rrs), tree_, rows, coins) == expected
        if error is NonFiniteLogits:
            assert coins.peek(1) == before


def test_naive_checks_draft_rows_that_are_not_vouched_for():
    drafts = torch.full((1, 5), torch.nan)
    tree = TokenTree(TreeShape((-1, 0)), torch.tensor([3, 1]), drafts, Law.IID)
    for rule in (verify.naive, by_kernel(verify.naive)):
        with pytest.raises(NotADistribution):
            rule(tree, Sampling().rows(torch.zeros(2, 5)), TorchCoins(0))


@pytest.mark.parametrize("rule", verify.RULES.values(), ids=str)
def test_attributes_are_the_rules(rule):
    verifier = pickle.loads(pickle.dumps(by_kernel(rule)))
    for name in ("laws", "lossless", "one_hot", "reference", "settings", "__name__"):
        assert getattr(verifier, name) == getattr(rule, name)
    assert (str(verifier), repr(verifier)) == (str(rule), f"by_kernel({rule})")


def test_kernels_are_used_for_targets_that_have_them():
    assert isinstance(
        verifier_for(verify.rrs, SimpleNamespace(draws_by_kernel=True)), verify.ByKernel
    )
    for target in (SimpleNamespace(draws_by_kernel=False), SimpleNamespace()):
        assert isinstance(verifier_for(verify.rrs, target), OnHost)
