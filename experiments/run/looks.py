"""Runs that end when they are clear enough: looks at what is decoded, and what each of them saw.

Looks come after 8, 12, 18, 27, 40, ... prompts (`report.sequential.looks`), or files where prompts are
excerpts. Between two looks nothing is judged, and what a look saw is in the manifest: a run that was killed
goes on to the same end.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from treespec.experiments.config.until import Until
from treespec.experiments.errors import NoFinishedPrompt
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.looks import ending
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.verdict import (
    Comparison,
    best_against_plain,
    trees_against_chains,
)
from treespec.experiments.run.decoding import Unit
from treespec.experiments.run.session import Session
from treespec.experiments.run.until import ends_of_looks

__all__ = ["Looks", "look_at"]


def look_at(run: Run, until: Until, prompts: int) -> list[dict[str, Any]]:
    """What a look at the first prompts of a run sees.

    Args:
        run: whose manifest has the looks before.
        until: when the run may end.
        prompts: how many have been decoded; rows of later ones are left out.

    Returns:
        An entry of the manifest's `looks` for each sampling setting.
    """
    first = pl.col("prompt") < prompts
    seen = replace(
        run, all_prompts=run.all_prompts.filter(first), all_steps=run.all_steps.filter(first)
    )
    names = [setting["name"] for setting in run.manifest["samplings"]]
    return [_entry(name, until, prompts, seen.measurements.get(name)) for name in names]


def _entry(sampling: str, until: Until, prompts: int, data: Measurements | None) -> dict[str, Any]:
    duel = None if data is None else _deciding(until, data)
    ratio = None if duel is None else duel.ratio
    return plain_data(
        {
            "prompts": prompts,
            "samples": 0 if data is None else data.samples,
            "sampling": sampling,
            "ratio": ratio and ratio.estimate,
            "low": ratio and ratio.low,
            "high": ratio and ratio.high,
            "boundary": data and data.boundary,
            "decided": duel is not None and _clear(until, duel),
        }
    )


def _deciding(until: Until, data: Measurements) -> Comparison | None:
    """Trees against chains; for a width, of a run that has not both, the best against plain decoding."""
    groups = {method.group for method in (*data.methods, *data.failed) if method.lossless}
    both = "tree" in groups and groups & {"chain", "assisted"}
    return trees_against_chains(data) if until.decided or both else best_against_plain(data)


def _clear(until: Until, duel: Comparison) -> bool:
    if until.half_width is None:
        return duel.winner is not None
    return duel.ratio.bounded and duel.ratio.half_width < until.half_width


@dataclass(frozen=True)
class Looks:
    """The looks of a run that goes on.

    Args:
        session: the open run, whose config has `until`.
        manifest: of the run, whose `looks` grow.
        ends: after how many prompts is looked.
    """

    session: Session
    manifest: dict[str, Any]
    ends: Sequence[int]

    @classmethod
    def of(cls, session: Session, manifest: dict[str, Any]) -> "Looks":
        """Those that are planned."""
        return cls(session, manifest, ends_of_looks(session.ready.measured))

    def through(self, units: Sequence[Unit]) -> Iterator[Unit]:
        """The units that the run takes: it looks when those before a look are written, and may end there.

        Args:
            units: what is missing, prompt by prompt.
        """
        left = deque(units)
        for end in self.ends:
            while left and left[0].prompt.index < end:
                yield left.popleft()
            if self._clear_after(end) and not self._went_on(end):
                break
        self.session.reporter.note(str(ending(self.manifest)))

    def _clear_after(self, end: int) -> bool:
        """Whether the run may end, as was found before it was killed, or as it is found now."""
        taken = self.manifest["looks"]
        if not any(look["prompts"] == end for look in taken):
            until, records = self.session.config.until, self.session.records
            assert until is not None
            try:
                taken += look_at(load_run(records.path), until, end)
            except NoFinishedPrompt:
                names = self.session.known.samplings
                taken += [_entry(name, until, end, None) for name in names]
            records.write_manifest(self.manifest)
        return all(look["decided"] for look in taken if look["prompts"] == end)

    def _went_on(self, end: int) -> bool:
        """Whether later prompts had been decoded before some of these were decoded again."""
        return any(prompt >= end for prompt, *_ in self.session.finished)
