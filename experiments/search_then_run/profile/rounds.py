"""Rounds of measuring: which of them something else on the machine disturbed, and what to say of the rest.

A round measures everything once, so that rounds can be compared part by part. Two things give a neighbour
away: counters of the kernel, which say how much of the processor others used during the round, and the
parts themselves, which took longer than in calm rounds. The first sees a load that never changes, the
second works on every system and in rounds of any length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from treespec.experiments.records.machine_load import BUSY_RUN_PERCENT
from treespec.experiments.search_then_run.profile.samples import Samples

__all__ = ["Judged", "Round", "judged"]

SLOW_ROUND = 1.25
"""In a disturbed round parts take so many times as long as in calm ones, in the median over the parts."""

CALM_SHARE = 5
"""The rounds are compared with the calmest fifth of them."""

LARGE_PARTS = ("verify", "level", "first", "plain")
"""Tables of the parts that rounds are compared by: whole passes. The others are short, and jump about."""


@dataclass(frozen=True)
class Round:
    """Everything, measured once.

    Args:
        samples: the times.
        busy: percent of the processor that other processes used meanwhile; None if it cannot be told.
    """

    samples: Samples
    busy: float | None = None


@dataclass(frozen=True)
class Judged:
    """Rounds with what disturbed them.

    Args:
        rounds: in the order of measuring.
        slower: `[rounds]`, how many times as long parts took as in the calmest fifth of the rounds.
    """

    rounds: Sequence[Round]
    slower: Float[np.ndarray, "rounds"]

    @property
    def disturbed(self) -> list[bool]:
        """For each round, whether something else used the machine."""
        return [
            bool(slower > SLOW_ROUND or (one.busy or 0.0) > BUSY_RUN_PERCENT)
            for one, slower in zip(self.rounds, self.slower, strict=True)
        ]

    @property
    def calm(self) -> int:
        """How many rounds nothing disturbed."""
        return self.disturbed.count(False)

    def best(self, wanted: int) -> "Judged":
        """So many rounds: calm ones first, then those that were disturbed least; in their order."""
        disturbed = self.disturbed

        def harm(i: int) -> float:
            return max(self.slower[i], 1 + (self.rounds[i].busy or 0.0) / 100)

        order = sorted(
            range(len(disturbed)), key=lambda i: (disturbed[i], disturbed[i] and harm(i))
        )
        kept = sorted(order[:wanted])
        return Judged([self.rounds[i] for i in kept], self.slower[kept])

    def sentence(self, measured: int) -> str | None:
        """What disturbed these rounds, with numbers and the way out; None if nothing did.

        Args:
            measured: rounds in all, with those that were measured again and left out.
        """
        bad = [i for i, disturbed in enumerate(self.disturbed) if disturbed]
        if not bad:
            return None
        busy, slower = (
            max(self.rounds[i].busy or 0.0 for i in bad),
            max(self.slower[i] for i in bad),
        )
        seen = []
        if busy > BUSY_RUN_PERCENT:
            seen.append(f"other processes used up to {busy:.0f} % of the CPU")
        if slower > SLOW_ROUND:
            seen.append(f"parts took up to {slower:.1f} times as long as in the calmest rounds")
        again = f" (the calmest of {measured})" if measured > len(self.rounds) else ""
        return (
            f"{len(bad)} of {len(self.rounds)} rounds{again} were disturbed: {', and '.join(seen)}. "
            "These times are not reliable: profile again on a quiet machine."
        )


def judged(rounds: Sequence[Round]) -> Judged:
    """Compare rounds with each other.

    Args:
        rounds: at least one.
    """
    places = [  # the median seconds of each long part, by its place in the tables
        {
            (law, name, prefix, size): float(np.median(seconds))
            for law, name, prefix, size, seconds in one.samples.places()
            if name in LARGE_PARTS
        }
        for one in rounds
    ]
    shared = sorted(set.intersection(*map(set, places)), key=str)
    if not shared:
        return Judged(rounds, np.ones(len(rounds)))
    times = np.log([[max(of[place], 1e-9) for place in shared] for of in places])
    levels = np.median(times - np.median(times, axis=0), axis=1)
    calmest = np.sort(levels)[(len(levels) - 1) // CALM_SHARE]
    return Judged(rounds, np.exp(levels - calmest))
