"""Trained heads become shipped ones, with a card that says what was measured."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from treespec import load_pair
from treespec.draft.trained.eagle3_files import load_eagle3
from treespec.errors import InvalidArgument
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.head_card import covered
from treespec.experiments.training.held_out_answers import HeldOut, TargetSays
from treespec.experiments.training.settings import load_training
from treespec.experiments.training.ship import ship
from treespec.experiments.training.training_run import TrainingRun

SMALL = (
    *("tokens=512", "length=64", "batch_tokens=128", "vocabulary=512", "texts.files=4"),
    *("held_out.count=2", "metric.positions=24", "metric.every=512"),
    "drafts=[{family: eagle3, seed: 3, inner: 32, boundaries: [2, 3, 4], steps: 2}]",
)


def test_a_trained_head_is_shipped_with_its_card(tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    (result,) = TrainingRun(load_training("embedded", SMALL), trained, Reporter(None)).run()
    folder = ship(trained, "eagle3-seed3", "embedded-small", tmp_path / "heads")
    before = load_file(trained / "eagle3-seed3" / "head" / "model.safetensors")
    after = load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert after["fc.weight"].dtype == torch.bfloat16
    assert torch.equal(after["d2t"], before["d2t"])
    target = load_pair("embedded").target
    head = load_eagle3(str(folder), target)
    assert head.contract.vocabulary == 512

    kept = torch.arange(512) + before["d2t"]
    says = TargetSays(target, HeldOut.load(trained / "held_out.json"))
    coverage = covered(says, kept)
    counted = zip(says.logits, says.held_out.kept, strict=True)
    rows = torch.cat([logits[:count] for logits, count in counted]).double().softmax(-1)
    assert coverage.mass is not None
    assert coverage.mass.estimate == pytest.approx(float(rows[:, kept].sum() / len(rows)), abs=1e-6)
    card = " ".join((folder / "README.md").read_text().split())
    lost = f"{100 * (1 - coverage.mass.estimate):.2f} %"
    chain = f"{result.last['tokens_per_step_chain_4']:.3f}"
    for said in (
        "512 of the target's 4,096",
        lost,
        chain,
        result.environment["versions"]["torch"],
        "inner: 32",
        "seed 3,",
    ):
        assert said in card, said
    with pytest.raises(InvalidArgument, match="not empty"):
        ship(trained, "eagle3-seed3", "embedded-small", tmp_path / "heads")
    with pytest.raises(ConfigError, match="no finished draft"):
        ship(trained, "block", "embedded-block", tmp_path / "heads")
