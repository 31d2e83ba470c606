"""How often the drafter's next token is right on the spine and after an accepted sibling, by depth.

A tree gains over a chain only by what it accepts after siblings. If the next token is right less often
there, siblings are worth little, unless the text is merely harder there: a fresh draft at the same nodes
tells the two apart (`treespec.experiments.run.right_marks`).

Over a synthetic head of known rates (`tests/helpers/known_rates.py`), each interval holds its rate in 186
to 195 of 200 seeds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.acceptance import DARKEST_PERCENT, LEAST_TRIES
from treespec.experiments.report.statistics import Totals
from treespec.experiments.report.table import (
    NONE,
    Cell,
    Column,
    Finding,
    Table,
    interval_columns,
)
from treespec.search.intervals import Interval, wilson
from treespec.search.traces.next_right import NO_ROW, AcceptedNodes

SPINE, SIBLING = "on the spine", "after a sibling"

NO_ROW_HEAD = "no row"

BELOW = "below the root"

BANDS: Mapping[str, tuple[int, float]] = {
    BELOW: (1, np.inf),
    "root": (0, 0),
    "depth 1": (1, 1),
    "depth 2": (2, 2),
    "depth 3": (3, 3),
    "depth 4–7": (4, 7),
    "depth 8+": (8, np.inf),
}
"""Depths of nodes that a column of the table joins."""

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


@dataclass(frozen=True)
class Share:
    """The share of accepted nodes of one kind after which the next token is right.

    Args:
        nodes: accepted nodes.
        rows: those of them at which the drafter has a row.
        right: share of the nodes with a row.
        compared: those of them at which a fresh draft has a row too.
        fresh: share of the compared nodes after which a fresh draft is right.
        less_fresh: share of the compared nodes after which the tree's row is right, minus `fresh`.
    """

    nodes: int
    rows: int
    right: Interval
    compared: int
    fresh: Interval
    less_fresh: Interval


@dataclass(frozen=True, eq=False)
class NextRight:
    """How often the next token is right for one method, from its accepted nodes.

    Args:
        nodes: the accepted nodes.
        texts: number of texts.
        files: `[texts]`, see `Totals.of`.
    """

    nodes: AcceptedNodes
    texts: int
    files: ArrayLike | None = None

    @cached_property
    def _totals(self) -> Totals:
        nodes = self.nodes
        has_row = nodes.right != NO_ROW
        both = has_row & (nodes.fresh != NO_ROW)
        kinds = {
            "nodes": np.ones_like(has_row),
            "rows": has_row,
            "right": nodes.right == 1,
            "compared": both,
            "right compared": both & (nodes.right == 1),
            "fresh": both & (nodes.fresh == 1),
        }
        columns: dict[Any, NDArray[np.int64]] = {}
        for place, there in ((SPINE, nodes.spine), (SIBLING, ~nodes.spine)):
            for band, (least, most) in BANDS.items():
                inside = there & (nodes.depth >= least) & (nodes.depth <= most)
                for kind, counts in kinds.items():
                    columns[place, band, kind] = self._by_text(inside & counts)
        everywhere = np.ones_like(has_row)
        for at, there in ((None, everywhere), (SPINE, nodes.spine), (SIBLING, ~nodes.spine)):
            columns[at, "nodes"] = self._by_text(there)
            columns[at, "no row"] = self._by_text(there & ~has_row)
        return Totals.of(columns, self.files)

    def _by_text(self, counts: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(self.nodes.text[counts], minlength=self.texts)

    def share(self, place: str, band: str) -> Share:
        """The share at the nodes of a place (`SPINE` or `SIBLING`) and a band of depths."""

        def key(kind: str) -> tuple[str, str, str]:
            return place, band, kind

        observed = self._totals.observed
        return Share(
            nodes=int(observed[key("nodes")]),
            rows=int(observed[key("rows")]),
            right=self._share(key("right"), key("rows")),
            compared=int(observed[key("compared")]),
            fresh=self._share(key("fresh"), key("compared")),
            less_fresh=self._totals.difference(
                (key("right compared"), key("compared")), (key("fresh"), key("compared"))
            ),
        )

    @property
    def fresh_differs(self) -> bool:
        """Whether a fresh draft says something else than the tree at some node where both have a row."""
        nodes = self.nodes
        both = (nodes.right != NO_ROW) & (nodes.fresh != NO_ROW)
        return bool((nodes.right != nodes.fresh)[both].any())

    def less_spine(self, band: str) -> Interval:
        """The share after a sibling minus that on the spine."""
        first, second = (
            ((place, band, "right"), (place, band, "rows")) for place in (SIBLING, SPINE)
        )
        return self._totals.difference(first, second)

    def no_row(self, place: str | None = None) -> Interval:
        """The share of accepted nodes without a row, at one place or at all."""
        return self._share((place, "no row"), (place, "nodes"))

    def _share(self, part: Any, whole: Any) -> Interval:
        found = self._totals.share(part, whole)
        if not found.bounded or found.has_width:
            return found
        # All nodes agree, so that texts do not differ: what so many nodes say about the rate.
        observed = self._totals.observed
        low, high = wilson(np.array(observed[part]), np.array(observed[whole]))
        return Interval(found.estimate, float(low), float(high))

    @cached_property
    def shares(self) -> dict[tuple[str, str], Share]:
        """The shares by place and band, without those that have no node."""
        found = {
            (place, band): self.share(place, band) for place in (SPINE, SIBLING) for band in BANDS
        }
        return {key: share for key, share in found.items() if share.nodes}

    def to_data(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **interval_columns("no_row", self.no_row()),
            "shares": [
                {
                    "after": place,
                    "depth": band,
                    "nodes": share.nodes,
                    "rows": share.rows,
                    "compared": share.compared,
                    **interval_columns("right", share.right),
                    **interval_columns("fresh", share.fresh),
                    **interval_columns("less_fresh", share.less_fresh),
                }
                for (place, band), share in self.shares.items()
            ],
        }


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
