"""Acceptance by source, depth and rank, for trees that sources fill, alone or together."""

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treespec.errors import TreespecError
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.records.rows import SOURCES_JOINED
from treespec.experiments.report.acceptance import share_cell
from treespec.experiments.report.statistics import bootstrap
from treespec.experiments.report.table import Cell, Column, Finding, Table
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

__all__ = ["SourceLevel", "source_data", "source_finding", "sources_of"]

NOTE = (
    "Trees that a source filled with its own continuations, or that several sources drafted together. "
    "Each cell considers the steps whose accepted path reached, one level above, a node with children "
    "of this source. It shows the share of these steps that accepted such a child, ± half of its 95 % "
    "interval over prompts; below, the shares of the first, second, ... child of the node (counting "
    "children of all sources), which add up to it, and the number of steps. A child that several "
    "sources drafted counts for each of them. In a cascade, level 1 is the model that drafts for the "
    "target, where it added a token of its own; level 2 is the source that drafted for that model, and "
    "so on."
)


@dataclass(frozen=True)
class SourceLevel:
    """Acceptance of the children of one source at one depth.

    Args:
        sampling: name of the setting.
        method: name of the method.
        source: the source that drafted the children, possibly together with others.
        depth: depth of the children, from 1.
        tries: number of steps whose path reached a node one level above that has children of the source.
        share: share of the tries that accepted one of these children.
        by_rank: shares of the tries that accepted the first, second, ... child of the node.
        drafted: number of children of the source at this depth over all steps, reached or not.
    """

    sampling: str
    method: str
    source: str
    depth: int
    tries: int
    share: Interval
    by_rank: tuple[float, ...]
    drafted: int


def sources_of(run: RunRecords) -> list[SourceLevel]:
    """Acceptance of every source of the methods whose steps name the sources of their nodes.

    The order is that of the methods. Depths of a source whose nodes no accepted path has reached are left
    out.

    Raises:
        RunFolderError: if a recorded tree is invalid, or a step accepted ranks that its tree does not have.
    """
    return [
        level
        for sampling in run.samplings
        for method in run.methods
        for level in _levels(run, sampling, method.name)
    ]


def source_finding(levels: list[SourceLevel]) -> Finding | None:
    """One table per sampling setting: a row for each source of a method, a column for each depth."""
    tables = []
    for sampling in dict.fromkeys(level.sampling for level in levels):
        rows: dict[tuple[str, str], dict[int, SourceLevel]] = {}
        for level in levels:
            if level.sampling == sampling:
                rows.setdefault((level.method, level.source), {})[level.depth] = level
        deepest = max(depth for row in rows.values() for depth in row)
        columns = [
            Column[_Row]("method", lambda row: row[0][0], left=True),
            Column[_Row]("source", lambda row: row[0][1], left=True),
            *map(_column, range(1, deepest + 1)),
        ]
        tables.append(Table(sampling, columns, list(rows.items()), colour=lambda row: "tree"))
    return Finding("Acceptance by source, depth and rank", tables, (NOTE,)) if tables else None


def source_data(levels: list[SourceLevel], sampling: str) -> list[dict[str, object]]:
    """The levels of one sampling setting as plain data."""
    return [
        {
            "method": level.method,
            "source": level.source,
            "depth": level.depth,
            "drafted": level.drafted,
            "tries": level.tries,
            "share": level.share,
            "by_rank": level.by_rank,
        }
        for level in levels
        if level.sampling == sampling
    ]


_Row = tuple[tuple[str, str], dict[int, SourceLevel]]


def _column(depth: int) -> Column[_Row]:
    def write(row: _Row) -> Cell:
        level = row[1].get(depth)
        if level is None:
            return Cell("")
        return share_cell(level.tries, level.share, level.by_rank)

    return Column(f"depth {depth}", write)


@dataclass(frozen=True)
class _Child:
    """A drafted node of one step."""

    source: str
    depth: int
    rank: int
    parent_accepted: bool
    accepted: bool


def _levels(run: RunRecords, sampling: str, method: str) -> Iterator[SourceLevel]:
    tried: dict[tuple[str, int], Counter[int]] = {}
    kept: dict[tuple[str, int], Counter[int]] = {}
    ranks: dict[tuple[str, int], Counter[int]] = {}
    drafted: Counter[tuple[str, int]] = Counter()
    prompts: dict[int, None] = {}
    for prompt, children in _steps(run, sampling, method):
        prompts[prompt] = None
        for child in children:
            drafted[child.source, child.depth] += 1
        for key in {(c.source, c.depth) for c in children if c.parent_accepted}:
            tried.setdefault(key, Counter())[prompt] += 1
        for child in children:
            if child.accepted:
                key = child.source, child.depth
                kept.setdefault(key, Counter())[prompt] += 1
                ranks.setdefault(key, Counter())[child.rank] += 1
    if not tried:
        return
    order = sorted(prompts)
    columns: dict[Hashable, NDArray[np.int64]] = {}
    for key in tried:
        for column, counts in (("tried", tried), ("kept", kept)):
            by_prompt = counts.get(key, Counter())
            columns[column, key] = np.array([by_prompt[prompt] for prompt in order])
    files = None if run.files is None else tuple(run.files[prompt] for prompt in order)
    totals = bootstrap(columns, files=files)
    for key in sorted(tried):
        hits, tries = ranks.get(key, Counter()), sum(tried[key].values())
        rank_count = max(hits, default=-1) + 1
        yield SourceLevel(
            sampling,
            method,
            *key,
            tries,
            totals.ratio([("kept", key)], [("tried", key)]),
            tuple(hits[rank] / tries for rank in range(rank_count)),
            drafted[key],
        )


def _steps(run: RunRecords, sampling: str, method: str) -> Iterator[tuple[int, list[_Child]]]:
    """For each step that names the sources of its nodes: its prompt, and its nodes once per source."""
    import polars as pl

    rows = run.steps.filter(
        pl.col("method") == method, pl.col("sampling") == sampling, pl.col("origins").is_not_null()
    )
    columns = ("prompt", "parents", "origins", "path_ranks")
    for prompt, parents, origins, path_ranks in (
        rows.sort("prompt", "step").select(columns).iter_rows()
    ):
        try:
            shape = TreeShape(tuple(parents or ()))
            path = {0}
            node = 0
            for rank in path_ranks:
                node = shape.children[node][rank]
                path.add(node)
            names = [origin.split(SOURCES_JOINED) for origin in origins]
            drafted = [(node, source) for node in range(1, shape.size) for source in names[node]]
        except (TreespecError, IndexError):
            raise RunFolderError(
                f"{run.folder}: a step of {method!r} on prompt {prompt} has an invalid tree, or "
                "an accepted path that does not fit its tree: start over with --fresh"
            ) from None
        yield (
            prompt,
            [
                _Child(
                    source,
                    shape.depths[node],
                    shape.ranks[node],
                    shape.parents[node] in path,
                    node in path,
                )
                for node, source in drafted
            ],
        )
