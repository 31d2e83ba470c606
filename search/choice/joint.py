"""One ranking over several sources: drafts, laws or rules, each with its own trace and times."""

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

    Each source is searched by itself (`best_tree`), and its rows carry its name. All are held against the
    quickest plain decoding among them. Sources of the same prompts are resampled by the same texts.

    The best of several looks better than it is. What that comes to is seen where resamples choose another
    one, and is taken off the first of each kind, plain decoding included (`flattery`): about two thirds of
    it where all are equally fast, nothing where the choice is beyond doubt. It is advised only if it is
    told from the best of its kind of every other source, too (`Advice`).

    Args:
        sources: by name, a trace (or rates) and the times that go with it.
        options: see `best_tree`.

    Raises:
        InvalidLimit: if there is none, or they were recorded under different sampling settings.
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
        prefixes = ", ".join(f"{name}: {one.prefix}" for name, one in rankings.items())
        raise InvalidLimit(
            f"the times of these sources hold behind different prefixes ({prefixes}): give a prefix"
        )
    notes = [
        f"{name}: {note}"
        for name, ranking in rankings.items()
        for note in ranking.notes
        if note not in (CHOSEN, SEVERAL)
    ]

    def speed(shape: TreeShape, law: str) -> Speed:
        having = [one for one in rankings.values() if law in {row.law for row in one.rows}]
        if not having:
            raise InvalidLimit(f"law = {law!r}, but no source has it")
        return max((one.speed(shape, law) for one in having), key=lambda candidate: candidate.rate)

    return ranked(entries, first.setting, notes, speed)


def _require_one_setting(sources: Mapping[str, tuple[Any, LatencyModel]]) -> None:
    names = {name: name_of(getattr(one, "sampling", None)) for name, (one, _) in sources.items()}
    if len({setting for setting in names.values() if setting}) > 1:
        said = ", ".join(f"{name} ({setting})" for name, setting in names.items() if setting)
        raise InvalidLimit(
            f"these were recorded under different sampling settings: {said}; rank each setting apart"
        )
