"""Where the rules of a target on CUDA decide, and that the user is told if it is the host."""

import logging
from types import SimpleNamespace

import pytest
import torch
from every_sampling import SAMPLINGS
from far_away import FarAway
from pretended_gpu import PretendedGpu

from treespec import Law, Sampling, TokenTree, TorchCoins, TreeShape, Verdict, verify
from treespec.models.passes.static_trial import NoHostReads
from treespec.sampling.distributions import SampledRows
from treespec.verify.engine import cpu_kernel
from treespec.verify.engine import on_device as module
from treespec.verify.engine.fused import ON_HOST, _kernel, fused, why_no_kernel, why_on_host
from treespec.verify.engine.on_device import OnDevice, on_device, tell_host_decides
from treespec.verify.engine.on_host import OnHost
from treespec.verify.synthetic_acceptance import SyntheticAcceptance

CPU = torch.device("cpu")
ON_CUDA = SimpleNamespace(device=torch.device("cuda"))


@pytest.fixture(autouse=True)
def _untold():
    tell_host_decides.cache_clear()


def test_every_rule_has_a_kernel_or_a_reason():
    reasons = {name: why_on_host(rule) for name, rule in verify.RULES.items()}
    reasons["synthetic_acceptance"] = why_on_host(SyntheticAcceptance([[0.5]]))
    assert {name: reason for name, reason in reasons.items() if reason} == ON_HOST
    lines = (module.on_device.__doc__ or "").splitlines()
    for name in verify.RULES:
        (line,) = [line for line in lines if line.startswith("    | `") and f"`{name}`" in line]
        assert ("on the host" in line) == (name in ON_HOST)
    by_children = [rule for rule in verify.RULES.values() if rule.scope is verify.Scope.ELDERS]
    assert all(why_on_host(rule) is None for rule in by_children)


def test_a_rule_without_a_kernel_is_told_once(caplog):
    with caplog.at_level(logging.WARNING, "treespec"):
        for _ in range(2):
            assert type(verify.verifier_for(verify.kseq, ON_CUDA)) is OnHost
    (record,) = caplog.records
    assert "rule 'kseq' is decided on the host, to which all rows are copied" in record.getMessage()
    assert "found in float64" in record.getMessage()


@pytest.mark.usefixtures("without_shape_checks")
def test_arguments_without_a_kernel_are_told(caplog, monkeypatch):
    class Changed(SampledRows):
        """Rows that something changes by their text."""

    class Own(TorchCoins):
        """Coins of a user's own."""

    decided = []
    monkeypatch.setattr(module, "on_host", lambda rule: lambda *given: decided.append(str(rule)))
    tokens, draft = torch.tensor([0, 1, 1, 2]), torch.tensor([[0.0, 0.5, 0.5]])
    plain = TokenTree(TreeShape.expansion([3]), tokens, draft, Law.IID)
    groups = [[(Law.IID, 2), (Law.DETERMINISTIC, 1)], (), (), ()]
    mixed = TokenTree(TreeShape.expansion([3]), tokens, draft, groups)
    with PretendedGpu():
        logits = torch.zeros(4, 3, device="cuda")
        rows = Sampling().rows(logits)
        for given, reason in (
            ((plain, Changed(logits, Sampling()), TorchCoins(0)), "by its own text"),
            ((plain, rows, Own(0)), "not TorchCoins"),
            ((mixed, rows, TorchCoins(0)), "the tree is mixed"),
        ):
            caplog.clear()
            verifier = on_device(verify.rrs)
            assert verifier.decide_ahead(*given) is None
            verifier(*given)
            assert reason in caplog.text
        naive = on_device(verify.naive)
        assert naive._obstacle(mixed, rows, TorchCoins(0)) is None
    assert decided == ["rrs"] * 3


def test_where_triton_cannot_compile_the_host_decides(caplog, monkeypatch):
    """As on a machine without a C compiler: tried once, before the first step."""

    class Walk:
        tried = 0

        def __getitem__(self, grid):
            Walk.tried += 1
            raise RuntimeError(
                "Failed to find C compiler. Please specify via CC environment variable."
            )

    kernel = _kernel()
    monkeypatch.setattr(kernel, "INTERPRETED", True)
    monkeypatch.setattr(kernel, "walk", Walk())
    monkeypatch.setattr(cpu_kernel, "why_no_kernel", lambda device: why_no_kernel(CPU))
    why_no_kernel.cache_clear()
    with caplog.at_level(logging.WARNING, "treespec"):
        for _ in range(2):
            assert type(verify.verifier_for(verify.rrsw, ON_CUDA)) is OnHost
    why_no_kernel.cache_clear()
    (record,) = caplog.records
    assert "rule 'rrsw' is decided on the host" in record.getMessage()
    assert "Failed to find C compiler" in record.getMessage()
    assert Walk.tried == 1
    monkeypatch.setattr(cpu_kernel, "why_no_kernel", lambda device: None)
    assert type(verify.verifier_for(verify.rrsw, ON_CUDA)) is OnDevice


def test_older_gpus_are_told_in_one_sentence(caplog, monkeypatch):
    """Before anything is compiled or put there; the host decides."""
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    why_no_kernel.cache_clear()
    with caplog.at_level(logging.WARNING, "treespec"):
        found = verify.verifier_for(verify.rrs, SimpleNamespace(device=device))
    why = why_no_kernel(device)
    why_no_kernel.cache_clear()
    assert type(found) is OnHost
    assert why == "the kernel needs a GPU of compute capability 8.0 or newer, but cuda:0 has 7.5"
    (record,) = caplog.records
    assert why in record.getMessage()


FUSED = [rule for rule in verify.RULES.values() if why_on_host(rule) is None]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("rule", FUSED, ids=str)
def test_a_decision_is_launched_without_reads_and_read_once(
    rule, sampling, random_tree, monkeypatch
):
    """The kernel itself, which reads nothing back, is left out: it writes a verdict of one node."""

    class Walk:
        def __getitem__(self, grid):
            return lambda *given, **options: given[6].copy_(torch.tensor([0, 0, 7, 1]))

    kernel = _kernel()
    monkeypatch.setattr(kernel, "INTERPRETED", True)
    monkeypatch.setattr(kernel, "walk", Walk())
    tree, logits = random_tree(rule, torch.Generator().manual_seed(3), 40, 6)
    tree, coins = tree.vouched(), TorchCoins(0)
    fused(rule).decide_ahead(tree, sampling.rows(logits), coins)  # fills caches
    with NoHostReads(), FarAway() as watch:
        launched = fused(rule).decide_ahead(tree, sampling.rows(logits), coins)
    assert launched is not None
    assert watch.reads == []
    with FarAway() as watch:
        assert launched.verdict() == Verdict((0,), 7)
    assert watch.reads == ["tolist"]
