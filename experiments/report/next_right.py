"""How often the drafter's next token is right on the spine and after an accepted sibling, by depth.

A tree gains over a chain only by what it accepts after siblings. If the next token is right less often
there, siblings are worth little, unless the text is merely harder there: a fresh draft at the same nodes
tells the two apart (`treespec.experiments.run.right_marks`).

Over a synthetic head of known rates (`tests/helpers/known_rates.py`), each interval holds its rate in 186
to 195 of 200 seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.acceptance import DARKEST_PERCENT, LEAST_TRIES
from treespec.experiments.report.right_shares import BANDS, BELOW, SIBLING, SPINE, NextRight, Share
from treespec.experiments.report.table import (
    NONE,
    Cell,
    Column,
    Finding,
    Table,
)
from treespec.search.intervals import Interval
from treespec.search.traces.next_right import NO_ROW, AcceptedNodes

NO_ROW_HEAD = "no row"

NOTE = (
    "The share of accepted nodes after which the target's best token is the first of the drafter's row, "
    "with its 95 % interval over prompts; below it, the number of nodes with a row. On the spine: "
    "nodes down to which every accepted token was the first of its row (the root is one); after a sibling: "
    "all others. No row: the share of accepted nodes after which the drafter ranks nothing, such as the "
    "leaves of a model's tree. Fewer right tokens after siblings may only mean that the text is harder."
)

FRESH_NOTE = (
    "Fresh: a draft of the same method that is rooted at the same node. Not shown where it says the same "
    "as the tree at every node, as autoregressive models do."
)

NO_FRESH_NOTE = "`fresh_drafts: 8` in the config also drafts anew at the same nodes, on 8 prompts."


NextRights = Mapping[tuple[str, str], NextRight]
"""By sampling setting and method."""


def next_rights(run: RunRecords) -> dict[tuple[str, str], NextRight]:
    """How often the next token is right, for all methods whose steps say so."""
    return {
        (sampling, method.name): found
        for sampling in run.samplings
        for method in run.methods
        if (found := _recorded(run, method.name, sampling)) is not None
    }


def _recorded(run: RunRecords, method: str, sampling: str) -> NextRight | None:
    steps = run.steps.filter(
        pl.col("method") == method, pl.col("sampling") == sampling, pl.col("right").is_not_null()
    )
    if steps.is_empty():
        return None
    prompts = sorted(set(steps["prompt"]))
    place = {prompt: index for index, prompt in enumerate(prompts)}
    columns = steps.select("prompt", "spine", "right", "fresh").iter_rows()
    nodes = [
        (place[prompt], depth, depth <= spine, _MARKS[mark], _MARKS[new])
        for prompt, spine, right, fresh in columns
        for depth, (mark, new) in enumerate(zip(right, fresh or "-" * len(right), strict=True))
    ]
    text, depth, spine, right, fresh = np.array(nodes).T
    found = AcceptedNodes(text, depth, spine.astype(bool), right, fresh)
    return NextRight(found, len(prompts), run.files_of(prompts))


_MARKS = {"1": 1, "0": 0, "-": NO_ROW}


class Line(NamedTuple):
    """A row of the table: a method, what the row is about, and its cells by column."""

    method: str
    about: str
    cells: Mapping[str, Cell]
    group: str = "tree"


def lines(method: str, found: NextRight, group: str = "tree") -> list[Line]:
    """The rows of a method: both places, a fresh draft at the same nodes, and what siblings lose."""
    rows = []
    for place in (SPINE, SIBLING):
        shares = {band: share for (at, band), share in found.shares.items() if at == place}
        if not shares:
            continue
        cells = {band: _rate(share.right, share.rows) for band, share in shares.items()}
        without = Cell(f"{100 * found.no_row(place).estimate:.0f} %")
        rows.append(Line(method, place, {**cells, NO_ROW_HEAD: without}, group))
        if found.fresh_differs:
            cells = {band: _rate(share.fresh, share.compared) for band, share in shares.items()}
            rows.append(Line(method, "fresh, same nodes", cells, group))
        if place == SIBLING and found.fresh_differs:
            cells = {b: _points(share.less_fresh, share.compared) for b, share in shares.items()}
            rows.append(Line(method, "sibling less fresh", cells, group))
        elif place == SIBLING:
            tries = {b: found.shares[SPINE, b].rows for b in shares if (SPINE, b) in found.shares}
            cells = {
                band: _points(found.less_spine(band), min(spine, shares[band].rows))
                for band, spine in tries.items()
            }
            rows.append(Line(method, "sibling less spine", cells, group))
    return rows


def _rate(share: Interval, tries: int) -> Cell:
    if not tries:
        return Cell(NONE)
    # Both bounds: where few texts have right tokens, they are not alike far from the estimate.
    wide = tries >= LEAST_TRIES and share.has_width
    bounds = share.scaled(100).bounds(0) if wide else ""
    shade = round(DARKEST_PERCENT * share.estimate)
    return Cell(f"{100 * share.estimate:.0f} %", bounds, f"{tries}", shade, share)


def _points(difference: Interval, tries: int) -> Cell:
    if not tries:
        return Cell(NONE)
    spread = difference.scaled(100).spread(0) if tries >= LEAST_TRIES else ""
    return Cell(f"{100 * difference.estimate:+.0f}", spread, value=difference)


_NOTHING = Cell(NONE)


def next_right_table(
    subject: str, rows: Sequence[Line], first: str = "method", **more: Any
) -> Table:
    """A table of these rows, with the columns that have a number."""
    shown = [
        name
        for name in (*BANDS, NO_ROW_HEAD)
        if any(row.cells.get(name, _NOTHING) != _NOTHING for row in rows)
    ]
    columns = [
        Column[Line](first, lambda row: row.method, left=True),
        Column[Line]("next token", lambda row: row.about, left=True),
        *map(_column, shown),
    ]
    return Table(
        subject, columns, rows, colour=lambda row: row.group, group=lambda row: row.method, **more
    )


def _column(name: str) -> Column[Line]:
    return Column(name, lambda row: row.cells.get(name, Cell("")))


def notes(found: Sequence[NextRight]) -> tuple[str, ...]:
    """How to read the table."""
    fresh = any(share.compared for rates in found for share in rates.shares.values())
    return NOTE, FRESH_NOTE if fresh else NO_FRESH_NOTE


def next_right_finding(run: RunRecords, found: NextRights) -> Finding | None:
    """The table of a run, one for each sampling setting."""
    groups = {method.name: method.group for method in run.methods}
    tables = [
        next_right_table(
            sampling,
            [
                line
                for (setting, method), rates in found.items()
                if setting == sampling
                for line in lines(method, rates, groups[method])
            ],
        )
        for sampling in dict.fromkeys(sampling for sampling, _ in found)
    ]
    title = "Is the next token right, on the spine and after a sibling?"
    return Finding(title, tables, notes([*found.values()])) if tables else None


def compact_tables(found: NextRights) -> list[Table]:
    """One row for each method that accepted siblings, over all nodes below the root."""
    tables = []
    for sampling in dict.fromkeys(sampling for sampling, _ in found):
        rows = [
            (method, rates)
            for (setting, method), rates in found.items()
            if setting == sampling and (SIBLING, BELOW) in rates.shares
        ]
        if rows:
            fresh = any(rates.shares[SIBLING, BELOW].compared for _, rates in rows)
            columns = [
                Column[_Compact]("method", lambda row: row[0], left=True),
                *(_of_all(head) for head in _COMPACT if fresh or "fresh" not in head),
            ]
            title = f"{sampling}: how often the next token is right below the root"
            tables.append(Table(sampling, columns, rows, title=title, colour=lambda row: "tree"))
    return tables


_Compact = tuple[str, NextRight]

_COMPACT: Mapping[str, Callable[[NextRight, Share, Share | None], Cell]] = {
    SPINE: lambda found, after, spine: _rate(spine.right, spine.rows) if spine else Cell(NONE),
    SIBLING: lambda found, after, spine: _rate(after.right, after.rows),
    "less spine": lambda found, after, spine: _points(
        found.less_spine(BELOW), min(after.rows, spine.rows if spine else 0)
    ),
    "fresh, same nodes": lambda found, after, spine: _rate(after.fresh, after.compared),
    "less fresh": lambda found, after, spine: _points(after.less_fresh, after.compared),
    "no row": lambda found, after, spine: Cell(f"{100 * found.no_row().estimate:.0f} %"),
}


def _of_all(head: str) -> Column[_Compact]:
    def write(row: _Compact) -> Cell:
        shares = row[1].shares
        cell = _COMPACT[head](row[1], shares[SIBLING, BELOW], shares.get((SPINE, BELOW)))
        return replace(cell, below="")

    return Column(head, write)
