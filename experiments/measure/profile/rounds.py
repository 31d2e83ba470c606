"""Rounds of measuring: their times, which of them something else disturbed, and the JSON that they become.

A round measures everything once, so that rounds can be compared part by part. Two things give a neighbour
away: counters of the kernel, which say how much of the processor others used during the round, and the
parts themselves, which took longer than in calm rounds. The first sees a load that never changes; the
second works on every system and in rounds of any length.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from treespec.experiments.measure.profile.plan import Setting
from treespec.experiments.records.machine_load import BUSY_RUN_PERCENT
from treespec.search.latency.file import VERSION

SLOW_ROUND = 1.25
"""A round is disturbed if its parts took this many times as long as in calm ones, in the median."""

CALM_SHARE = 5
"""Rounds are compared with the calmest fifth of them."""

LARGE_PARTS = ("verify", "level", "first", "plain")
"""Tables of whole passes, by which rounds are compared. The times of other parts are short and vary."""

Place: TypeAlias = tuple[str, str, int | None, int | None]
"""Law (empty for what all laws share), table, prefix and size of a time; None where it does not matter."""

Samples: TypeAlias = dict[Place, list[float]]
"""Measured seconds by place."""


@dataclass(frozen=True)
class Round:
    """Everything, measured once.

    Args:
        samples: the times.
        busy: percent of the processor that other processes used meanwhile; None if it is not known.
        slower: how many times as long parts took as in the calmest fifth of the rounds (`compared`).
    """

    samples: Samples
    busy: float | None = None
    slower: float = 1.0

    @property
    def disturbed(self) -> bool:
        return self.slower > SLOW_ROUND or (self.busy or 0.0) > BUSY_RUN_PERCENT


def compared(rounds: Sequence[Round]) -> list[Round]:
    """The rounds with `slower`, from the medians of their large parts."""
    medians = [
        {
            place: float(np.median(seconds))
            for place, seconds in one.samples.items()
            if place[1] in LARGE_PARTS
        }
        for one in rounds
    ]
    shared = sorted(set.intersection(*map(set, medians)), key=str) if rounds else []
    if not shared:
        return list(rounds)
    times = np.log([[max(of[place], 1e-9) for place in shared] for of in medians])
    levels = np.median(times - np.median(times, axis=0), axis=1)
    calmest = np.sort(levels)[(len(levels) - 1) // CALM_SHARE]
    slower = np.exp(levels - calmest).tolist()
    return [replace(one, slower=times) for one, times in zip(rounds, slower, strict=True)]


def calmest(rounds: Sequence[Round], wanted: int) -> list[Round]:
    """So many rounds in their order: calm ones first, then those that were disturbed least."""

    def harm(i: int) -> tuple[bool, float]:
        one = rounds[i]
        return one.disturbed, one.disturbed * max(one.slower, 1 + (one.busy or 0.0) / 100)

    kept = sorted(range(len(rounds)), key=harm)[:wanted]
    return [rounds[i] for i in sorted(kept)]


def what_disturbed(rounds: Sequence[Round], measured: int) -> str | None:
    """A sentence, with numbers and the way out, on what disturbed these rounds; None if nothing did."""
    bad = [one for one in rounds if one.disturbed]
    if not bad:
        return None
    busy, slower = max(one.busy or 0.0 for one in bad), max(one.slower for one in bad)
    seen = []
    if busy > BUSY_RUN_PERCENT:
        seen.append(f"other processes used up to {busy:.0f} % of the CPU")
    if slower > SLOW_ROUND:
        seen.append(f"parts took up to {slower:.1f} times as long as in the calmest rounds")
    again = f" (the calmest of {measured})" if measured > len(rounds) else ""
    return (
        f"{len(bad)} of {len(rounds)} rounds{again} were disturbed: {', and '.join(seen)}. "
        "These times are not reliable: profile again on a quiet machine."
    )


def json_of_rounds(
    rounds: Sequence[Samples],
    settings: Sequence[Setting],
    about: Mapping[str, Any],
    disturbed: str | None = None,
) -> str:
    """The times as the JSON of a latency model, in milliseconds, with a list for each round."""
    tables: dict[str, dict[str, Any]] = {"": {}, **{str(setting.law): {} for setting in settings}}
    places = sorted({place for one in rounds for place in one}, key=_order)
    for place in places:
        law, name, *keys = place
        inner, path = tables[law], [f"{name}_ms", *(str(key) for key in keys if key is not None)]
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        lists = [[round(1e3 * seconds, 4) for seconds in one.get(place, ())] for one in rounds]
        while not lists[-1]:
            del lists[-1]
        inner[path[-1]] = lists
    laws = {
        str(setting.law): {"sampling": setting.name, "rule": str(setting.rule)}
        | tables[str(setting.law)]
        for setting in settings
        if "level_ms" in tables[str(setting.law)]
    }
    data = {"version": VERSION, "about": about, "disturbed": disturbed}
    data["batches"] = {"1": {**tables[""], "laws": laws}}
    return json.dumps({key: value for key, value in data.items() if value is not None})


def _order(place: Place) -> tuple[str, str, int, int]:
    law, name, prefix, size = place
    return law, name, prefix or 0, size or 0
