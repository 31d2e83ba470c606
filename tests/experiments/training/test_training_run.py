"""`treespec train` on the embedded target: what is written, resumption, and what is refused."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from tiny_models import build

from treespec.experiments.errors import ConfigError, TrainingError
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import read_prompts
from treespec.experiments.sweep.executors import LocalWorkers
from treespec.experiments.training import loop, training_run, watch
from treespec.experiments.training.curves import Line
from treespec.experiments.training.loop import Diverged
from treespec.experiments.training.packing import Texts
from treespec.experiments.training.settings import as_yaml, load_training, shipped_trainings
from treespec.experiments.training.students.autoregressive import HeadStudent
from treespec.experiments.training.texts.write_texts import Recipe, write_texts
from treespec.experiments.training.trained import Trained, finding
from treespec.experiments.training.training_jobs import MODULE, train_as_jobs
from treespec.experiments.training.training_run import TrainingRun
from treespec.models.load import load_pair

SMALL = (
    *("tokens=1024", "length=64", "batch_tokens=128", "vocabulary=512", "texts.files=4"),
    *("held_out.count=2", "metric.positions=24", "metric.every=512"),
    "drafts=[{family: eagle3, inner: 32, boundaries: [2, 3, 4], steps: 2}]",
)
QUIET = Reporter(None)


def run(out: Path, *overrides: str) -> TrainingRun:
    return TrainingRun(load_training("embedded", [*SMALL, *overrides]), out, QUIET)


def weights(out: Path) -> bytes:
    return (out / "eagle3" / "head" / "model.safetensors").read_bytes()


def test_a_killed_training_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(watch, "MOST_TIME", float("inf"))
    (whole,) = run(tmp_path / "whole").run()
    assert [row["tokens"] for row in whole.curve] == [0, 512, 1024]
    assert 0 < whole.curve[-1]["held_out_loss"] < whole.curve[0]["held_out_loss"]
    (seldom,) = run(tmp_path / "seldom", "metric.every=4096").run()
    assert [row["tokens"] for row in seldom.curve] == [0, 1024]
    assert weights(tmp_path / "whole") == weights(tmp_path / "seldom")
    assert whole.curve[-1]["tokens_per_step_chain_4"] >= 1
    assert (tmp_path / "whole" / "curves.png").stat().st_size > 1000
    heads = [column.head for column in finding([whole], tmp_path).tables[0].columns]
    assert {"best-first, 64 nodes", "held-out loss"} <= {*heads}

    forward, calls = HeadStudent.forward, 0

    def killed(self: HeadStudent, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (3, 7):
            raise KeyboardInterrupt
        return forward(self, *args)

    monkeypatch.setattr(HeadStudent, "forward", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "killed").run()
    (resumed,) = run(tmp_path / "killed").run()
    assert calls == 8 + 2
    assert weights(tmp_path / "whole") == weights(tmp_path / "killed")
    own = ("seconds", "metric_seconds")
    for row, other in zip(whole.curve, resumed.curve, strict=True):
        assert {k: v for k, v in row.items() if k not in own} == {
            k: v for k, v in other.items() if k not in own
        }
    saved = json.loads((tmp_path / "killed" / "results.json").read_text())
    assert saved["drafts"][0]["draft"] == "eagle3"
    assert "versions" in saved["drafts"][0]["environment"]

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years")
    with pytest.raises(TrainingError, match="no folder of a training"):
        run(tmp_path / "other").run()
    changed = run(tmp_path / "whole")
    changed.texts = Texts(changed.texts.ids[:2], changed.texts.prompts[:2])
    (tmp_path / "whole" / "eagle3" / "result.json").unlink()
    with pytest.raises(TrainingError, match=r"other inputs: texts .*tokens of texts"):
        changed.run()
    with pytest.raises(TrainingError, match="another config"):
        run(tmp_path / "whole", "seed=1")


def test_a_loss_that_is_no_number_stops_the_training_and_names_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    forward, calls = HeadStudent.forward, 0

    def diverging(self: HeadStudent, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        learned = forward(self, *args)
        return (
            learned if calls < 3 else type(learned)(learned.loss * float("nan"), learned.by_depth)
        )

    monkeypatch.setattr(HeadStudent, "forward", diverging)
    with pytest.raises(Diverged, match=r"step 2 .* the loss nan"):
        run(tmp_path).run()
    state = torch.load(tmp_path / "eagle3" / "checkpoint.pt", weights_only=True)
    assert state["progress"]["step"] == 2
    assert all(torch.isfinite(tensor).all() for tensor in state["parameters"].values())


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["drafts=[]"], "drafts"),
        (["drafts=[{family: eagle5}]"], "drafts"),
        (["vocabulary=0"], "vocabulary"),
        (["batch_tokens=8"], "batch_tokens"),
        (["seeds=0"], "seeds"),
        (["drafts=[{family: eagle3, inner: 8, boundaries: [1, 2, 3]}]"], "another boundary first"),
        (["drafts=[{family: medusa, count: 2}]"], "count"),
        (["texts={kind: written}"], "path"),
        (["drafts.1={family: eagle3, inner: 8}"], "index"),
    ],
)
def test_wrong_settings_are_told_with_their_keys(overrides: list[str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load_training("embedded", [*SMALL, *overrides])


def test_gradients_that_are_no_numbers_leave_the_checkpoint_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    weight = torch.nn.Parameter(torch.ones(2, 2))

    def learn(progress: loop.Progress) -> tuple[torch.Tensor, int]:
        zero = (weight * 0).sum()
        return weight.sum() if progress.step < 2 else zero.sqrt() * 0 + weight.sum(), 1

    with pytest.raises(Diverged, match="step 2"):
        loop.train({"w": weight}, learn, loop.Schedule(0.1, 0.1), 9, tmp_path / "c.pt")
    state = torch.load(tmp_path / "c.pt", weights_only=True)
    assert bool(state["parameters"]["w"].isfinite().all())


@pytest.mark.parametrize("name", sorted(shipped_trainings()))
def test_shipped_trainings_have_held_out_prompts(name: str) -> None:
    config = load_training(name).held_out
    count = len(read_prompts(config)[: config.count])
    assert count == config.count if config.count else count > 0


def test_a_draft_that_the_config_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'medusa', but eagle3"):
        run(tmp_path).run(only="medusa")


def test_texts_that_hold_a_held_out_prompt_of_the_config_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    lines = [f"value_{i} = first(other_{i}, {i * 7}) + {i}\n" for i in range(20)]
    for name, part in (("a.py", lines[:10]), ("b.py", lines[10:])):
        (tmp_path / "texts" / name).write_text("".join(part))
    (tmp_path / "own.txt").write_text("".join(lines[13:18]))
    recipe = Recipe("embedded", tokens=10**5, texts=tmp_path / "texts")
    write_texts(tmp_path / "written", recipe, load_pair("embedded", "none"), QUIET)
    said = io.StringIO()
    training = TrainingRun(
        load_training(
            "embedded",
            [
                *(setting for setting in SMALL if not setting.startswith(("texts", "held_out"))),
                f"texts={{kind: written, path: {tmp_path / 'written'}}}",
                f"held_out={{kind: text, path: {tmp_path / 'own.txt'}}}",
            ],
        ),
        tmp_path / "out",
        Reporter(Console(file=said, width=200)),
    )
    (kept,) = training.texts.ids
    assert "value_9 " in training.pair.tokenizer.decode(kept)
    assert "1 of 2 texts hold a held-out prompt" in said.getvalue()
    assert training.inputs["texts left out"] == 1


def test_a_draft_that_another_process_trains_is_left_alone(tmp_path: Path) -> None:
    holding = (
        "import sys, time; from pathlib import Path; "
        "from treespec.experiments.training.training_folder import taken\n"
        "with taken(Path(sys.argv[1])): print(flush=True); time.sleep(600)"
    )
    other = subprocess.Popen(
        [sys.executable, "-P", "-c", holding, str(tmp_path / "eagle3")], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        (tmp_path / "config.yaml").write_text(as_yaml(load_training("embedded", SMALL)))
        with pytest.raises(
            TrainingError, match=r"eagle3 is being trained by another process: .*--out"
        ):
            run(tmp_path).run()
    finally:
        other.kill()
        other.communicate()


def test_a_target_that_sees_less_than_a_row_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = SimpleNamespace(target=SimpleNamespace(model=build("mistral")))
    monkeypatch.setattr(training_run, "load_models", lambda models: pair)
    with pytest.raises(ConfigError, match=r"length = 64, .*sliding_window = 8.*set length"):
        run(tmp_path).run()
    assert run(tmp_path / "shorter", "length=8").pair is pair


def test_a_draft_of_several_seeds_is_shown_by_their_mean_and_range(tmp_path: Path) -> None:
    brief = ("seeds=2", "seed=4", "tokens=256", "metric.every=256")
    only = run(tmp_path, *brief).run(only="eagle3-seed5")
    assert [one.seed for one in only] == [5]
    trained = run(tmp_path, *brief).run(only="eagle3")
    assert [one.label for one in trained] == ["eagle3-seed4", "eagle3-seed5"]
    heads = [(tmp_path / one.label / "head" / "model.safetensors").read_bytes() for one in trained]
    assert heads[0] != heads[1]

    run(alone := tmp_path / "alone", "seed=5", *brief[2:]).run()
    assert weights(alone) == heads[1]

    for one, value in zip(trained, (1.5, 2.0), strict=True):
        one.last["overlap"] = value
    (cells,) = finding(trained, tmp_path).tables[0].rows
    assert "1.750 1.500–2.000" in map(str, cells)
    line = Line.of([one.curve for one in trained], "overlap")
    assert (line.values[-1], line.low[-1], line.high[-1]) == (1.75, 1.5, 2.0)


def test_drafts_are_trained_as_jobs(tmp_path: Path) -> None:
    two = "drafts=[{family: eagle3, inner: 16, boundaries: [2, 3, 4], steps: 1}, {family: eagle, inner: 0}]"
    with pytest.raises(ConfigError, match="inner"):
        load_training("embedded", [*SMALL, two])
    config = load_training("embedded", [*SMALL, "tokens=256", "metric.every=256"])
    train_as_jobs(config, tmp_path, lambda logs: LocalWorkers(1, module=MODULE), QUIET)
    trained = Trained.read(tmp_path / "eagle3")
    assert trained is not None
    assert trained.last["tokens"] == 256
    untouched = (tmp_path / "eagle3" / "result.json").stat().st_mtime_ns
    TrainingRun(config, tmp_path, QUIET).run()
    assert (tmp_path / "eagle3" / "result.json").stat().st_mtime_ns == untouched
    (tmp_path / "eagle3" / "result.json").unlink()
    (tmp_path / "eagle3" / "checkpoint.pt").write_bytes(b"no checkpoint")
    with pytest.raises(TrainingError, match=r"eagle3: .*checkpoint"):
        train_as_jobs(config, tmp_path, lambda logs: LocalWorkers(1, module=MODULE), QUIET)


KILLABLE = """
from treespec.experiments.cli.__main__ import main
from treespec.experiments.training import loop, training_run, watch
loop.CHECKPOINT_SECONDS = 0.5
main()
"""


@pytest.mark.slow
def test_a_training_that_is_killed_twenty_times_ends_with_the_same_bits(tmp_path: Path) -> None:
    """About a minute of training, and as long again for every kill that comes early."""
    eagle3 = "{family: eagle3, inner: 256, boundaries: [2, 3, 4]}"
    drafts = f"drafts=[{eagle3}, {{family: block, inner: 64, causal: true}}]"
    settings = ("tokens=32768", "metric.every=16384", "metric.positions=24", "held_out.count=2")

    def command(out: Path) -> list[str]:
        train = ["train", "embedded", *settings, "texts.files=40", drafts, "--out", str(out), "-q"]
        return [sys.executable, "-P", "-c", KILLABLE, *train]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command(tmp_path / "whole"), env=environment, check=True)
    random, kills = np.random.default_rng(0), 0
    while kills < 20:
        process = subprocess.Popen(command(tmp_path / "killed"), env=environment)
        try:
            process.wait(float(random.uniform(6, 9)))
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    subprocess.run(command(tmp_path / "killed"), env=environment, check=True)
    assert kills == 20, "the training ended first: make it longer"
    for name in ("eagle3", "block"):
        one, other = (tmp_path / run / name / "head" for run in ("whole", "killed"))
        assert (one / "model.safetensors").read_bytes() == (
            other / "model.safetensors"
        ).read_bytes()


def test_the_learning_rate_with_the_least_held_out_loss_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate at which the loss is no number is tried, and never taken."""
    tried = run(tmp_path / "o", "tuning={rates: [0.1, 0.2, 0.3], share: 0.25}")
    rates: list[float] = []

    def trained(
        student: Any, seed: int, rate: float, tokens: int, path: Path, *others: Any
    ) -> None:
        rates.append(rate)
        path.parent.mkdir(exist_ok=True)
        if rate == 0.1:
            raise Diverged("no number")

    def measured(*_: Any) -> Any:
        loss = {0.2: 2.5, 0.3: 2.4}[rates[-1]]
        return SimpleNamespace(near=SimpleNamespace(loss=SimpleNamespace(estimate=loss)))

    monkeypatch.setattr(tried, "_train", trained)
    monkeypatch.setattr(training_run, "measure", measured)
    assert tried._learning_rate(tried.config.drafts[0]) == 0.3
    assert rates == [0.1, 0.2, 0.3]
