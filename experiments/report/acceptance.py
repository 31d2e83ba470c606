"""Acceptance counted from the steps of a run: by node of static trees, and by source of a tree's nodes."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from treespec.errors import TreespecError
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.loading import Method, RunRecords, accepted_nodes, node_at
from treespec.experiments.records.rows import SOURCES_JOINED
from treespec.experiments.report.statistics import Totals
from treespec.experiments.report.table import NONE, Cell, Column, Finding, Table
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

LEAST_TRIES = 20

DARKEST_PERCENT = 50
"""Darkest shade behind a text that remains legible, in percent of the colour."""

NOTE = (
    "Each cell considers the steps whose accepted path reached a parent of this depth. It shows the share "
    "of these steps that accepted a child, ± half of its 95 % interval over prompts; below, the shares of "
    "the first, second, ... child, which add up to it, and the number of steps. A chain has one child per "
    "node. Trees that grow with the probabilities of the draft have no fixed ranks and are left out."
)


@dataclass(frozen=True)
class LevelAcceptance:
    """Acceptance at one depth, among the steps whose path reached a parent of that depth.

    `share` is that of the tries that accepted a child; `by_rank` holds that of the first, second, ...
    child.
    """

    tries: int
    share: Interval
    by_rank: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class NodeAcceptance:
    """Counts of accepted nodes for one method under one sampling setting.

    `steps` holds the number of steps of each prompt, `[P]`, and `accepted` the number of these that
    accepted each node, `[P, N]`; the root is always accepted. `files`: see `Measurements`.
    """

    shape: TreeShape
    steps: NDArray[np.int64]
    accepted: NDArray[np.int64]
    files: tuple[int, ...] | None = None

    @property
    def total(self) -> int:
        return int(self.steps.sum())

    @cached_property
    def counts(self) -> tuple[int, ...]:
        return tuple(int(count) for count in self.accepted.sum(0))

    @cached_property
    def shares(self) -> tuple[Interval, ...]:
        columns = {"steps": self.steps} | dict(enumerate(self.accepted.T))
        totals = Totals.of(columns, files=self.files)
        return tuple(totals.share(node, "steps") for node in range(self.shape.size))

    @cached_property
    def levels(self) -> tuple[LevelAcceptance, ...]:
        shape, depths = self.shape, range(1, self.shape.depth + 1)
        nodes = {depth: np.flatnonzero(np.equal(shape.depths, depth)) for depth in depths}
        columns: dict[Hashable, NDArray[np.int64]] = {}
        for depth in depths:
            parents = [node for node in shape.internal if shape.depths[node] == depth - 1]
            columns["tried", depth] = self.accepted[:, parents].sum(1)
            columns["kept", depth] = self.accepted[:, nodes[depth]].sum(1)
        if not columns:
            return ()
        totals = Totals.of(columns, files=self.files)
        return tuple(self._level(depth, nodes[depth], totals) for depth in depths)

    def _level(self, depth: int, nodes: NDArray[np.int64], totals: Totals) -> LevelAcceptance:
        tries = int(totals.observed["tried", depth])
        hits = np.bincount(np.array(self.shape.ranks)[nodes], self.accepted[:, nodes].sum(0))
        share = totals.share(("kept", depth), ("tried", depth))
        return LevelAcceptance(tries, share, tuple((hits / tries).tolist()) if tries else ())


Acceptances = Mapping[tuple[str, str], NodeAcceptance]


def acceptance_finding(methods: Sequence[Method], counts: Acceptances) -> Finding | None:
    known = {method.name: method for method in methods}
    tables = []
    for sampling in dict.fromkeys(sampling for sampling, _ in counts):
        rows: list[Levels] = [
            (known[method], dict(enumerate(nodes.levels, start=1)))
            for (setting, method), nodes in counts.items()
            if setting == sampling
        ]
        if deepest := max(len(levels) for _, levels in rows):
            columns = [
                Column[Levels]("method", lambda row: row[0].name, left=True),
                *map(depth_column, range(1, deepest + 1)),
            ]
            tables.append(Table(sampling, columns, rows, colour=lambda row: row[0].group))
    return Finding("Acceptance by depth and rank", tables, (NOTE,)) if tables else None


Levels = tuple[Any, Mapping[int, LevelAcceptance]]
"""A row of a table: what it is about, and its acceptance by depth."""


def depth_column(depth: int) -> Column[Levels]:
    return Column(f"depth {depth}", lambda row: _cell(row[1].get(depth)))


def _cell(level: LevelAcceptance | None) -> Cell:
    if level is None or not level.tries:
        return Cell("" if level is None else NONE)
    share, tries = level.share, level.tries
    spread = share.scaled(100).spread(0) if tries >= LEAST_TRIES else ""
    ranks = " + ".join(f"{100 * rank_share:.0f}" for rank_share in level.by_rank)
    below = f"{ranks} · {tries}" if len(level.by_rank) > 1 else f"{tries}"
    shade = round(DARKEST_PERCENT * share.estimate)
    return Cell(f"{100 * share.estimate:.0f} %", spread, below, shade, share)


def count_all(run: RunRecords) -> dict[tuple[str, str], NodeAcceptance]:
    """Count the accepted nodes of every method with a fixed tree, by sampling setting and method."""
    return {
        (sampling, method.name): nodes
        for sampling in run.samplings
        for method in run.methods
        if (nodes := count_nodes(run, method, sampling)) is not None
    }


def count_nodes(run: RunRecords, method: Method, sampling: str) -> NodeAcceptance | None:
    """Count the accepted nodes of a method with a fixed tree; None without such a tree or without steps."""
    if method.kind != "tree" or method.parents is None:
        return None
    shape = TreeShape(method.parents)
    prompts: dict[int, NDArray[np.int64]] = {}
    for prompt, node in accepted_nodes(run, method, sampling):
        prompts.setdefault(prompt, np.zeros(shape.size, dtype=np.int64))[node] += 1
    if not prompts:
        return None
    accepted = np.stack([prompts[prompt] for prompt in sorted(prompts)])
    steps = accepted.sum(1)
    for node in range(shape.size - 1, 0, -1):  # a step that accepts a node also accepts its parent
        accepted[:, shape.parents[node]] += accepted[:, node]
    return NodeAcceptance(shape, steps, accepted, run.files_of(sorted(prompts)))


SOURCES_NOTE = (
    "Trees that a source filled with its own continuations, or that several sources drafted together. "
    "Each cell considers the steps whose accepted path reached, one level above, a node with children "
    "of this source. It shows the share of these steps that accepted such a child, ± half of its 95 % "
    "interval over prompts; below, the shares of the first, second, ... child of the node (counting "
    "children of all sources), which add up to it, and the number of steps. A child that several "
    "sources drafted counts for each of them. In a cascade, level 1 is the model that drafts for the "
    "target, where it added a token of its own; level 2 is the source that drafted for that model, and "
    "so on."
)


@dataclass(frozen=True, kw_only=True)
class SourceLevel(LevelAcceptance):
    """Acceptance of the children of one source at one depth; a try reached a node that has such children.

    `drafted` counts the children of the source at this depth over all steps, reached or not.
    """

    sampling: str
    method: str
    source: str
    depth: int
    drafted: int


def sources_of(run: RunRecords) -> list[SourceLevel]:
    """Acceptance of every source of the methods whose steps name the sources of their nodes.

    The order is that of the methods. Depths of a source whose nodes no accepted path has reached are left
    out.
    """
    return [
        level
        for sampling in run.samplings
        for method in run.methods
        for level in _source_levels(run, sampling, method.name)
    ]


def source_finding(levels: list[SourceLevel]) -> Finding | None:
    tables = []
    for sampling in dict.fromkeys(level.sampling for level in levels):
        rows: dict[tuple[str, str], dict[int, LevelAcceptance]] = {}
        for level in levels:
            if level.sampling == sampling:
                rows.setdefault((level.method, level.source), {})[level.depth] = level
        deepest = max(depth for row in rows.values() for depth in row)
        columns = [
            Column[Levels]("method", lambda row: row[0][0], left=True),
            Column[Levels]("source", lambda row: row[0][1], left=True),
            *map(depth_column, range(1, deepest + 1)),
        ]
        tables.append(Table(sampling, columns, list(rows.items()), colour=lambda row: "tree"))
    return (
        Finding("Acceptance by source, depth and rank", tables, (SOURCES_NOTE,)) if tables else None
    )


def source_data(levels: list[SourceLevel], sampling: str) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in vars(level).items() if name != "sampling"}
        for level in levels
        if level.sampling == sampling
    ]


def _source_levels(run: RunRecords, sampling: str, method: str) -> Iterator[SourceLevel]:
    tried, kept, ranks = (defaultdict[tuple[str, int], Counter[int]](Counter) for _ in range(3))
    drafted = Counter[tuple[str, int]]()
    prompts = set[int]()
    for prompt, shape, path, children in _steps_with_sources(run, sampling, method):
        prompts.add(prompt)
        drafted.update((source, shape.depths[node]) for node, source in children)
        reached = [child for child in children if shape.parents[child[0]] in path]
        for key in {(source, shape.depths[node]) for node, source in reached}:
            tried[key][prompt] += 1
        for node, source in reached:
            if node in path:
                kept[source, shape.depths[node]][prompt] += 1
                ranks[source, shape.depths[node]][shape.ranks[node]] += 1
    if not tried:
        return
    order = sorted(prompts)
    columns = {
        (column, key): [counts[key][prompt] for prompt in order]
        for key in tried
        for column, counts in (("tried", tried), ("kept", kept))
    }
    totals = Totals.of(columns, files=run.files_of(order))
    for key in sorted(tried):
        hits, tries = ranks[key], tried[key].total()
        yield SourceLevel(
            tries=tries,
            share=totals.share(("kept", key), ("tried", key)),
            by_rank=tuple(hits[rank] / tries for rank in range(max(hits, default=-1) + 1)),
            sampling=sampling,
            method=method,
            source=key[0],
            depth=key[1],
            drafted=drafted[key],
        )


def _steps_with_sources(
    run: RunRecords, sampling: str, method: str
) -> Iterator[tuple[int, TreeShape, set[int], list[tuple[int, str]]]]:
    """The steps that name the sources of their nodes.

    Yields:
        Prompt, tree, accepted nodes, and each drafted node once per source.
    """
    rows = run.steps.filter(
        pl.col("method") == method, pl.col("sampling") == sampling, pl.col("origins").is_not_null()
    )
    columns = ("prompt", "parents", "origins", "path_ranks")
    for prompt, parents, origins, path_ranks in (
        rows.sort("prompt", "step").select(columns).iter_rows()
    ):
        try:
            shape = TreeShape(tuple(parents or ()))
            path = set(shape.path(node_at(shape, path_ranks)))
            names = [origin.split(SOURCES_JOINED) for origin in origins]
            children = [(node, source) for node in range(1, shape.size) for source in names[node]]
        except (TreespecError, IndexError):
            raise RunFolderError(
                f"{run.folder}: a step of {method!r} on prompt {prompt} has an invalid tree, or "
                "an accepted path that does not fit its tree: start over with --fresh"
            ) from None
        yield prompt, shape, path, children
