"""Acceptance by source, depth and rank, for trees that sources fill, alone or together."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from treespec.errors import TreespecError
from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.loading import RunRecords, node_at
from treespec.experiments.records.rows import SOURCES_JOINED
from treespec.experiments.report.acceptance import LevelAcceptance, Levels, depth_column
from treespec.experiments.report.statistics import bootstrap
from treespec.experiments.report.table import Column, Finding, Table
from treespec.tree import TreeShape

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


def _levels(run: RunRecords, sampling: str, method: str) -> Iterator[SourceLevel]:
    tried, kept, ranks = (defaultdict[tuple[str, int], Counter[int]](Counter) for _ in range(3))
    drafted = Counter[tuple[str, int]]()
    prompts = set[int]()
    for prompt, shape, path, children in _steps(run, sampling, method):
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
    totals = bootstrap(columns, files=run.files_of(order))
    for key in sorted(tried):
        hits, tries = ranks[key], tried[key].total()
        yield SourceLevel(
            tries=tries,
            share=totals.ratio([("kept", key)], [("tried", key)]),
            by_rank=tuple(hits[rank] / tries for rank in range(max(hits, default=-1) + 1)),
            sampling=sampling,
            method=method,
            source=key[0],
            depth=key[1],
            drafted=drafted[key],
        )


def _steps(
    run: RunRecords, sampling: str, method: str
) -> Iterator[tuple[int, TreeShape, set[int], list[tuple[int, str]]]]:
    """The steps that name the sources of their nodes.

    Yields:
        Prompt, tree, accepted nodes, and each drafted node once per source.
    """
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
            path = set(shape.path(node_at(shape, path_ranks)))
            names = [origin.split(SOURCES_JOINED) for origin in origins]
            children = [(node, source) for node in range(1, shape.size) for source in names[node]]
        except (TreespecError, IndexError):
            raise RunFolderError(
                f"{run.folder}: a step of {method!r} on prompt {prompt} has an invalid tree, or "
                "an accepted path that does not fit its tree: start over with --fresh"
            ) from None
        yield prompt, shape, path, children
