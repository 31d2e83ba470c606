"""Rank the shapes of several sources together: drafts, laws or rules, each with its own trace and times."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from treespec.search.arguments import MAPPING, takes
from treespec.search.choice.best import best_tree
from treespec.search.choice.law_speed import AnyAcceptance
from treespec.search.choice.ranking import CHOSEN, SEVERAL, Ranking, ranked
from treespec.search.choice.rows import Speed
from treespec.search.errors import InvalidLimit, SearchError
from treespec.search.latency.latency import LatencyModel
from treespec.search.rates.sampling_names import name_of
from treespec.shape import TreeShape

__all__ = ["best_tree_among"]


@takes(sources=MAPPING)
def best_tree_among(
    sources: Mapping[str, tuple[AnyAcceptance, LatencyModel]], **options: Any
) -> Ranking:
    """Rank the trees, chains and plain decoding of several sources together.

    Each source is searched separately (`best_tree`), and its rows carry its name. All shapes are compared
    with the fastest plain decoding among the sources. Sources of the same prompts are resampled by the same
    texts.

    The best of several sources looks better than it is. This bias is estimated from resamples that choose
    another source, and the first of each kind, plain decoding included, is corrected for it (`flattery`):
    by about two thirds of the bias where all are equally fast, by nothing where the choice is beyond doubt.
    A shape is advised only if it is also faster than the best of its kind of every other source (`Advice`).

    Args:
        sources: by name, a trace (or rates) and the times that belong to it.
        options: see `best_tree`.

    Raises:
        InvalidLimit: if there is no source, or they were recorded under different sampling settings.
        SearchError: as for `best_tree`, with the name of the source.
    """
    if not sources:
        raise InvalidLimit("sources is empty: name at least one trace with its times")
    _require_one_setting(sources)
    if len(sources) == 1:
        ((acceptance, latency),) = sources.values()
        return best_tree(acceptance, latency, **options)
    rankings: dict[str, Ranking] = {}
    for name, (acceptance, latency) in sources.items():
        try:
            rankings[name] = best_tree(acceptance, latency, **options)
        except SearchError as error:
            raise type(error)(f"{name}: {error}") from error
    first = next(iter(rankings.values()))
    entries = [
        replace(entry, source=name)
        for name, ranking in rankings.items()
        for entry in ranking.before_correction
    ]
    settings = {ranking.setting for ranking in rankings.values()}
    if len(settings) > 1:
        prefixes = ", ".join(f"{name}: {ranking.prefix}" for name, ranking in rankings.items())
        raise InvalidLimit(
            f"the times of these sources are of different prefixes ({prefixes}): give a prefix"
        )
    notes = [
        f"{name}: {note}"
        for name, ranking in rankings.items()
        for note in ranking.notes
        if note not in (CHOSEN, SEVERAL)
    ]

    def speed(shape: TreeShape, law: str) -> Speed:
        with_law = [
            ranking for ranking in rankings.values() if law in {row.law for row in ranking.rows}
        ]
        if not with_law:
            raise InvalidLimit(f"law = {law!r}, but no source has it")
        return max(
            (ranking.speed(shape, law) for ranking in with_law), key=lambda speed: speed.rate
        )

    return ranked(entries, first.setting, notes, speed)


def _require_one_setting(sources: Mapping[str, tuple[Any, LatencyModel]]) -> None:
    settings = {
        name: name_of(getattr(acceptance, "sampling", None))
        for name, (acceptance, _) in sources.items()
    }
    if len({setting for setting in settings.values() if setting}) > 1:
        listed = ", ".join(f"{name} ({setting})" for name, setting in settings.items() if setting)
        raise InvalidLimit(
            f"these were recorded under different sampling settings: {listed}; rank each setting separately"
        )
