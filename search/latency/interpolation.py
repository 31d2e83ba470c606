"""Times between measured sizes: medians, monotone but for what is proved, joined by straight lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from treespec.search.isotonic import non_increasing
from treespec.search.latency.errors import InvalidLatency, NotMeasured

__all__ = ["Curve", "Samples", "Table", "Term", "gathered"]

Samples: TypeAlias = tuple[float, ...]
Rounds: TypeAlias = tuple[int, ...]

FALSE_ALARMS = 0.01
"""Share of curves without any fall of which one is believed to have one."""

FEWEST_SAMPLES = 8
"""Samples of a size below which nothing is proved about it."""


MOST_CELLS = 2**20
"""Numbers that a regression of several rows holds at once: rows times the square of the sizes."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Time against a size, from repeated measurements at some sizes.

    At a measured size the time is the median of its samples, after an isotonic regression (weighted by the
    number of samples): more work takes no less time, so what says otherwise is noise. Unless it is proved:
    matrix libraries have faster kernels for some sizes, and a pass over three tokens can take half as long
    again as one over eight. Where the time falls from one measured size to the next beyond chance (rank sum
    test, at least `FEWEST_SAMPLES` samples on both sides; false alarms in 1 % of all curves if samples are
    independent, as those of one moment are not quite), the regression stops and starts over. Between sizes
    it is linear. It is linear in the fitted times, too, so a whole step is a
    weighted sum of them (`weights`), and a bootstrap of thousands of steps is one matrix product.

    A machine is a little faster in one round of measuring than in the next, for all sizes alike. So where
    it is known which round a sample is of, rounds are resampled and left out, and not samples.

    Args:
        name: what was measured, for messages.
        axis: what the size counts, for messages.
        samples: seconds by size; the only key None stands for every size.
        advice: the way out, for messages.
        rounds: by size, the round of measuring that each sample is of, from 0; those of all curves of a
            model are the same rounds. Samples of a size that is not there are no parts of rounds.

    Raises:
        InvalidLatency: if there is no sample, or one is negative or not finite.
    """

    name: str
    axis: str
    samples: Mapping[int | None, Samples]
    advice: str = "measure them, or ask for less"
    rounds: Mapping[int | None, Rounds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no time."""
        if not self.samples:
            raise InvalidLatency(f"{self.name} has no times: give at least one")
        ordered = sorted(self.samples, key=lambda size: -1 if size is None else size)
        if ordered[0] is None and len(ordered) > 1:
            raise InvalidLatency(f"{self.name} has a time for every {self.axis} and others besides")
        for size in ordered:
            if not self.samples[size]:
                raise InvalidLatency(f"{self.name}, {self.axis} {size}: there is no time")
            for value in self.samples[size]:
                if not (np.isfinite(value) and value >= 0):
                    raise InvalidLatency(
                        f"{self.name}, {self.axis} {size}: {value!r}, but a time is a finite number of "
                        "at least 0"
                    )
        object.__setattr__(self, "samples", {size: self.samples[size] for size in ordered})

    @property
    def anywhere(self) -> bool:
        """Whether the time holds for every size."""
        return None in self.samples

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The measured sizes, ascending; none if the time holds for every size."""
        return tuple(size for size in self.samples if size is not None)

    @cached_property
    def fitted(self) -> Float[np.ndarray, "sizes"]:
        """Seconds at the measured sizes, non-decreasing but where a fall is proved."""
        medians = np.array([[np.median(times) for times in self.samples.values()]])
        return self._isotonic(medians)[0]

    def drawn(
        self,
        rng: np.random.Generator,
        draws: int,
        rounds: Float[np.ndarray, "draws rounds"] | None = None,
    ) -> Float[np.ndarray, "draws sizes"]:
        """The fit again for resamples of every size's samples, drawn with replacement.

        Args:
            rng: what samples are drawn from whose rounds are not known.
            draws: resamples.
            rounds: how often each round is drawn in each resample.
        """
        medians = []
        for size, times in self.samples.items():
            if rounds is not None and size in self.rounds:
                medians.append(_medians(np.array(times), rounds[:, self.rounds[size]]))
            else:
                places = rng.integers(len(times), size=(draws, len(times)))
                medians.append(np.median(np.asarray(times)[places], axis=1))
        return self._isotonic(np.stack(medians, axis=1))

    @property
    def round_count(self) -> int:
        """One more than the last round that a sample is of; 0 if no rounds are known."""
        return 1 + max((max(of) for of in self.rounds.values()), default=-1)

    def weights(self, sizes: Int[np.ndarray, "asked"]) -> Float[np.ndarray, "asked sizes"]:
        """How much each fitted time counts in the time at the sizes asked for; rows sum to 1.

        Raises:
            NotMeasured: if one lies outside of the measured sizes.
        """
        if self.anywhere:
            return np.ones((len(sizes), 1))
        known = np.array(self.sizes)
        outside = sizes[(sizes < known[0]) | (sizes > known[-1])]
        if len(outside):
            raise NotMeasured(
                f"{self.name}: {self.axis} {outside[0]}, but times are known from {self.axis} {known[0]} "
                f"to {known[-1]}, and none is extrapolated: {self.advice}"
            )
        right = np.searchsorted(known, sizes)
        left = np.where(known[right] == sizes, right, right - 1)
        share = (sizes - known[left]) / np.maximum(known[right] - known[left], 1)
        weights = np.zeros((len(sizes), len(known)))
        rows = np.arange(len(sizes))
        weights[rows, left] = 1 - share
        weights[rows, right] += share
        return weights

    @cached_property
    def falls(self) -> tuple[int, ...]:
        """Places of the sizes at which the time is lower than at the size before, beyond chance."""
        samples = [np.asarray(times) for times in self.samples.values()]
        limit = NormalDist().inv_cdf(1 - FALSE_ALARMS / max(1, len(samples) - 1))
        pairs = enumerate(pairwise(samples), start=1)
        return tuple(at for at, (left, right) in pairs if _rank_sum(left, right) > limit)

    def _isotonic(self, medians: np.ndarray) -> np.ndarray:
        """Each row made non-decreasing between falls."""
        counts = np.array([len(times) for times in self.samples.values()], dtype=float)
        for part in (slice(*ends) for ends in pairwise((0, *self.falls, len(counts)))):
            block = medians[:, part]
            wrong = np.flatnonzero((np.diff(block, axis=1) < 0).any(axis=1))
            most = max(1, MOST_CELLS // block.shape[1] ** 2)
            for rows in (wrong[at : at + most] for at in range(0, len(wrong), most)):
                weights = np.broadcast_to(counts[part], (len(rows), block.shape[1]))
                block[rows] = -non_increasing(-block[rows], weights)
        return medians


def _medians(
    times: Float[np.ndarray, "n"], numbers: Float[np.ndarray, "draws n"]
) -> Float[np.ndarray, "draws"]:
    """The median of the samples as often as each draw has them; of all, where it has none."""
    order = np.argsort(times, kind="stable")
    counts = numbers[:, order].cumsum(axis=1)
    total = counts[:, -1:]
    if not total.all():
        counts = np.where(total > 0, counts, np.arange(1, len(times) + 1))
        total = counts[:, -1:]
    low, high = ((counts < rank).sum(axis=1) for rank in (total / 2, total / 2 + 0.5))
    return (times[order][low] + times[order][high]) / 2


def _rank_sum(left: np.ndarray, right: np.ndarray) -> float:
    """How much larger the left sample is, in standard deviations of the rank sum (Wilcoxon 1945)."""
    n, m = len(left), len(right)
    if min(n, m) < FEWEST_SAMPLES:
        return 0.0
    larger = (left[:, None] > right).sum() + 0.5 * (left[:, None] == right).sum()
    return float((larger - n * m / 2) / np.sqrt(n * m * (n + m + 1) / 12))


Term: TypeAlias = tuple[Curve, Float[np.ndarray, "steps sizes"]]
"""A part of the time of some steps: the weights of a curve's fitted times, `weights @ curve.fitted`."""


@dataclass(frozen=True, eq=False)
class Table:
    """Curves behind prefixes of several lengths; linear between them, too.

    Args:
        name: what was measured, for messages.
        curves: by prefix length; the only key None stands for every prefix.
    """

    name: str
    curves: Mapping[int | None, Curve]

    @property
    def round_count(self) -> int:
        """See `Curve.round_count`."""
        return max(curve.round_count for curve in self.curves.values())

    @property
    def prefixes(self) -> tuple[int, ...]:
        """The measured prefix lengths, ascending; none if times hold behind every prefix."""
        return tuple(sorted(prefix for prefix in self.curves if prefix is not None))

    def shares(self, prefix: int | None) -> list[tuple[Curve, float]]:
        """The curves that a prefix lies between, with how much each counts.

        Args:
            prefix: committed tokens before the root; None for the middle one of those measured.

        Raises:
            NotMeasured: if it lies outside of the measured ones.
        """
        known = self.prefixes
        if not known:
            return [(self.curves[None], 1.0)]
        if prefix is None:
            prefix = known[(len(known) - 1) // 2]
        if prefix in self.curves:
            return [(self.curves[prefix], 1.0)]
        if not known[0] < prefix < known[-1]:
            raise NotMeasured(
                f"{self.name}: prefix = {prefix}, but times are known for prefixes of {known[0]} to "
                f"{known[-1]} tokens, and none is extrapolated: `treespec profile --prefixes` measures "
                "others, and a table without prefixes stands for all"
            )
        right = next(i for i, one in enumerate(known) if one > prefix)
        share = (prefix - known[right - 1]) / (known[right] - known[right - 1])
        return [(self.curves[known[right - 1]], 1 - share), (self.curves[known[right]], share)]

    def at(self, size: int, prefix: int | None) -> float:
        """Seconds at one size and prefix."""
        asked = np.array([size])
        return float(sum(s * (c.weights(asked) @ c.fitted)[0] for c, s in self.shares(prefix)))

    def largest(self, prefix: int | None) -> int | None:
        """The largest size with a time behind this prefix; None if there is no bound."""
        bounds = [c.sizes[-1] for c, _ in self.shares(prefix) if not c.anywhere]
        return min(bounds, default=None)


def gathered(table: Table, prefix: int | None, counts: Sequence[Mapping[int, float]]) -> list[Term]:
    """The terms of steps of which each takes several times from one table.

    Args:
        table: the times.
        prefix: see `Table.shares`.
        counts: for each step, how often it takes the time of each size.
    """
    owner = np.repeat(np.arange(len(counts)), [len(each) for each in counts])
    sizes = np.array([size for each in counts for size in each], dtype=np.int64)
    times = np.array([number for each in counts for number in each.values()], dtype=float)
    terms = []
    for curve, share in table.shares(prefix):
        weights = np.zeros((len(counts), len(curve.samples)))
        np.add.at(weights, owner, share * times[:, None] * curve.weights(sizes))
        terms.append((curve, weights))
    return terms
