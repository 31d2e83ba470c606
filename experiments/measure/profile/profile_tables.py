"""Print a profile: medians and quartiles of passes, by texts of a batch and nodes of each."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from rich.console import Console

from treespec.experiments.report.table import NONE, Column, Table
from treespec.experiments.report.terminal import print_table
from treespec.search import LatencyModel
from treespec.search.latency.interpolation import Curve
from treespec.search.latency.step_parts import StepParts

SAMPLES_FOR_QUARTILES = 3
"""Samples of a cell from which on its quartiles are shown."""


def print_profile(model: LatencyModel, console: Console) -> None:
    """Medians and quartiles of what was measured, two tables for each prefix length.

    If there are times of batches, a row is for a number of texts, and nodes are those of each.
    """
    several = [*model.batches] != [1]
    names = model.laws
    for prefix in model.prefixes:
        title = f"after {prefix} tokens, milliseconds" + several * " of all texts of a batch"
        rows = [
            (texts, size, next(iter(laws.values())).verify.curves[prefix], laws)
            for texts, laws in model.batches.items()
            for size in next(iter(laws.values())).verify.curves[prefix].sizes
        ]
        columns = [
            *([Column[_Verified]("texts", lambda row: str(row[0]))] if several else []),
            Column[_Verified]("nodes", lambda row: str(row[1])),
            Column[_Verified]("verify", lambda row: _middle(row[2], row[1])),
            Column[_Verified]("q1–q3", lambda row: _quartiles(row[2], row[1])),
            *(Column[_Verified](f"accept, {name}", partial(_accepting, name)) for name in names),
        ]
        print_table(Table("", columns, rows, title=title), console)
        drafts: list[_Draft] = []
        for texts, name, law in (
            (t, n, law) for t, of in model.batches.items() for n, law in of.items()
        ):
            level = law.level.curves.get(prefix)
            for what, table in (("plain step", law.plain), ("first pass", law.first)):
                curve = None if table is None else table.curves.get(prefix)
                drafts.append((texts, what, name, curve, None))
            widths = level.sizes if level else ()
            drafts += [(texts, f"a level of {width}", name, level, width) for width in widths]
        print_table(Table("", DRAFTS if several else DRAFTS[1:], drafts, title=title), console)


def _accepting(law: str, row: "_Verified") -> str:
    _, size, _, laws = row
    return _middle(laws[law].accept.curves.get(None), size) if law in laws else NONE


def _middle(curve: Curve | None, size: int | None) -> str:
    times = curve.samples.get(size) if curve else None
    return f"{1e3 * np.median(times):.2f}" if times else NONE


def _quartiles(curve: Curve | None, size: int | None) -> str:
    times = curve.samples.get(size, ()) if curve else ()
    if len(times) < SAMPLES_FOR_QUARTILES:
        return NONE
    low, high = 1e3 * np.quantile(times, [0.25, 0.75])
    return f"{low:.2f}–{high:.2f}"


_Verified = tuple[int, int, Curve, Mapping[str, StepParts]]
"""A pass of the target: texts, nodes of each, times, and the parts of steps of these texts by law."""

_Draft = tuple[int, str, str, Curve | None, int | None]
"""A pass of the draft: texts, what it is, its law, its times, and the nodes that it runs of each text."""

DRAFTS = (
    Column[_Draft]("texts", lambda row: str(row[0])),
    Column[_Draft]("draft", lambda row: row[1], left=True),
    Column[_Draft]("law", lambda row: row[2], left=True),
    Column[_Draft]("ms", lambda row: _middle(*row[3:])),
    Column[_Draft]("q1–q3", lambda row: _quartiles(*row[3:])),
)
