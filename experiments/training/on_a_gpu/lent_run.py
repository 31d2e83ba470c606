"""Texts, plan, training and what comes back, one after the other and each within its time."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from treespec.experiments.records.manifest import environment
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.on_a_gpu.deadline import Deadline, WholeParts
from treespec.experiments.training.on_a_gpu.lean_heads import matrices_of
from treespec.experiments.training.on_a_gpu.parcels import LIMITS, TEXTS, TRAINING, Limits, Packer
from treespec.experiments.training.on_a_gpu.plan import Plan, tokens_within
from treespec.experiments.training.settings import TrainingConfig, load_training
from treespec.experiments.training.texts.write_texts import Recipe, write_texts
from treespec.experiments.training.trained import Trained
from treespec.experiments.training.training_run import TrainingRun
from treespec.models.load import load_pair

RENEWED_EVERY = 60.0
"""Seconds after which what is to come back is packed again; also as soon as a draft is finished."""
LOOKED_EVERY = 2.0
"""Seconds between two looks for finished drafts."""


@dataclass(frozen=True)
class LentRun:
    """A training on a machine that is there for some minutes only.

    Args:
        config: name or path of a training config.
        overrides: of its keys.
        work: folder of the run.
        out: folder of what comes back.
        device: where everything is computed.
        recipe: of the texts; its target is the config's.
        reporter: shows progress.
        limits: what may come back.
    """

    config: str
    overrides: Sequence[str]
    work: Path
    out: Path
    device: str
    recipe: Recipe
    reporter: Reporter
    limits: Limits = LIMITS

    def run(
        self, writing: Deadline, training: Deadline, planned: float | None = None
    ) -> list[Trained]:
        """Write texts, train every draft and measure it; goes on with what is in the run's folder.

        Args:
            writing: until when texts are written.
            training: until when drafts are trained.
            planned: seconds that training may take in all calls together; None for those of this one.

        Raises:
            OutOfTime: if the time is up before all drafts are trained; what is packed is complete.
        """
        self.work.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        packer = Packer(self.work, self.out, self.limits, say=self.reporter.note)
        with renewed(packer, self.reporter):
            versions = environment()["versions"]
            self.reporter.note(
                f"{self.device}, " + ", ".join(f"{k} {v}" for k, v in versions.items())
            )
            if Plan.read(self.work) is None:
                self._write_texts(writing)
            run = self._planned(training, planned)
            packer.matrices = matrices_of(run.pair.target)
            return run.run()

    def _write_texts(self, deadline: Deadline) -> None:
        target = self._config().target
        with self.reporter.task(f"reading {target}"):
            pair = load_pair(target, "none", dtype="bfloat16", device=self.device, passes="eager")
        recipe = replace(self.recipe, target=target)
        written = write_texts(
            self.work / TEXTS, recipe, pair, self.reporter, WholeParts(deadline.at)
        )
        tokens, texts, seconds = written.data.tokens, len(written.data), written.seconds
        self.reporter.note(
            f"{tokens:,} tokens in {texts:,} texts; {written.tokens:,} of them in {seconds:.0f} s now"
        )

    def _planned(self, deadline: Deadline, seconds: float | None) -> TrainingRun:
        """The training with its budget, which is found out first unless that was done before."""
        plan, lender = Plan.read(self.work), None
        if plan is None:
            some = self._config("tokens=1000000", "metric.every=1000000")
            lender = TrainingRun(some, self.work / "timing", self.reporter)
            paces = {draft.label: lender.pace(draft) for draft in some.drafts}
            for name, pace in paces.items():
                self.reporter.note(
                    f"{name}: {1 / pace.token_seconds:,.0f} tokens/s; measuring takes "
                    f"{pace.measure_seconds:.1f} s"
                )
            plan = tokens_within(seconds or deadline.left, some, paces)
            plan.save(self.work)
        self.reporter.note(f"every draft is trained on {plan.tokens:,} tokens")
        config = self._config(f"tokens={plan.tokens}", f"metric.every={plan.every}")
        run = TrainingRun(config, self.work / TRAINING, self.reporter, stopping=deadline)
        if lender is not None:
            lender.says.held_out.save(self.work / TRAINING / "held_out.json")
            run.borrow(lender)
        return run

    def _config(self, *more: str) -> TrainingConfig:
        texts = f"texts={{kind: written, path: {self.work / TEXTS}}}"
        return load_training(
            self.config, [*self.overrides, texts, "states=computed", f"device={self.device}", *more]
        )


@contextmanager
def renewed(packer: Packer, reporter: Reporter) -> Iterator[None]:
    """Pack again and again, in a thread, and once more at the end."""
    ended = threading.Event()

    def repeat() -> None:
        packed, finished = time.monotonic(), packer.finished
        while not ended.wait(LOOKED_EVERY):
            if packer.finished == finished and time.monotonic() - packed < RENEWED_EVERY:
                continue
            packed, finished = time.monotonic(), packer.finished
            try:
                packer.pack()
            except OSError as error:  # such as a checkpoint that was just removed
                reporter.note(f"not packed now: {error}")

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        packer.pack()
