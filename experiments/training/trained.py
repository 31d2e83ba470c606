"""Drafts that were trained: what is recorded of each, and how they are shown side by side."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from treespec.experiments.report.table import Cell, Column, Finding, Table, interval
from treespec.experiments.training.curves import PANELS
from treespec.experiments.training.held_out_loss import LOSS_DEPTH
from treespec.files import DATA_BYTES, read_bytes, write_whole
from treespec.reading_models import Strict, read_model
from treespec.search.intervals import Interval

__all__ = ["Trained", "finding"]

FILE = "result.json"


class Trained(Strict):
    """A draft that was trained."""

    draft: str
    """Its name."""
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
    curve: list[dict[str, Any]]
    """What was measured on the way; the last row is that of the end."""

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


def finding(trained: Sequence[Trained], out: Path) -> Finding:
    """The drafts of a folder side by side."""

    def of(key: str) -> Callable[[Trained], Cell]:
        def shown(one: Trained) -> Cell:
            row = one.last
            return interval(Interval.of(row[key], row[f"{key}_low"], row[f"{key}_high"]), 3)

        return shown

    table = Table(
        "trained",
        [
            Column("draft", lambda one: one.draft, left=True),
            Column("trained numbers", lambda one: f"{one.parameters / 1e6:.2f}M"),
            *(Column(title, of(key)) for key, title in PANELS.items()),
            Column("held-out loss", of("held_out_loss")),
            Column("minutes", lambda one: f"{one.seconds / 60:.1f}"),
        ],
        trained,
        title="tokens per step on held-out answers, by replay",
    )
    first = trained[0]
    notes = [
        "the held-out loss is KL(target || draft) at T = 1 in nats, averaged over the depths 1 to "
        f"{LOSS_DEPTH}; the tokens that every draft has hold {first.last['covered']:.1%} of the target's "
        "probability",
        f"in a config, {first.draft} is draft: {{source: {first.family}, "
        f"model: {out / first.draft / 'head'}}}",
    ]
    return Finding("trained drafts", [table], notes=notes)
