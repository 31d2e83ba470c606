"""Runs with `until`, which end when their result is clear enough: take looks, and record what they saw.

Looks come after 8, 12, 18, 27, 40, ... prompts (`report.sequential.looks`), or files where prompts are
excerpts. Nothing is judged between two looks, and what a look saw is written to the manifest, so that a
run that was killed and resumed ends after the same prompt.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from treespec.experiments.config.schema import Until
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

__all__ = ["look_at", "through_looks"]


def look_at(run: Run, until: Until, prompts: int) -> list[dict[str, Any]]:
    """Look at the first prompts of a run.

    Args:
        run: the run, whose manifest holds the earlier looks.
        until: when the run may end.
        prompts: number of prompts to look at; rows of later prompts are ignored.

    Returns:
        An entry of the manifest's `looks` for each sampling setting.
    """
    counted = pl.col("prompt") < prompts
    seen = replace(
        run, all_prompts=run.all_prompts.filter(counted), all_steps=run.all_steps.filter(counted)
    )
    names = [setting["name"] for setting in run.manifest["samplings"]]
    return [_entry(name, until, prompts, seen.measurements.get(name)) for name in names]


def _entry(sampling: str, until: Until, prompts: int, data: Measurements | None) -> dict[str, Any]:
    """What a look sees in one sampling setting; `data` is None if no prompt has been measured."""
    comparison = None if data is None else _deciding(until, data)
    ratio = None if comparison is None else comparison.ratio
    return plain_data(
        {
            "prompts": prompts,
            "samples": 0 if data is None else data.samples,
            "sampling": sampling,
            "ratio": ratio and ratio.estimate,
            "low": ratio and ratio.low,
            "high": ratio and ratio.high,
            "boundary": data and data.boundary,
            "decided": comparison is not None and _clear(until, comparison),
        }
    )


def _deciding(until: Until, data: Measurements) -> Comparison | None:
    """The comparison that `until` judges.

    Trees against chains; for `half_width`, if the run lacks one of the two, the best method against plain
    decoding.
    """
    groups = {method.group for method in (*data.methods, *data.failed) if method.lossless}
    trees_and_chains = "tree" in groups and groups & {"chain", "assisted"}
    if until.decided or trees_and_chains:
        return trees_against_chains(data)
    return best_against_plain(data)


def _clear(until: Until, comparison: Comparison) -> bool:
    """Whether a comparison is clear enough for the run to end."""
    if until.half_width is None:
        return comparison.winner is not None
    return comparison.ratio.bounded and comparison.ratio.half_width < until.half_width


def through_looks(
    session: Session, manifest: dict[str, Any], units: Sequence[Unit]
) -> Iterator[Unit]:
    """Iterate over the units to decode: look when all units before a look are written, maybe end there.

    Args:
        session: the open run, whose config has `until`.
        manifest: of the run; new looks are appended to its `looks`.
        units: the units that are not finished, prompt by prompt.
    """
    remaining = deque(units)
    for end in ends_of_looks(session.ready.measured):
        while remaining and remaining[0].prompt.index < end:
            yield remaining.popleft()
        # An earlier start may have decoded prompts past this look (as with `--retry`).
        went_on = any(prompt >= end for prompt, *_ in session.finished)
        if _clear_after(end, session, manifest) and not went_on:
            break
    session.reporter.note(str(ending(manifest)))


def _clear_after(end: int, session: Session, manifest: dict[str, Any]) -> bool:
    """Whether the run may end here, by the look in the manifest or, if there is none, by a new look."""
    looks = manifest["looks"]
    if not any(look["prompts"] == end for look in looks):
        until, records = session.config.until, session.records
        assert until is not None
        try:
            looks += look_at(load_run(records.path), until, end)
        except NoFinishedPrompt:
            looks += [_entry(name, until, end, None) for name in session.known.samplings]
        records.write_manifest(manifest)
    return all(look["decided"] for look in looks if look["prompts"] == end)
