"""Rank the shapes of several sources together: drafts, laws or rules, each with its own trace and times."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from treespec.search.choice.best import best_tree
from treespec.search.choice.law_speed import AnyAcceptance
from treespec.search.choice.ranking import CHOSEN, Ranking, ranked
from treespec.search.errors import InvalidLimit, SearchError
from treespec.search.latency.latency import LatencyModel
from treespec.search.traces.sampling_names import name_of


def best_tree_among(
    sources: Mapping[str, tuple[AnyAcceptance, LatencyModel]], **options: Any
) -> Ranking:
    """Rank the trees, chains and plain decoding of several sources together.

    Each source is searched separately (`best_tree`), and its rows carry its name. All shapes are compared
    with the fastest plain decoding among the sources. Sources with equally many texts are resampled by the
    same texts. A shape is advised only if it is also faster than the best of its kind of every other source
    (`Advice`). The best of several sources looks slightly better than it is, which is not corrected.

    Args:
        sources: by name, a trace (or rates) and the times that belong to it.
        options: see `best_tree`.

    Raises:
        InvalidLimit: if there is no source, or they were recorded under different sampling settings.
        SearchError: as for `best_tree`, with the name of the source.
    """
    if not sources:
        raise InvalidLimit("sources is empty: name at least one trace with its times")
    settings = {
        name: name_of(getattr(acceptance, "sampling", None))
        for name, (acceptance, _) in sources.items()
    }
    if len({setting for setting in settings.values() if setting}) > 1:
        listed = ", ".join(f"{name} ({setting})" for name, setting in settings.items() if setting)
        raise InvalidLimit(
            f"these were recorded under different sampling settings: {listed}; rank each setting separately"
        )
    if len(sources) == 1:
        ((acceptance, latency),) = sources.values()
        return best_tree(acceptance, latency, **options)
    rankings: dict[str, Ranking] = {}
    for name, (acceptance, latency) in sources.items():
        try:
            rankings[name] = best_tree(acceptance, latency, **options)
        except SearchError as error:
            raise type(error)(f"{name}: {error}") from error
    if len({ranking.setting for ranking in rankings.values()}) > 1:
        prefixes = ", ".join(f"{name}: {each.setting.prefix}" for name, each in rankings.items())
        raise InvalidLimit(
            f"the times of these sources are of different prefixes ({prefixes}): give a prefix"
        )
    rows = [replace(row, source=name) for name, each in rankings.items() for row in each.rows]
    notes = [
        f"{name}: {note}"
        for name, ranking in rankings.items()
        for note in ranking.notes
        if note != CHOSEN
    ]

    setting = next(iter(rankings.values())).setting
    return ranked(rows, setting, notes)
