"""`treespec train check`: whether the metric's replays of trained drafts are what live runs do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treespec import plugins
from treespec.draft import ModelDrafter
from treespec.experiments.config.schema import ModelsConfig
from treespec.experiments.config.trained import TrainedHead
from treespec.experiments.errors import ConfigError
from treespec.experiments.report.table import Column, Finding, Table
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.held_out_answers import HeldOut, TargetSays
from treespec.experiments.training.metric_check import Comparison, Difference, compared
from treespec.experiments.training.settings import TrainingConfig, load_training
from treespec.experiments.training.trained import Trained
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Growth
from treespec.sampling.distributions import Sampling
from treespec.tree import Law, TreeShape

GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Checked:
    """A tree of a trained draft, replayed and run.

    Args:
        draft: name of the draft.
        comparison: its replay and its live run.
    """

    draft: str
    comparison: Comparison

    def row(self) -> Mapping[str, Any]:
        """Everything as one line."""
        return {"draft": self.draft, **asdict(self.comparison)}


def check_trained(
    folder: Path, reporter: Reporter, only: str | None = None, device: str | None = None
) -> list[Checked]:
    """Run every trained draft of a folder on the held-out prompts, with every tree of the metric.

    Drafts are read from their files, as configs read them.

    Args:
        folder: of a training.
        reporter: shows progress.
        only: name of the one draft to check; None for all.
        device: where to run; None for the config's.

    Raises:
        ConfigError: if it is no folder of a training, or such a draft is not trained.
        TreespecError: if target or draft cannot be read.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(
            f"{folder} is no folder of a training (it has no config.yaml): name one that "
            "`treespec train` has written"
        )
    config = load_training(path, [] if device is None else [f"device={device}"])
    standing = [Trained.read(folder / draft.label) for draft in config.named(only)]
    trained = [one for one in standing if one is not None]
    if not trained:
        wanted = "draft" if only is None else f"draft {only!r}"
        raise ConfigError(f"{folder} has no trained {wanted}: `treespec train` trains it")
    with reporter.task(f"reading {config.target}"):
        target = _models(config, "none").target
    says, found = TargetSays(target, HeldOut.load(folder / "held_out.json")), []
    with reporter.units(len(trained) * says.held_out.positions, counted="positions") as begin:
        for one in trained:
            begin(one.label, says.held_out.positions)
            make = _maker(config, target, one.family, folder / one.label / "head")
            found += [Checked(one.label, comparison) for comparison in compared(says, make)]
    return found


def finding(checked: Sequence[Checked]) -> Finding:
    """Replays beside live runs, and the differences of steps."""
    differences = [*_differences(checked)]
    trees = Table(
        "tree",
        [
            Column[Checked]("draft", lambda one: one.draft, left=True),
            Column[Checked]("tree", lambda one: one.comparison.tree, left=True),
            Column[Checked]("replayed", lambda one: f"{one.comparison.replayed:.4f}"),
            Column[Checked]("live", lambda one: f"{one.comparison.live:.4f}"),
            Column[Checked]("steps", lambda one: f"{one.comparison.steps:,}"),
            Column[Checked]("differences", lambda one: str(len(one.comparison.differences))),
        ],
        checked,
        title="tokens per step on held-out answers",
        said="" if differences else "every step of the live runs is as it was replayed",
    )
    steps = Table(
        "difference",
        [
            Column[tuple[str, Difference]]("draft", lambda row: row[0], left=True),
            Column[tuple[str, Difference]]("tree", lambda row: row[1].tree, left=True),
            Column[tuple[str, Difference]]("answer", lambda row: str(row[1].text)),
            Column[tuple[str, Difference]]("position", lambda row: str(row[1].position)),
            Column[tuple[str, Difference]]("replayed", lambda row: _count(row[1].replayed)),
            Column[tuple[str, Difference]]("live", lambda row: _count(row[1].live)),
            Column[tuple[str, Difference]]("tie of the", lambda row: row[1].cause, left=True),
            Column[tuple[str, Difference]]("gap", lambda row: f"{row[1].gap:.2g}"),
        ],
        differences,
        title="the first step of an answer that differs: accepted tokens",
    )
    note = (
        "the gap is how near the tie is that the two resolve otherwise: between the logits of the target's "
        "two best tokens, or the draft's probabilities of the answer's token and of its nearest sibling"
    )
    return Finding(
        "replays and live runs",
        [trees, steps] if differences else [trees],
        [note] if differences else [],
    )


def _differences(checked: Sequence[Checked]) -> Iterator[tuple[str, Difference]]:
    for one in checked:
        yield from ((one.draft, difference) for difference in one.comparison.differences)


def _count(accepted: int | None) -> str:
    return "no step" if accepted is None else str(accepted)


def _models(config: TrainingConfig, draft: str) -> Any:
    return load_models(
        ModelsConfig(target=config.target, draft=draft, dtype="float32", device=config.device)
    )


def _maker(
    config: TrainingConfig, target: TransformersModel, family: str, folder: Path
) -> Callable[[Growth | TreeShape], ModelDrafter]:
    """Makes drafters with a draft that was written."""
    if family == "model":
        draft = _models(config, str(folder)).draft
        return lambda tree: ModelDrafter(draft, tree, Law.DETERMINISTIC, GREEDY)
    kind: Any = plugins.parts("source")[family].settings
    settings: TrainedHead = kind(source=family, model=str(folder))
    head, drafter = settings.head(target), kind.drafter
    return lambda tree: drafter(head, tree, Law.DETERMINISTIC, GREEDY)
