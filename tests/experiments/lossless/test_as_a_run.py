"""`check-lossless` on CUDA samples by the parts of a run: captured passes, drafts as one graph, the kernel.

Graphs are tapes here and kernels are interpreted, so this file runs itself in a process with
TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import os
from types import SimpleNamespace

import pytest
import torch
from taped_passes import make_model, taped

from treespec import Law, Sampling, TreeShape, verify
from treespec.draft import ModelDrafter
from treespec.experiments.lossless import law as module
from treespec.experiments.lossless.law import LawChecker
from treespec.experiments.run.prompts import Prompt
from treespec.models.pass_kinds import Passes
from treespec.tree.kept_rows import kept_paths
from treespec.tree.unread_tree import UnreadTree
from treespec.verify.engine.fused import Launched, fused

__all__ = ["make_model", "taped"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")

SHAPE, WARM = TreeShape.expansion([3, 1]), Sampling(temperature=1.5)
PROMPT = Prompt(0, "p", None, (5, 1, 7, 9), "here", 0)
METHOD = SimpleNamespace(
    name="tree",
    choices={"T": SimpleNamespace(rule=verify.rrsw, sampling=WARM)},
    drafter=lambda models, name: ModelDrafter(models.draft, SHAPE, Law.WITHOUT_REPLACEMENT, WARM),
)


@pytest.fixture
def on_cuda(make_model, taped, monkeypatch, request):
    """A pair whose passes are taped, and what of a run decodes it."""
    request.getfixturevalue("quick_interpreter")
    monkeypatch.setattr("treespec.sampling.children.LEAST_TOKENS_FOR_TOPK", 1000)
    from treespec.models.passes.captured_runner import Places
    from treespec.target.graph import GraphTarget

    target, draft = make_model(), make_model()
    draft.run_by(Places().copying_runner, Passes("captured"))
    monkeypatch.setattr(module, "as_a_run", lambda pair: True)
    monkeypatch.setattr(module, "make_target", GraphTarget)
    monkeypatch.setattr(module, "verifier_for", lambda rule, model: fused(rule))
    return SimpleNamespace(target=target, draft=draft, others={}, tokenizer=None, source=None)


def sampled(pair):
    checker = LawChecker(pair, [PROMPT], samples=10, tokens=5)
    return checker._sampled(METHOD, "T", 0).rows


@interpreted
@pytest.mark.usefixtures("without_shape_checks")
def test_the_texts_are_those_of_ordinary_passes(on_cuda, make_model, taped, monkeypatch):
    """And they are drafted as graphs and decided by the kernel."""
    verdicts, verdict = [], Launched.verdict
    monkeypatch.setattr(
        Launched,
        "verdict",
        lambda self: (verdicts.append(type(self._tree)), verdict(self))[1],
    )
    found = sampled(on_cuda)
    assert set(verdicts) == {UnreadTree}
    assert sum(tape.replays for tape in taped) >= 2 * len(verdicts)
    monkeypatch.undo()
    ordinary = SimpleNamespace(
        target=make_model(), draft=make_model(), others={}, tokenizer=None, source=None
    )
    assert sampled(ordinary) == found


@interpreted
@pytest.mark.usefixtures("without_shape_checks")
def test_rows_that_are_not_moved_are_noticed(on_cuda, monkeypatch):
    right = sampled(on_cuda)

    def in_place(shape, device):
        kept = kept_paths(shape, device)
        return torch.where(kept < 0, -1, torch.arange(kept.shape[1]))

    monkeypatch.setattr("treespec.target.graph.kept_paths", in_place)
    assert sampled(on_cuda) != right


@plain
def test_through_the_interpreter(interpret):
    assert "failed" not in interpret(__file__)


@plain
@pytest.mark.usefixtures("without_shape_checks")
def test_which_models_decode(make_model):
    pair = SimpleNamespace(
        target=make_model(), draft=make_model(), others={}, tokenizer=None, source=None
    )
    assert not module.as_a_run(pair)
    assert module._models_of(pair, module.PassMemory()) is not pair
    there = SimpleNamespace(target=SimpleNamespace(device=SimpleNamespace(type="cuda")))
    assert module._models_of(there, module.PassMemory()) is there
