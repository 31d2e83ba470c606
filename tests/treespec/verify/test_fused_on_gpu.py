"""`fused` and `on_host` rules on a CUDA device: verdicts, errors and number of synchronisations."""

import warnings

import pytest
import torch

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import InvalidTree, NonFiniteLogits, NotADistribution, RefusedTree
from treespec.verify.engine.fused import fused
from treespec.verify.engine.on_host import on_host

pytestmark = pytest.mark.gpu

RULES = [
    verify.greedy,
    verify.naive,
    verify.chain,
    verify.rrs,
    verify.rrsw,
    verify.onehot,
    verify.greedy_multidraft,
    verify.spechub,
    verify.lenient,
]
COLD = Sampling(temperature=0.0)
SAMPLINGS = [COLD, Sampling(temperature=0.7), Sampling(), Sampling(temperature=1.3, top_p=0.8)]


def synchronisations(verifier, *args):
    """The verdict, and the number of times that the verifier waited for the device."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            verdict = verifier(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return verdict, sum("called a synchronizing" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_verdicts_and_synchronisations(rule, random_tree):
    """The rule itself, fused and on the host, on one device, with a vocabulary of real size."""
    different = []
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        tree, logits = random_tree(rule, generator, 128_256, 1 + seed % 24, "cuda")
        dtype = [torch.bfloat16, torch.float32, torch.float16][seed % 3]
        sampling = COLD if rule.one_hot else SAMPLINGS[seed % 4]
        rows = sampling.rows((3 * logits).to(dtype))
        if seed % 5 == 0:
            rows = torch.stack([rows[node] for node in range(tree.shape.size)])
        fused(rule)(tree, rows, TorchCoins(seed))  # compiles and fills the caches
        outcomes = []
        for verifier in (rule, fused(rule), on_host(rule)):
            coins = TorchCoins(seed)
            verdict, waits = synchronisations(verifier, tree, rows, coins)
            assert waits <= 1 or verifier is rule
            outcomes.append((verdict, coins.peek(1)))
        if len({*map(str, outcomes)}) > 1:
            different.append(seed)
            explained = at_uniforms_nearby(rule, tree, rows, seed)
            assert len({repr(verdict) for verdict, _ in outcomes}) == len({*map(str, outcomes)})
            assert {str(verdict) for verdict, _ in outcomes} <= explained
    # A residual's sum depends on the rounding of its rows, and it has up to 128256 thresholds.
    assert len(different) <= 4


class Uniforms(TorchCoins):
    """A stream of which one number is moved."""

    def __init__(self, seed, index=-1, by=0.0):
        super().__init__(seed)
        self._index, self._by, self.used = index, by, 0

    def uniform(self):
        by = self._by * (self.used == self._index)
        self.used += 1
        return min(max(super().uniform() + by, 0.0), 1 - 2**-53)


def at_uniforms_nearby(rule, tree, rows, seed):
    """The verdicts of the rule in float64 if a uniform or all rows move by what float32 rounds."""
    draft = None if tree.draft_probs is None else tree.draft_probs.double().cpu()
    on_cpu = TokenTree(tree.shape, tree.tokens.cpu(), draft, tree.law)
    exact = torch.stack([rows[node] for node in range(tree.shape.size)]).double().cpu()
    exact = exact / exact.sum(-1, keepdim=True)
    coins = Uniforms(seed)
    verdicts = {str(rule(on_cpu, exact, coins))}
    moves = [sign * 2.0**-step for step in range(18, 46) for sign in (-1, 1)]
    for index in range(coins.used):
        verdicts |= {str(rule(on_cpu, exact, Uniforms(seed, index, by))) for by in moves}
    verdicts |= {str(rule(on_cpu, exact * (1 + by), TorchCoins(seed))) for by in moves}
    return verdicts


def test_errors():
    shape = TreeShape((-1, 0, 0))
    rows = Sampling().rows(torch.zeros(3, 50, device="cuda"))
    for tokens, rule, law, expected in (
        ([0, 7, 7], verify.rrsw, Law.WITHOUT_REPLACEMENT, RefusedTree),
        ([0, 7, 7], verify.onehot, Law.DETERMINISTIC, RefusedTree),
        ([0, 7, -1], verify.naive, Law.DETERMINISTIC, InvalidTree),
        ([0, 7, 50], verify.rrs, Law.IID, InvalidTree),
    ):
        draft = torch.full((1, 50), 0.02, device="cuda")
        tree = TokenTree(shape, torch.tensor(tokens, device="cuda"), draft, law)
        with pytest.raises(expected):
            fused(rule)(tree, rows, TorchCoins(0))
    rows.logits[0, 49] = torch.nan
    tree = TokenTree(shape, torch.tensor([0, 7, 8], device="cuda"), None, Law.DETERMINISTIC)
    with pytest.raises(NonFiniteLogits, match="node 0"):
        fused(verify.naive)(tree, rows, TorchCoins(0))


@pytest.mark.parametrize("bad", [torch.nan, -0.25])
@pytest.mark.parametrize("rule", [verify.rrs, verify.rrsw], ids=str)
def test_invalid_draft_probabilities(rule, bad):
    law = Law.IID if rule is verify.rrs else Law.WITHOUT_REPLACEMENT
    draft = torch.tensor([[0.5, bad, 0.5, 0.25]], device="cuda")
    tree = TokenTree(TreeShape((-1, 0)), torch.tensor([0, 1], device="cuda"), draft, law)
    rows = torch.full((2, 4), 0.25, device="cuda")
    with pytest.raises(NotADistribution, match="node 0 is not a distribution: token 1 has"):
        fused(rule)(tree, rows, TorchCoins(0))
    for seed in range(4):
        with pytest.raises(RefusedTree, match="token 1 cannot have been drawn"):
            fused(rule)(tree.vouched(), rows, TorchCoins(seed))
