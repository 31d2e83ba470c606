"""The steps of a growth on a recorded trace: what they accept, and what they take."""

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
from treespec.search.rates.replay import by_file

__all__ = ["GrowthReplay", "Levels"]

Levels: TypeAlias = tuple[tuple[int, ...], ...]
"""The passes of one step: how many children each of the nodes was given that the pass ran."""


@dataclass(frozen=True, eq=False)
class GrowthReplay:
    """The steps of one growth on one trace.

    Args:
        accepted: accepted draft tokens of every step, text after text.
        kept: tokens of every step that the text keeps: accepted + 1, but in a last, cut step.
        sizes: verified nodes of every step, the root included.
        sure: whether the step is proved to be what a live run does (`treespec.search.rates.growth_replay`).
        offsets: `[texts + 1]`; steps of text i are `offsets[i]` up to, not including, `offsets[i + 1]`.
        file_of: `[texts]`, the place of the file that each text is an excerpt of (`Trace.file_of`).
        max_depth: most edges that a tree of the growth can have.
        levels: of every step, for each pass of the draft, how many children each node was given that ran.
    """

    accepted: Int[np.ndarray, "steps"]
    kept: Int[np.ndarray, "steps"]
    sizes: Int[np.ndarray, "steps"]
    sure: Bool[np.ndarray, "steps"]
    offsets: Int[np.ndarray, "texts_1"]
    file_of: Int[np.ndarray, "texts"]
    max_depth: int
    levels: Sequence[Levels]

    @cached_property
    def steps(self) -> Int[np.ndarray, "texts"]:
        """Steps of each text."""
        return np.diff(self.offsets)

    @cached_property
    def emitted(self) -> Int[np.ndarray, "texts"]:
        """Emitted tokens of each text, those past its end included."""
        return np.add.reduceat(self.accepted + 1, self.offsets[:-1])

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per step, pooled over steps (block efficiency, tau)."""
        return float(self.emitted.sum() / len(self.accepted))

    @property
    def kept_per_step(self) -> float:
        """Kept tokens per step, pooled over steps: what tables that compare methods show."""
        return float(self.kept.sum() / len(self.kept))

    @property
    def nodes_per_step(self) -> float:
        """Verified nodes per step, the root included."""
        return float(self.sizes.mean())

    @property
    def accepted_by_depth(self) -> Float[np.ndarray, "depth"]:
        """The share of steps that accept a node at depth 1, 2, ..., `max_depth`."""
        counts = np.bincount(self.accepted, minlength=self.max_depth + 1)
        return counts[::-1].cumsum()[::-1][1:] / len(self.accepted)

    def interval(
        self, level: float = 0.95, *, resamples: int = RESAMPLES, seed: int = 0
    ) -> Interval:
        """Tokens per step with an interval from texts drawn with replacement, as `Replay.interval`."""
        over, under = (by_file(each, self.file_of) for each in (self.emitted, self.steps))
        return ratio(over, under, level=level, resamples=resamples, seed=seed)

    @cached_property
    def _kinds(self) -> tuple[list[tuple[Levels, int]], Int[np.ndarray, "steps"]]:
        """Passes and nodes of steps, each kind once, and the kind of each step."""
        places: dict[tuple[Levels, int], int] = {}
        steps = zip(self.levels, self.sizes.tolist(), strict=True)
        kinds = np.array([places.setdefault(step, len(places)) for step in steps])
        return list(places), kinds

    def terms(self, parts: StepParts) -> list[Term]:
        """The time of all steps of each text, as a weighted sum of measured times (`seconds_of`).

        Args:
            parts: what steps are sums of.

        Raises:
            NotMeasured: if a step has a part that was not.
        """
        kinds, of_step = self._kinds
        passes = [[Counter(level) for level in levels] for levels, _ in kinds]
        terms = parts.grown(passes, [size for _, size in kinds])
        return [
            (curve, np.add.reduceat(weights[of_step], self.offsets[:-1]))
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
        """Emitted tokens per second of these parts' times, with an interval from the same texts.

        Some growths draft more on easy texts, so that each text counts with the time of its own steps.

        Raises:
            NotMeasured: see `terms`.
        """
        seconds = seconds_of(self.terms(parts))
        over, under = (by_file(each, self.file_of) for each in (self.emitted, seconds))
        return ratio(over, under, level=level, resamples=resamples, seed=seed)
