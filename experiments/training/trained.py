"""Drafts that were trained: what is recorded of each, and how they are shown side by side."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from treespec.experiments.report.table import Cell, Column, Finding, Table, interval
from treespec.experiments.training.curves import OVERLAP, PANELS, Curve
from treespec.experiments.training.held_out_loss import LOSS_DEPTH
from treespec.files import DATA_BYTES, read_bytes, write_whole
from treespec.reading_models import Strict, read_model
from treespec.search.intervals import Interval

FILE = "result.json"


class Trained(Strict):
    """A draft that was trained."""

    draft: str
    """Its name."""
    seed: int | None = None
    """Its seed, if it has one of its own: then drafts of one name differ in it."""
    family: str
    """Its source in configs; `model` for a draft model."""
    parameters: int
    """Numbers that were trained, without embedding and head of the target."""
    learning_rate: float
    """That it was trained with."""
    seconds: float
    """Of its training, measurements included."""
    settings: dict[str, Any]
    """Of the draft, from its config."""
    inputs: dict[str, Any]
    """Target, texts and processes that it was trained with."""
    environment: dict[str, Any]
    """Versions, hardware and commit of the process that finished it."""
    curve: list[dict[str, Any]]
    """What was measured on the way; the last row is that of the end."""

    @property
    def label(self) -> str:
        """Name of its folder."""
        return self.draft if self.seed is None else f"{self.draft}-seed{self.seed}"

    @property
    def last(self) -> dict[str, Any]:
        """The measurement at the end."""
        return self.curve[-1]

    def row(self) -> dict[str, Any]:
        """Its line among other drafts: everything but the curve."""
        return self.model_dump(exclude={"curve"}) | {"end": self.last}

    def save(self, folder: Path) -> None:
        """Write it beside the draft, when all else stands there."""
        write_whole(folder / FILE, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Trained | None":
        """What `save` has written; None if the draft is not finished."""
        path = folder / FILE
        return read_model(cls, read_bytes(path, DATA_BYTES)) if path.exists() else None


def by_draft(trained: Sequence[Trained]) -> dict[str, list[Curve]]:
    """The curves of each draft, one for each of its seeds."""
    curves: dict[str, list[Curve]] = {}
    for one in trained:
        curves.setdefault(one.draft, []).append(one.curve)
    return curves


def finding(trained: Sequence[Trained], out: Path) -> Finding:
    """The drafts of a folder side by side; drafts of several seeds by their mean and range."""
    groups: dict[str, list[Trained]] = {}
    for one in trained:
        groups.setdefault(one.draft, []).append(one)

    def of(key: str) -> Callable[[list[Trained]], Cell]:
        return lambda group: interval(_over_seeds([one.last for one in group], key), 3)

    table = Table(
        "trained",
        [
            Column("draft", lambda group: group[0].draft, left=True),
            Column("trained numbers", lambda group: f"{group[0].parameters / 1e6:.2f}M"),
            *(Column(title, of(key)) for key, title in (PANELS | OVERLAP).items()),
            Column("held-out loss", of("held_out_loss")),
            Column("minutes", lambda group: f"{sum(one.seconds for one in group) / 60:.1f}"),
        ],
        [*groups.values()],
        title="tokens per step on held-out answers, by replay",
    )
    several = max(map(len, groups.values()), default=1)
    first = trained[0]
    notes = [
        "the held-out loss is KL(target || draft) at T = 1 in nats, averaged over the depths 1 to "
        f"{LOSS_DEPTH}; the tokens that every draft has hold {first.last['covered']:.1%} of the target's "
        "probability",
        f"in a config, {first.draft} is draft: {{source: {first.family}, "
        f"model: {out / first.label / 'head'}}}",
    ]
    if several > 1:
        notes.insert(
            0, f"mean over {several} seeds, and their lowest and highest; minutes of all seeds"
        )
    return Finding("trained drafts", [table], notes=notes)


def _over_seeds(rows: Sequence[Mapping[str, Any]], key: str) -> Interval:
    """The figure of one training with its interval, or the mean of several, with their range."""
    if len(rows) == 1:
        (row,) = rows
        return Interval.of(row[key], row[f"{key}_low"], row[f"{key}_high"])
    values = [row[key] for row in rows]
    return Interval(fmean(values), min(values), max(values))
