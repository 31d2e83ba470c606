"""Texts, training and metric of every family on a GPU that is only pretended: nothing stays on the CPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretended_gpu import Mixed, PretendedGpu, move

from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.settings import load_training
from treespec.experiments.training.students.blocks import BlockStudent
from treespec.experiments.training.texts.write_texts import Recipe, write_texts
from treespec.experiments.training.training_run import TrainingRun
from treespec.models.transformers_model import TransformersModel

QUIET = Reporter(None)
DRAFTS = (
    "{family: eagle3, inner: 32, boundaries: [2, 3, 4], steps: 2}",
    "{family: eagle, inner: 32, steps: 2}",
    "{family: medusa, count: 4}",
    "{name: two-way, family: block, causal: false, inner: 32, anchors: 4}",
    "{name: causal, family: block, causal: true, inner: 32, anchors: 4}",
    "{family: model, inner: 32, on_policy: 0.5}",
)


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (10**11, 10**11))
    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda device=None: 0)


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    small = (
        *("tokens=256", "length=64", "batch_tokens=128", "vocabulary=512", "texts.files=4"),
        *("held_out.count=2", "metric.positions=16", "metric.every=256"),
        f"drafts=[{', '.join(DRAFTS)}]",
    )
    run = TrainingRun(load_training("embedded", small), tmp_path / "run", QUIET)
    move(run.pair.target.model)
    return run


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_all_families_train_on_one_device(run: TrainingRun, tmp_path: Path) -> None:
    with PretendedGpu():
        loaded = run.pair.target
        run.pair = replace(
            run.pair, target=TransformersModel(loaded.model, vocab_size=loaded.vocab_size)
        )
        assert run.pair.target.device.type == "cuda"
        recipe = Recipe("embedded", tokens=20, batch=2, answer=12)
        written = write_texts(tmp_path / "texts", recipe, run.pair, QUIET)
        assert written.data.manifest["recipe"]["writer"] == "generate"
        assert len(run.run()) == len(DRAFTS)


def test_a_tensor_that_stays_on_the_cpu_is_found(
    run: TrainingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgotten(self: BlockStudent, packed, generator):
        return torch.zeros(packed.ids.shape[0], 4, dtype=torch.long)

    monkeypatch.setattr(BlockStudent, "drawn", forgotten)
    with PretendedGpu(), pytest.raises(Mixed):
        run.run("causal")
