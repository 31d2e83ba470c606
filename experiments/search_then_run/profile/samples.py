"""Seconds of everything that a profile measures, and the JSON that they become."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from treespec.experiments.search_then_run.profile.plan import Setting
from treespec.search.latency.file import VERSION

__all__ = ["Samples", "by_round", "json_of_samples"]


def _by_prefix() -> Any:
    return defaultdict(lambda: defaultdict(list))


@dataclass
class Samples:
    """Seconds of everything that was measured, by table and place in it.

    Args:
        shared: `[name][prefix][size]`, a list of seconds, or of lists of them by round; the prefix is None
            where it does not matter.
        of_law: the same by law.
    """

    shared: dict[str, dict[int | None, dict[int | None, list[Any]]]] = field(
        default_factory=lambda: defaultdict(_by_prefix)
    )
    of_law: dict[str, dict[str, dict[int | None, dict[int | None, list[Any]]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(_by_prefix))
    )

    def places(self) -> Iterator[tuple[str, str, int | None, int | None, list[Any]]]:
        """All samples, each with its law (empty in `shared`), name, prefix and size."""
        for law, tables in {"": self.shared, **self.of_law}.items():
            for name, by_prefix in tables.items():
                for prefix, by_size in by_prefix.items():
                    for size, seconds in by_size.items():
                        yield law, name, prefix, size, seconds


def by_round(parts: Iterable[Samples]) -> Samples:
    """All samples of several rounds: in each place a list for each round, empty ones included."""
    whole = Samples()
    for number, part in enumerate(parts):
        for law, name, prefix, size, seconds in part.places():
            lists = (whole.of_law[law] if law else whole.shared)[name][prefix][size]
            lists += [[] for _ in range(number - len(lists))]
            lists.append(seconds)
    return whole


def json_of_samples(
    parts: Sequence[Samples],
    settings: Sequence[Setting],
    about: Mapping[str, Any],
    disturbed: str | None = None,
) -> str:
    """The samples of rounds as the JSON of a latency model, in milliseconds.

    Args:
        parts: the times, round by round.
        settings: laws and rules that were measured.
        about: where the times are from.
        disturbed: what else used the machine meanwhile, as a sentence.
    """
    samples, laws = by_round(parts), {}
    for setting in settings:
        tables = _tables(samples.of_law.get(str(setting.law), {}))
        if "level_ms" in tables:
            laws[str(setting.law)] = {"sampling": setting.name, "rule": str(setting.rule)} | tables
    return json.dumps(
        {
            "version": VERSION,
            "about": about,
            **({} if disturbed is None else {"disturbed": disturbed}),
            "batches": {"1": {**_tables(samples.shared), "laws": laws}},
        }
    )


def _tables(samples: Mapping[str, Mapping[int | None, Any]]) -> dict[str, Any]:
    return {f"{name}_ms": _milliseconds(by_prefix) for name, by_prefix in samples.items()}


def _milliseconds(samples: Any) -> Any:
    """Seconds by prefix, by size, by round, or as a list; where the key None stands, its value alone."""
    if isinstance(samples, list):
        return [_milliseconds(seconds) for seconds in samples]
    if isinstance(samples, float | int):
        return round(1e3 * samples, 4)
    if None in samples:
        return _milliseconds(samples[None])
    return {str(key): _milliseconds(samples[key]) for key in sorted(samples)}
