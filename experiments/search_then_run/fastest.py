"""`treespec search --latency` and `treespec regret`: which shape to use, and what a wrong shape costs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from treespec.experiments.config.base import LARGEST_NUMBER
from treespec.experiments.config.files import require_there, require_within
from treespec.experiments.errors import ConfigError
from treespec.experiments.report.table import Cell, Column, Table, interval
from treespec.experiments.search_then_run.budgets import flow
from treespec.experiments.search_then_run.commands import (
    LARGEST_DRAWN,
    dumped,
    read_source,
    require_limits,
)
from treespec.experiments.search_then_run.replays import read_shapes
from treespec.search import LatencyModel, Ranking, SearchError, Trace, best_tree, best_tree_among
from treespec.search.choice.pairs import different_pairs, passes_left_to_auto
from treespec.search.choice.ranking import CHOSEN
from treespec.search.intervals import Interval
from treespec.shape import TreeShape

__all__ = ["Advised", "Regrets", "regrets", "search_fastest"]


STATIC = "trees that grow were left out, since no other place could use them as one fixed tree"
"""Note on places whose trace could rank growths too."""

TIMES = "treespec profile CONFIG --out latency.json"
"""The command that writes files of times."""


@dataclass(frozen=True, eq=False)
class Advised:
    """Rankings by speed, one for each requested prefix and batch size.

    Args:
        rankings: the rankings, at least one.
        form: the format in which the first shape of the first ranking is shown.
    """

    rankings: tuple[Ranking, ...]
    form: str

    @property
    def shape(self) -> TreeShape:
        """The first shape of the first ranking.

        Raises:
            ConfigError: if the shape is a growing tree or a budget, which no tree format can hold.
        """
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
            return "\n\n".join(lines)
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

    Args:
        sources: see `read_source`; shapes of several sources are ranked together.
        latencies: files of `LatencyModel`: one for all sources, or one for each.
        form: the format in which the best tree is shown.
        prefixes: numbers of tokens before the tree; empty for the middle one of those measured.
        batches: numbers of texts decoded at once; empty for one.
        options: see `treespec.search.best_tree`.

    Raises:
        ConfigError: if an option is out of bounds or the files do not fit; the message names them.
    """
    require_limits(options.get("max_size"), options.get("depth"), options.get("branching"))
    for prefix in prefixes:
        require_within("--prefix", prefix, 0, LARGEST_NUMBER)
    for batch in batches:
        require_within("--batch", batch, 1, LARGEST_NUMBER)
    pairs = _sources(sources, latencies)
    where = ", ".join(sources) + " with the times of " + ", ".join(map(str, latencies))
    try:
        rankings = [
            best_tree_among(pairs, prefix=prefix, batch=batch, **options)
            for batch in batches or (1,)
            for prefix in prefixes or (None,)
        ]
    except SearchError as error:
        raise ConfigError(f"{where}: {error}") from error
    files = dict(zip([*latencies] * (len(sources) // len(latencies)), pairs.values(), strict=True))
    warnings = [
        passes_left_to_auto(f"the times of {path}", times) for path, (_, times) in files.items()
    ]
    cautions = [f"caution: {text}" for text in warnings if text is not None]
    noted = tuple(replace(ranking, notes=(*ranking.notes, *cautions)) for ranking in rankings)
    return Advised(noted, form)


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
    files = [*latencies] * (len(sources) // len(latencies))
    return dict(zip(names, _loaded(sources, files), strict=True))


def _loaded(sources: Sequence[str], files: Sequence[Path]) -> list[tuple[Any, LatencyModel]]:
    """The acceptance of each source with the times of its file; each is read once.

    Raises:
        ConfigError: if a file of times is missing, or the two are of different models where both name
            theirs; the message names both files, both pairs and the way out.
    """
    for path in files:
        require_there(path, "--latency", TIMES)
    acceptances = {source: read_source(source) for source in sources}
    times = {path: LatencyModel.load(path) for path in files}
    for source, path in zip(sources, files, strict=True):
        if (pairs := different_pairs(acceptances[source], times[path])) is not None:
            ours, theirs = pairs
            raise ConfigError(
                f"{source} is of {ours}, but the times of {path} are of {theirs}: profile the first pair "
                "(`treespec profile`) and give --latency for each source, in the same order; or, if its "
                f"passes take as long, remove `models` from `about` in {path}"
            )
    return [(acceptances[s], times[path]) for s, path in zip(sources, files, strict=True)]


@dataclass(frozen=True, eq=False)
class Regrets:
    """The speed that is lost by using a shape where another shape is the best.

    Args:
        places: names of the places where a shape is used.
        rows: by name of the shape, its regret at every place; None where it was not measured.
        shapes: the shapes by the same names.
        notes: limits of the result, and why a shape was not measured.
    """

    places: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Interval | None]]
    shapes: Mapping[str, TreeShape]
    notes: tuple[str, ...]

    def table(self) -> Table:
        """A table with a row for each shape and a column for each place."""

        def cell(place: str, name: str) -> Cell:
            lost = self.rows[name][place]
            return Cell("not measured") if lost is None else interval(lost.scaled(100), 1, " %")

        columns = [
            Column[str]("shape", lambda name: name, left=True),
            Column[str]("nodes", lambda name: str(self.shapes[name].size)),
            Column[str]("depth", lambda name: str(self.shapes[name].depth)),
            *(Column[str](f"lost at {place}", partial(cell, place)) for place in self.places),
        ]
        return Table(
            "",
            columns,
            list(self.rows),
            title="speed lost compared with the best shape of each place",
        )

    def data(self) -> dict[str, Any]:
        """The regrets as plain data, as shares of the speed."""
        return {
            "regret": [
                {
                    "shape": name,
                    "parents": list(self.shapes[name].parents),
                    "lost": {
                        place: None if lost is None else lost._asdict()
                        for place, lost in row.items()
                    },
                }
                for name, row in self.rows.items()
            ],
            "notes": list(self.notes),
        }


def regrets(
    sources: Sequence[str],
    latencies: Sequence[Path],
    shapes: str | None,
    *,
    prefix: int | None = None,
    batch: int = 1,
    max_size: int | None = None,
) -> Regrets:
    """Compute what the best shape of each place, plain decoding and named shapes lose at every place.

    A place is a source with its times, so places may differ in draft, temperature, kind of text or machine.
    See `treespec.search.Ranking.regret`.

    Args:
        sources: see `read_source`. A single source may be combined with several files of times.
        latencies: see `search_fastest`; any number for a single source.
        shapes: more shapes, as `replays.read_shapes` reads them.
        prefix: tokens before the tree; None for the middle one of those measured.
        batch: texts decoded at once.
        max_size: nodes of the largest tree.

    Raises:
        ConfigError: if the files do not fit; the message names them.
    """
    named = {} if shapes is None else read_shapes(shapes)
    rankings = dict(_rankings(sources, latencies, prefix=prefix, batch=batch, max_size=max_size))
    compared = {
        f"best of {place}: {ranking.best.label}": ranking.best.shape
        for place, ranking in rankings.items()
    }
    compared |= named | {"plain decoding": TreeShape.chain(0)}
    notes = [
        f"{place}: {note}"
        for place, ranking in rankings.items()
        for note in ranking.notes
        if note != CHOSEN
    ]
    rows: dict[str, dict[str, Interval | None]] = {name: {} for name in compared}
    for name, shape in compared.items():
        for place, ranking in rankings.items():
            try:
                rows[name][place] = ranking.regret(shape)
            except SearchError as error:
                rows[name][place] = None
                notes.append(f"{place}: {name} was not measured: {error}")
    return Regrets(tuple(rankings), rows, compared, tuple(notes))


def _rankings(
    sources: Sequence[str], latencies: Sequence[Path], **options: Any
) -> Iterator[tuple[str, Ranking]]:
    if len(sources) == 1 and len(latencies) > 1:
        loaded = _loaded([*sources] * len(latencies), latencies)
        places = dict(zip((path.stem for path in latencies), loaded, strict=True))
        if len(places) < len(latencies):
            raise ConfigError(
                "--latency names several files with the same name: rename them, to tell them apart"
            )
    else:
        places = _sources(sources, latencies)
    for place, (acceptance, times) in places.items():
        if isinstance(acceptance, Trace) and acceptance.text_drafts is not None:
            raise ConfigError(
                f"{place}: the trace is of a text source, which brings its own continuations, so it cannot "
                "use a tree that was tuned elsewhere: compare its budgets (`treespec search --latency`)"
            )
        growths: tuple[str, ...] = ()
        if isinstance(acceptance, Trace) and acceptance.draft_rows is not None:
            acceptance, growths = replace(acceptance, draft_rows=None), (STATIC,)
        try:
            ranking = best_tree(acceptance, times, **options)
        except SearchError as error:
            raise ConfigError(f"{place}: {error}") from error
        yield place, replace(ranking, notes=(*ranking.notes, *growths))
