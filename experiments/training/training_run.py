"""Train the drafts of a config one after the other, and measure each on the way.

    OUT/config.yaml             what was trained, with all defaults
    OUT/inputs.json             target, texts and processes, which may not change
    OUT/held_out.json           the target's answers that drafts are measured on
    OUT/results.json            all drafts side by side, each with versions and machine
    OUT/curves.png              tokens per step while they were trained
    OUT/states/                 the target's hidden states on the texts, if they are stored
    OUT/NAME/head               the draft, in its authors' layout
    OUT/NAME/result.json        what was measured on the way; written last
    OUT/NAME/checkpoint.pt      from which a killed training goes on

The same command goes on where it was killed, and ends with the same weights (with one thread to the bit).
"""

import json
import math
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from treespec.experiments.config.schema import ModelsConfig
from treespec.experiments.errors import ConfigError, TrainingError
from treespec.experiments.records.manifest import environment
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.experiments.run.prompts import encode, read_prompts
from treespec.experiments.training.curves import save_curves
from treespec.experiments.training.families import Trainee
from treespec.experiments.training.freed_memory import freed_memory_kept
from treespec.experiments.training.held_out_answers import HeldOut, TargetSays, answered
from treespec.experiments.training.loop import Diverged, Progress, Schedule, train
from treespec.experiments.training.metric import measure
from treespec.experiments.training.packing import PackedTexts, Texts
from treespec.experiments.training.processes import ALONE, Processes
from treespec.experiments.training.settings import TrainingConfig, WrittenTexts
from treespec.experiments.training.stored_states import StoredStates, stored_states
from treespec.experiments.training.students.fresh_student import fresh_student
from treespec.experiments.training.students.student import Student
from treespec.experiments.training.teacher import Teacher, require_sight
from treespec.experiments.training.texts.leaks import LEAK, leaks, prompts_of
from treespec.experiments.training.trained import Trained, by_draft
from treespec.experiments.training.training_folder import claim, taken
from treespec.experiments.training.watch import Watch
from treespec.features import Features
from treespec.files import write_whole
from treespec.models.fingerprint import fingerprint
from treespec.models.load import Pair
from treespec.stopping import stop_at_tokens

NORMS_LEARN_AT = 0.5
"""Learning rate of norms and biases, as a multiple of that of matrices."""
WARMUP_STEPS, WARMUP_SHARE = 40, 0.1
"""Steps until the learning rate is reached, and their largest share of all steps."""
POSITIONS_EACH = 64
"""Positions of each held-out answer: the first tokens of answers are much alike."""
UNTIMED_STEPS, TIMED_STEPS = 3, 8
"""Steps that show how fast a draft trains, and those before them, in which a device warms up."""


@dataclass(frozen=True)
class Pace:
    """How fast a draft trains.

    Args:
        token_seconds: seconds for each token of its training.
        measure_seconds: seconds to make the draft and to measure it once.
    """

    token_seconds: float
    measure_seconds: float


class TrainingRun:
    """The drafts of a config, to be trained in a folder.

    Args:
        config: what to train.
        out: the folder.
        reporter: shows progress.
        others: processes that share the batches.
        stopping: is asked after each step whether to stop before the end.

    Raises:
        TrainingError: if the folder holds a training of another config.
        TreespecError: if the target, the texts or the held-out prompts cannot be read.
    """

    def __init__(
        self,
        config: TrainingConfig,
        out: Path,
        reporter: Reporter,
        others: Processes = ALONE,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.out, self.reporter, self.others = config, out, reporter, others
        self.stopping = stopping
        self.left_out = 0
        """Texts that hold a held-out prompt."""
        if others.first:
            claim(config, out)
        others.wait()

    def run(self, only: str | None = None) -> list[Trained]:
        """Train what is not trained yet; write results and curves.

        Args:
            only: name of the one draft to train, see `TrainingConfig.named`.

        Raises:
            ConfigError: if the config has no such draft.
            TrainingError: if another process is training it.
            Diverged: if a loss is no number.
            OutOfTime: if it was to stop; what is trained stays.
        """
        drafts = self.config.named(only)
        if not drafts:
            names = ", ".join(draft.label for draft in self.config.trainings)
            raise ConfigError(f"the config has no draft {only!r}, but {names}")
        trained = []
        for draft in drafts:
            with freed_memory_kept():
                trained.append(self._trained(draft))
            self._show_side_by_side()
        return trained

    def _show_side_by_side(self) -> None:
        """Write what is finished, of all drafts."""
        if self.others.first:
            standing = [Trained.read(self.out / draft.label) for draft in self.config.trainings]
            everything = [one for one in standing if one is not None]
            rows = {"drafts": [one.row() for one in everything]}
            write_whole(self.out / "results.json", json.dumps(rows, indent=1) + "\n")
            save_curves(by_draft(everything), self.out / "curves.png")

    def pace(self, draft: Trainee) -> Pace:
        """How fast a draft trains and is measured here: a few steps, which are thrown away."""
        start, steps = time.perf_counter(), self.config.batch_tokens
        student = self._fresh(draft)
        watch, seed = self._watch(student, f"timing {draft.label}"), self.config.seed_of(draft)
        with TemporaryDirectory(dir=self.out) as folder:
            rate, checkpoint = self.config.learning_rate, Path(folder) / "checkpoint.pt"
            warm = self._train(student, seed, rate, UNTIMED_STEPS * steps, checkpoint, watch)
            timed = UNTIMED_STEPS + TIMED_STEPS
            done = self._train(student, seed, rate, timed * steps, checkpoint, watch)
        measure(self.says, student.drafter)
        return Pace(
            (done.seconds - warm.seconds) / (done.tokens - warm.tokens),
            time.perf_counter() - start - done.seconds,
        )

    def borrow(self, other: "TrainingRun") -> None:
        """Take target, texts and held-out answers of a run that differs in its budget alone."""
        self.pair, self.texts, self.kept, self.says = (
            other.pair,
            other.texts,
            other.kept,
            other.says,
        )
        self.left_out = other.left_out

    @cached_property
    def pair(self) -> Pair:
        """The target."""
        asked = self.config
        with self.reporter.task(f"reading {asked.target}"):
            pair = load_models(
                ModelsConfig(
                    target=asked.target,
                    draft="none",
                    dtype="float32",
                    device=self.others.device(asked.device),
                )
            )
        require_sight(pair.target, asked.length)
        return pair

    @cached_property
    def texts(self) -> Texts:
        """What drafts are trained on: written texts without those that hold a held-out prompt."""
        texts = self.config.texts.read(self.pair)
        if not isinstance(self.config.texts, WrittenTexts):
            return texts
        held_out = prompts_of(self.config.held_out, self.pair.tokenizer)
        leaking = {*leaks(texts.ids, texts.prompts, held_out)}
        if leaking:
            self.left_out = len(leaking)
            self.reporter.note(
                f"warning: {len(leaking):,} of {len(texts.ids):,} texts hold a held-out prompt ({LEAK} "
                "tokens in a row of it): they are left out"
            )
        return texts.without(leaking)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """What a training depends on besides its config; a folder goes on with the same alone."""
        digest = sha256()
        for ids, prompt in zip(self.texts.ids, self.texts.prompts, strict=True):
            digest.update(np.array([len(ids), prompt, *ids], np.int64).tobytes())
        found = {
            "target": fingerprint(self.pair.target.model),
            "texts": digest.hexdigest()[:16],
            "tokens of texts": self.texts.tokens,
            "processes": self.others.count,
        }
        if self.left_out:
            found["texts left out"] = self.left_out
        path = self.out / "inputs.json"
        before = json.loads(path.read_text()) if path.exists() else found
        changed = [
            f"{key} ({before.get(key)}, now {found[key]})"
            for key in found
            if before.get(key) != found[key]
        ]
        if changed:
            raise TrainingError(
                f"{self.out} holds a training with other inputs: {'; '.join(changed)}; choose another "
                "folder with --out"
            )
        if self.others.first:
            write_whole(path, json.dumps(found, indent=1) + "\n")
        return found

    @cached_property
    def says(self) -> TargetSays:
        """The target's answers to the held-out prompts, written once."""
        path = self.out / "held_out.json"
        if not path.exists():
            config = self.config.held_out
            raw = read_prompts(config)[: config.count]
            wanted = max(1, self.config.metric.positions // POSITIONS_EACH)
            chosen = np.random.default_rng(0).permutation(len(raw))[:wanted]
            raw = [raw[i] for i in sorted(chosen.tolist())]
            prompts = [prompt.ids for prompt in encode(raw, config, self.pair.tokenizer)]
            with self.reporter.task("the target answers the held-out prompts"):
                answered(
                    self.pair.target,
                    prompts,
                    positions=self.config.metric.positions,
                    stop=stop_at_tokens(self.pair.end_tokens),
                ).save(path)
        return TargetSays(self.pair.target, HeldOut.load(path), self.kept)

    @cached_property
    def kept(self) -> Int[Tensor, " v"] | None:
        """The tokens that drafts are trained to predict: the most frequent ones, in the order of ids."""
        wanted, size = self.config.vocabulary, self.pair.target.vocab_size
        if wanted is None or wanted >= size:
            return None
        counts = np.bincount(np.concatenate(self.texts.ids), minlength=size)
        counts[list(self.pair.end_tokens)] = counts.max() + 1
        chosen = np.argsort(-counts, kind="stable")[:wanted]
        return torch.from_numpy(np.sort(chosen)).to(self.pair.target.device)

    def _trained(self, draft: Trainee) -> Trained:
        """A draft of the config, trained unless it stands there already."""
        folder = self.out / draft.label
        with taken(folder) if self.others.first else nullcontext():
            return Trained.read(folder) or self._train_now(draft, folder)

    def _train_now(self, draft: Trainee, folder: Path) -> Trained:
        """Train a draft, or go on with it, and write it into its folder."""
        _ = self.inputs, self.says  # refused before anything is trained
        rate = self._learning_rate(draft)
        student = self._fresh(draft)
        first = self.others.first
        watch = self._watch(student, draft.label, self.config.metric.every if first else None)
        progress = self._train(
            student, self.config.seed_of(draft), rate, draft.tokens or self.config.tokens,
            folder / "checkpoint.pt", watch,
        )  # fmt: skip
        if first and (not progress.curve or progress.curve[-1]["tokens"] < progress.tokens):
            watch.measure(progress)
        trained = Trained(
            draft=draft.title, seed=draft.seed, family=draft.family,
            parameters=student.size, learning_rate=rate,
            seconds=progress.seconds, curve=progress.curve,
            settings=draft.model_dump(mode="json"), inputs=self.inputs, environment=environment(),
        )  # fmt: skip
        if first:
            shutil.rmtree(folder / "head", ignore_errors=True)  # of a process that was killed here
            student.save(folder / "head")
            trained.save(folder)
        return trained

    def _learning_rate(self, draft: Trainee) -> float:
        """The rate with the least held-out loss on a part of the budget; all drafts try the same ones.

        After so few tokens the trees of all rates are about as good, and the loss tells more.
        """
        tuning = self.config.tuning
        if tuning is None:
            return draft.learning_rate or self.config.learning_rate
        path = self.out / draft.label / "tuning.json"
        found: dict[str, float | None] = json.loads(path.read_text()) if path.exists() else {}
        tokens = int((draft.tokens or self.config.tokens) * tuning.share)
        for rate in tuning.rates:
            if str(rate) in found:
                continue
            student = self._fresh(draft)
            watch = self._watch(student, f"{draft.label}, learning rate {rate:g}")
            checkpoint = path.with_name(f"tuning-{rate:g}.pt")
            try:
                self._train(student, self.config.seed_of(draft), rate, tokens, checkpoint, watch)
                found[str(rate)] = measure(self.says, student.drafter).near.loss.estimate
            except Diverged:
                found[str(rate)] = None
            if self.others.first:
                write_whole(path, json.dumps(found) + "\n")
                checkpoint.unlink(missing_ok=True)
        best = min(found, key=lambda rate: math.inf if (loss := found[rate]) is None else loss)
        self.reporter.note(f"{draft.label}: learning rate {best} of {', '.join(found)}")
        return float(best)

    def _watch(self, student: Student, name: str, every: int | None = None) -> Watch:
        return Watch(student, name, self.reporter, lambda: self.says, every)

    def _data(self, seed: int) -> PackedTexts:
        asked = self.config
        return PackedTexts(self.texts, asked.batch_tokens // asked.length, asked.length, seed)

    def _stored(self, reads: Features) -> StoredStates | None:
        """What the target computes on the texts, if it is to be stored."""
        if self.config.states == "computed":
            return None
        return stored_states(
            self.pair.target,
            reads,
            self._data(self.config.seed),
            self.out / "states",
            self.reporter,
        )

    def _fresh(self, draft: Trainee) -> Student:
        return fresh_student(draft, self.pair, self.kept, self.config.seed_of(draft))

    def _train(
        self, student: Student, seed: int, rate: float, tokens: int, checkpoint: Path, watch: Watch
    ) -> Progress:
        """Train a student on a budget of tokens."""
        data = self._data(seed)
        teacher = Teacher(
            self.pair.target, student.reads, student.kept, self._stored(student.reads)
        )
        forward, others = self.others.wrapped(student), self.others

        def learn(progress: Progress) -> tuple[Tensor, int]:
            place = progress.step * others.count + others.rank
            generator = torch.Generator().manual_seed(seed * 2**32 + place)
            batch = data[progress.step]
            own = batch.part(others.rank, others.count).to(self.pair.target.device)
            learned = forward(teacher(student.batch(own, generator)), generator)
            return learned.loss, batch.tokens

        steps = tokens // self.config.batch_tokens
        warmup = max(1, min(WARMUP_STEPS, int(steps * WARMUP_SHARE)))
        schedule = Schedule(muon_lr=rate, adamw_lr=rate * NORMS_LEARN_AT, warmup_steps=warmup)
        with self.reporter.units(
            tokens, doing=watch.name, finished=watch.name, counted="tokens"
        ) as begin:
            watch.begin = begin
            return train(
                student.trained(), learn, schedule, tokens, checkpoint,
                after=watch, stores=self.others.first, stopping=self.stopping,
            )  # fmt: skip
