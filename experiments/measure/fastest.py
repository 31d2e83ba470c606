"""`treespec search --latency`: which shape to use."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treespec.experiments.config.base import LARGEST_NUMBER
from treespec.experiments.config.files import require_within
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.search import (
    LARGEST_DRAWN,
    dumped,
    read_source,
    require_limits,
)
from treespec.experiments.measure.source_budgets import flow
from treespec.experiments.report.table import NONE
from treespec.search import LatencyModel, Ranking, SearchError, best_tree_among
from treespec.search.choice.advice import WORDS
from treespec.search.choice.rows import Choice
from treespec.search.growth.keys import MOST_NODES
from treespec.tree.shape import TreeShape


@dataclass(frozen=True, eq=False)
class Advised:
    """Rankings by speed, one for each requested prefix and batch size."""

    rankings: tuple[Ranking, ...]
    form: str

    @property
    def shape(self) -> TreeShape:
        """The tree to write; there is one only if there is one ranking."""
        if len(self.rankings) > 1:
            batches = ", ".join(str(ranking.setting.batch) for ranking in self.rankings)
            raise ConfigError(
                f"a file holds one tree, but there are rankings for batches of {batches}: choose one by "
                "--batch (and --prefix)"
            )
        growth = self.rankings[0].best.growth
        if growth is not None:
            kind = "" if growth.config.get("kind") == "budget" else ", a tree that grows"
            raise ConfigError(
                f"the first row is {growth.name}{kind}, and no tree file can hold it: write "
                f"`shape: {flow(growth.config)}` in a config"
            )
        return self.rankings[0].best.shape

    def __str__(self) -> str:
        lines, growth = [str(ranking) for ranking in self.rankings], self.rankings[0].best.growth
        if len(lines) > 1:
            several = len({ranking.setting.batch for ranking in self.rankings}) > 1
            return "\n\n".join([*lines, *([by_batch(self.rankings)] if several else [])])
        if growth is not None:
            return f"{lines[0]}\nin a config: shape: {flow(growth.config)}"
        if self.shape.size == 1:
            return lines[0]
        lines += [str(self.shape)] if self.shape.size <= LARGEST_DRAWN else []
        return "\n".join([*lines, *dumped(self.shape, self.form)])

    def data(self) -> dict[str, Any]:
        """The ranking as plain data; several rankings as `{"rankings": [...]}`."""
        rankings = [json.loads(ranking.to_json()) for ranking in self.rankings]
        return rankings[0] if len(rankings) == 1 else {"rankings": rankings}


def search_fastest(
    sources: Sequence[str],
    latencies: Sequence[Path],
    form: str,
    *,
    prefixes: Sequence[int] = (),
    batches: Sequence[int] = (),
    **options: Any,
) -> Advised:
    """Rank trees, chains and plain decoding by predicted speed.

    There is one file of times for all sources, or one for each. Without `batches`, there is a ranking for
    each batch size that all files have times of. `options` are those of `treespec.search.best_tree`.
    """
    require_limits(options.get("max_size"), options.get("depth"), options.get("branching"))
    for size in options.get("sizes") or ():
        require_within("--sizes", size, 1, MOST_NODES)
    for prefix in prefixes:
        require_within("--prefix", prefix, 0, LARGEST_NUMBER)
    for batch in batches:
        require_within("--batch", batch, 1, LARGEST_NUMBER)
    pairs = _sources(sources, latencies)
    where = ", ".join(sources) + " with the times of " + ", ".join(map(str, latencies))
    try:
        rankings = [
            best_tree_among(pairs, prefix=prefix, batch=batch, **options)
            for batch in batches or _measured([latency for _, latency in pairs.values()])
            for prefix in prefixes or (None,)
        ]
    except SearchError as error:
        raise ConfigError(f"{where}: {error}") from error
    return Advised(tuple(rankings), form)


def _measured(latencies: Sequence[LatencyModel]) -> list[int]:
    """The batch sizes that all of these have times of; if there are none, one text, which then fails."""
    return sorted(set.intersection(*(set(latency.batches) for latency in latencies))) or [1]


def by_batch(rankings: Sequence[Ranking]) -> str:
    """The best of each kind by batch size, with predicted tokens per second of the whole batch."""
    prefixes = len({ranking.setting.prefix for ranking in rankings}) > 1
    best = ("best tree", "tokens/s", "best chain", "tokens/s", "plain tokens/s")
    lines = [("texts", *(["after"] if prefixes else []), *best, "advice")]
    for ranking in rankings:
        trees = [row for row in ranking.rows if row.kind in ("tree", "growth")]
        use, first = ranking.advice.use, ranking.advice.first
        lines.append(
            (
                str(ranking.setting.batch),
                *([str(ranking.setting.prefix)] if prefixes else []),
                *_described(trees[0] if trees else None),
                *_described(ranking.chain),
                _described(ranking.plain)[1],
                f"use {WORDS[use.kind]}"
                if use is not None
                else f"undecided; fastest by prediction: {WORDS[first.kind]}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(["by texts in a batch, predicted tokens/s of all of them", *shown])


def _described(row: Choice | None) -> tuple[str, str]:
    """A shape and its predicted tokens per second, of all texts of the batch."""
    return (NONE, NONE) if row is None else (row.label, f"{row.tokens_per_s.estimate:.1f}")


def _sources(
    sources: Sequence[str], latencies: Sequence[Path]
) -> dict[str, tuple[Any, LatencyModel]]:
    """Acceptance and times by source; a source is named by its file's stem if all stems differ."""
    if len(latencies) not in (1, len(sources)):
        raise ConfigError(
            f"{len(sources)} sources, but --latency names {len(latencies)} files: give one for all, or one "
            "for each, in the same order"
        )
    if len(set(sources)) < len(sources):
        raise ConfigError("the same source is named twice: name each source once")
    stems = [Path(source).stem for source in sources]
    names = stems if len(set(stems)) == len(stems) else list(sources)
    times = [LatencyModel.load(path) for path in latencies] * (len(sources) // len(latencies))
    acceptances = [read_source(source) for source in sources]
    return dict(zip(names, zip(acceptances, times, strict=True), strict=True))
