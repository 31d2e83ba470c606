"""Times between measured sizes: medians, monotone except for significant falls, linearly interpolated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from treespec.search.errors import NotMeasured
from treespec.search.isotonic import non_increasing

FALSE_ALARMS = 0.01
"""Share of curves without any fall for which a fall is reported."""

FEWEST_SAMPLES = 8
"""Fewest samples of a size for a fall to be significant."""

MOST_CELLS = 2**20
"""Limit on the numbers that a regression of several rows holds: rows times the square of the sizes."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Time as a function of a size, from repeated measurements at some sizes.

    At a measured size the time is the median of its samples, after an isotonic regression weighted by the
    number of samples: more work takes no less time, so a fall is usually noise. Some falls are real: matrix
    libraries have faster kernels for some sizes. Where the time falls significantly from one measured size
    to the next (rank sum test; false alarms in 1 % of all curves), the regression stops and starts anew.
    Between sizes the time is linear. It is also linear in the fitted times, so a whole step is a weighted
    sum of them (`weights`).

    A machine is slightly faster in some rounds of measuring than in others, for all sizes alike. So if the
    round of each sample is known, rounds are resampled instead of samples.

    Args:
        name: what was measured, for messages.
        axis: what the size counts, for messages.
        samples: seconds by size; a single key None stands for every size.
        advice: the way out, for messages.
        rounds: by size, the round of measuring of each sample, from 0; all curves of a model share the
            rounds. Samples of sizes without an entry do not belong to rounds.
    """

    name: str
    axis: str
    samples: Mapping[int | None, Sequence[float]]
    advice: str = "measure them, or ask for less"
    rounds: Mapping[int | None, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Order the sizes."""
        ordered = sorted(self.samples, key=lambda size: -1 if size is None else size)
        object.__setattr__(self, "samples", {size: self.samples[size] for size in ordered})

    @property
    def anywhere(self) -> bool:
        """Whether the time holds for every size."""
        return None in self.samples

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The measured sizes, ascending; empty if the time holds for every size."""
        return tuple(size for size in self.samples if size is not None)

    @cached_property
    def fitted(self) -> Float[np.ndarray, "sizes"]:
        """Seconds at the measured sizes, non-decreasing except at significant falls."""
        medians = np.array([[np.median(times) for times in self.samples.values()]])
        return self._isotonic(medians)[0]

    def drawn(
        self,
        rng: np.random.Generator,
        draws: int,
        rounds: Float[np.ndarray, "draws rounds"] | None = None,
    ) -> Float[np.ndarray, "draws sizes"]:
        """The fitted times under resamples of the samples of every size, drawn with replacement."""
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
        """Number of rounds, up to the last one with a sample; 0 if no rounds are known."""
        return 1 + max((max(rounds) for rounds in self.rounds.values()), default=-1)

    def weights(self, sizes: Int[np.ndarray, "asked"]) -> Float[np.ndarray, "asked sizes"]:
        """The weight of each fitted time in the time at each requested size; rows sum to 1."""
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
        """Indices of the sizes at which the time is significantly lower than at the size before."""
        samples = [np.asarray(times) for times in self.samples.values()]
        limit = NormalDist().inv_cdf(1 - FALSE_ALARMS / max(1, len(samples) - 1))
        pairs = enumerate(pairwise(samples), start=1)
        return tuple(index for index, (left, right) in pairs if _rank_sum(left, right) > limit)

    def _isotonic(self, medians: np.ndarray) -> np.ndarray:
        """Make each row non-decreasing between falls, in place."""
        counts = np.array([len(times) for times in self.samples.values()], dtype=float)
        for start, stop in pairwise((0, *self.falls, len(counts))):
            block = medians[:, start:stop]
            decreasing = np.flatnonzero((np.diff(block, axis=1) < 0).any(axis=1))
            batch = max(1, MOST_CELLS // block.shape[1] ** 2)
            for first in range(0, len(decreasing), batch):
                rows = decreasing[first : first + batch]
                weights = np.broadcast_to(counts[start:stop], (len(rows), block.shape[1]))
                block[rows] = -non_increasing(-block[rows], weights)
        return medians


def _medians(
    times: Float[np.ndarray, "n"], numbers: Float[np.ndarray, "draws n"]
) -> Float[np.ndarray, "draws"]:
    """The median of the samples, each repeated as each draw has it; of all samples for empty draws."""
    order = np.argsort(times, kind="stable")
    counts = numbers[:, order].cumsum(axis=1)
    total = counts[:, -1:]
    if not total.all():
        counts = np.where(total > 0, counts, np.arange(1, len(times) + 1))
        total = counts[:, -1:]
    low, high = ((counts < rank).sum(axis=1) for rank in (total / 2, total / 2 + 0.5))
    return (times[order][low] + times[order][high]) / 2


def _rank_sum(left: np.ndarray, right: np.ndarray) -> float:
    """How much larger the left samples are, in standard deviations of the rank sum (Wilcoxon 1945)."""
    n, m = len(left), len(right)
    if min(n, m) < FEWEST_SAMPLES:
        return 0.0
    larger = (left[:, None] > right).sum() + 0.5 * (left[:, None] == right).sum()
    return float((larger - n * m / 2) / np.sqrt(n * m * (n + m + 1) / 12))


Term: TypeAlias = tuple[Curve, Float[np.ndarray, "steps sizes"]]
"""A part of the time of several steps: a curve, and the weights in `weights @ curve.fitted`."""


@dataclass(frozen=True, eq=False)
class Table:
    """Curves for several prefix lengths, with linear interpolation between them.

    Args:
        name: what was measured, for messages.
        curves: curves by prefix length; a single key None stands for every prefix.
    """

    name: str
    curves: Mapping[int | None, Curve]

    @property
    def round_count(self) -> int:
        return max(curve.round_count for curve in self.curves.values())

    @property
    def prefixes(self) -> tuple[int, ...]:
        """The measured prefix lengths, ascending; empty if times hold for every prefix."""
        return tuple(sorted(prefix for prefix in self.curves if prefix is not None))

    def shares(self, prefix: int | None) -> list[tuple[Curve, float]]:
        """The curves that a prefix lies between, with their weights."""
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
                "others, and a table without prefixes holds for all"
            )
        left, right = next(ends for ends in pairwise(known) if prefix < ends[1])
        share = (prefix - left) / (right - left)
        return [(self.curves[left], 1 - share), (self.curves[right], share)]

    def at(self, size: int, prefix: int | None) -> float:
        """Seconds at one size and prefix."""
        asked = np.array([size])
        return float(sum(s * (c.weights(asked) @ c.fitted)[0] for c, s in self.shares(prefix)))

    def between(self, size: int, prefix: int | None) -> bool:
        """Whether the time of this size is interpolated between measured ones."""
        return any(not c.anywhere and size not in c.sizes for c, _ in self.shares(prefix))

    def largest(self, prefix: int | None) -> int | None:
        """The largest size with a time for this prefix; None if there is no bound."""
        bounds = [c.sizes[-1] for c, _ in self.shares(prefix) if not c.anywhere]
        return min(bounds, default=None)


def gathered(table: Table, prefix: int | None, counts: Sequence[Mapping[int, float]]) -> list[Term]:
    """The terms of steps that each take several times from one table."""
    step_of = np.repeat(np.arange(len(counts)), [len(step) for step in counts])
    sizes = np.array([size for step in counts for size in step], dtype=np.int64)
    numbers = np.array([number for step in counts for number in step.values()], dtype=float)
    terms = []
    for curve, share in table.shares(prefix):
        weights = np.zeros((len(counts), len(curve.samples)))
        np.add.at(weights, step_of, share * numbers[:, None] * curve.weights(sizes))
        terms.append((curve, weights))
    return terms
