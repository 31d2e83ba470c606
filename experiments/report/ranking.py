"""All methods of a run in order of their speed, and draft sources likewise, with joint intervals.

A place in a ranking is known only as far as the pairs show it. Methods are compared by the joint intervals
of all pairs (`report.joint`). A source stands for the method that would be chosen of it, so sources are
compared like the sides of a verdict (`report.comparisons`), with Bonferroni's correction for their pairs.
A method or source takes the places 1 + the number of those that are shown to be faster, to the number of
those that are not shown to be slower. With probability 95 % all these ranges are right at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from treespec.experiments.report.comparisons import between, compare
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import (
    FEWEST_FOR_INTERVAL,
    FEWEST_FOR_WINNER,
    boundary_of_tail,
    tail_of,
)
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.search.intervals import Interval

NOTE = (
    "Tokens per second over those of the first row, and the places that each may take; a place is shared "
    "by all that cannot be told apart. The intervals hold for all rows at once, in 95 % of such runs. A "
    "source stands for its best method, chosen on one half of the prompts and measured on the other."
)

FEWEST = 3
"""Fewest methods, or sources, to rank: two are a comparison."""


@dataclass(frozen=True)
class Ranked:
    """A method or source, its speed over that of the first one, and the places that it may take."""

    name: str
    group: str
    ratio: Interval
    first: int
    last: int

    @property
    def places(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


Pairs = Mapping[tuple[str, str], Interval]


def ranking(data: Measurements) -> list[Ranked]:
    """The lossless methods under one sampling setting, the fastest first; empty if too few."""
    names = [m.name for m in data.methods if m.lossless]
    if len(names) < FEWEST or data.samples < FEWEST_FOR_INTERVAL:
        return []
    groups = {m.name: m.group for m in data.methods}
    return _in_order(names, data.pairs, groups, data.samples)


def source_ranking(data: Measurements) -> list[Ranked]:
    """The draft sources with lossless methods, by the method chosen of each; empty if too few."""
    drafting = [m for m in data.methods if m.lossless and m.source is not None]
    families = {
        source: [m.name for m in drafting if m.source == source]
        for source in sorted({str(m.source) for m in drafting})
    }
    pairs = list(combinations(families, 2))
    if len(families) < FEWEST or data.samples < FEWEST_FOR_INTERVAL:
        return []
    alpha = tail_of(data.boundary, data.samples) / len(pairs)
    shared = replace(data, boundary=boundary_of_tail(alpha, data.samples))
    found: dict[tuple[str, str], Interval] = {}
    for a, b in pairs:
        duel = compare(shared, between((a, families[a]), (b, families[b])))
        if duel is not None:
            found[a, b], found[b, a] = duel.ratio, duel.ratio.inverse()
    return _in_order(list(families), found, dict.fromkeys(families, ""), data.samples)


def _in_order(
    names: Sequence[str], pairs: Pairs, groups: Mapping[str, str], samples: int
) -> list[Ranked]:
    ahead = {a: sum(pairs[a, b].estimate > 1 for b in names if b != a) for a in names}
    order = sorted(names, key=lambda name: (-ahead[name], name))
    shown = samples >= FEWEST_FOR_WINNER
    return [
        Ranked(
            name,
            groups[name],
            Interval(1.0, 1.0, 1.0) if name == order[0] else pairs[name, order[0]],
            1 + sum(shown and pairs[b, name].low > 1 for b in names if b != name),
            len(names) - sum(shown and pairs[name, b].low > 1 for b in names if b != name),
        )
        for name in order
    ]


def ranking_finding(measurements: Mapping[str, Measurements]) -> Finding | None:
    tables = [
        Table(
            f"{sampling}, {what}",
            (
                Column[Ranked](what.removesuffix("s"), lambda row: row.name, left=True),
                Column[Ranked]("places", lambda row: row.places),
                Column[Ranked]("over the first", lambda row: interval(row.ratio)),
            ),
            rows,
            colour=lambda row: row.group,
        )
        for sampling, data in measurements.items()
        for what, rows in (("methods", ranking(data)), ("sources", source_ranking(data)))
        if rows
    ]
    return Finding("Ranking", tables, (NOTE,)) if tables else None
