"""The steps of a growth on a recorded trace: accepted tokens, and the time that they take."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from treespec.search.intervals import RESAMPLES, Interval, ratio
from treespec.search.latency.interpolation import Term
from treespec.search.latency.step_parts import StepParts, seconds_of
from treespec.search.rates.replay import ReplayedSteps, by_file

__all__ = ["GrowthReplay", "Levels"]

Levels: TypeAlias = tuple[tuple[int, ...], ...]
"""The draft passes of one step: for each pass, the number of children of every node that it ran."""


@dataclass(frozen=True, eq=False, kw_only=True)
class GrowthReplay(ReplayedSteps):
    """The steps of one growth on one trace.

    Args:
        accepted, kept, offsets, file_of: see `ReplayedSteps`.
        sizes: verified nodes of every step, the root included.
        sure: whether the step is proved to be a live run's (`treespec.search.rates.growth_replay`).
        max_depth: maximum number of edges of the growth's trees.
        levels: for every step and each pass of the draft, the number of children of every node that it ran.
    """

    sizes: Int[np.ndarray, "steps"]
    sure: Bool[np.ndarray, "steps"]
    max_depth: int
    levels: Sequence[Levels]

    @property
    def nodes_per_step(self) -> float:
        """Verified nodes per step, the root included."""
        return float(self.sizes.mean())

    @property
    def accepted_by_depth(self) -> Float[np.ndarray, "depth"]:
        """The share of steps that accept a node at depth 1, 2, ..., `max_depth`."""
        counts = np.bincount(self.accepted, minlength=self.max_depth + 1)
        return counts[::-1].cumsum()[::-1][1:] / len(self.accepted)

    @cached_property
    def _kinds(self) -> tuple[list[tuple[Levels, int]], Int[np.ndarray, "steps"]]:
        """The distinct kinds of steps, by passes and size, and the index of each step's kind."""
        index: dict[tuple[Levels, int], int] = {}
        steps = zip(self.levels, self.sizes.tolist(), strict=True)
        kind_of_step = np.array([index.setdefault(step, len(index)) for step in steps])
        return list(index), kind_of_step

    def terms(self, parts: StepParts) -> list[Term]:
        """The time of all steps of each text, as a weighted sum of measured times (`seconds_of`).

        Args:
            parts: the measured times that steps are sums of.

        Raises:
            NotMeasured: if the time of a part of a step is not known.
        """
        kinds, kind_of_step = self._kinds
        passes = [[Counter(level) for level in levels] for levels, _ in kinds]
        terms = parts.grown(passes, [size for _, size in kinds])
        return [
            (curve, np.add.reduceat(weights[kind_of_step], self.offsets[:-1]))
            for curve, weights in terms
        ]

    def speed(
        self,
        parts: StepParts,
        level: float = 0.95,
        *,
        resamples: int = RESAMPLES,
        seed: int = 0,
    ) -> Interval:
        """Emitted tokens per second with these times, with a bootstrap interval over the same texts.

        Some growths draft more on easy texts, so each text counts with the time of its own steps.

        Raises:
            NotMeasured: see `terms`.
        """
        seconds = by_file(seconds_of(self.terms(parts)), self.file_of)
        emitted = by_file(self.emitted, self.file_of)
        return ratio(emitted, seconds, level=level, resamples=resamples, seed=seed)
