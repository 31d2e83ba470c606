"""Steps as sums of the times of their parts, for one batch size, one law and one prefix."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from treespec.search.latency.interpolation import Table, Term, gathered
from treespec.search.latency.tables import BatchTimes, LawTimes, further_draws, levels_of
from treespec.shape import TreeShape

__all__ = ["StepParts", "seconds_of"]

PARTS = ("draft", "verify", "accept", "commit", "rest")


@dataclass(frozen=True, eq=False)
class StepParts:
    """Steps of many shapes, each as a weighted sum of fitted times (`seconds_of` adds them up).

    Steps are kept as weights because they are linear in the fitted times: thousands of resamples of a step
    are one matrix product.

    Args:
        times: times of the batch size.
        law_times: times of the law.
        prefix: committed tokens before the root; None only if times hold for every prefix.
        together: whether children are chosen for all nodes of a level at once; see `further_draws`.
    """

    times: BatchTimes
    law_times: LawTimes
    prefix: int | None
    together: bool = False

    def tree(self, shapes: Sequence[TreeShape]) -> list[Term]:
        """Steps that draft and verify these shapes, one for each shape.

        Raises:
            NotMeasured: with the table, the requested value, its range and the way out.
        """
        return self.drafted(
            [levels_of(shape) for shape in shapes], [shape.size for shape in shapes]
        )

    def drafted(self, levels: Sequence[Sequence[Counter[int]]], sizes: Sequence[int]) -> list[Term]:
        """Steps that draft these levels and verify these numbers of nodes, also for trees that grow.

        Args:
            levels: for each step and each pass of the draft, the number of nodes that are given k children,
                by k; the first pass runs the root. Empty if nothing is drafted.
            sizes: for each step, the number of verified nodes, the root included.

        Raises:
            NotMeasured: see `tree`.
        """
        law = self.law_times
        after_first = [Counter(sum(level.values()) for level in step[1:]) for step in levels]
        terms: list[Term] = []
        if law.first is None:
            all_passes = [
                widths + Counter([1] if step else [])
                for widths, step in zip(after_first, levels, strict=True)
            ]
            terms += gathered(law.level, self.prefix, all_passes)
        else:
            first = [{1: 1.0} if step else {} for step in levels]
            terms += gathered(law.first, self.prefix, first)
            terms += gathered(law.level, self.prefix, after_first)
        draws = [further_draws(step, self.together) for step in levels]
        terms += gathered(law.draw, self.prefix, draws)
        return terms + self._sized([law.assemble, *self._target_pass()], sizes)

    def deciding(self, levels: Sequence[Sequence[Counter[int]]]) -> list[Term]:
        """The time that the growth of each of these steps takes to decide; empty if it is not known.

        A growth decides before each level where to expand, and once which nodes to keep.

        Args:
            levels: see `drafted`.

        Raises:
            NotMeasured: see `tree`.
        """
        if self.law_times.decide is None:
            return []
        counts = []
        for step in levels:
            added = (sum(k * nodes for k, nodes in level.items()) for level in step)
            counts.append(Counter(accumulate(added, initial=1)))
        return gathered(self.law_times.decide, self.prefix, counts)

    def grown(self, levels: Sequence[Sequence[Counter[int]]], sizes: Sequence[int]) -> list[Term]:
        """Steps that draft these levels and verify these numbers of nodes, with the time to decide them.

        Args:
            levels: see `drafted`; empty for a source without a draft model, for which no growth decides.
            sizes: see `drafted`.

        Raises:
            NotMeasured: see `tree`.
        """
        steps = self.drafted(levels, sizes)
        return steps + self.deciding(levels) if any(levels) else steps

    def root(self) -> list[Term]:
        """A step over the root alone, as the sum of its parts."""
        return self._sized(self._target_pass(), [1])

    def plain(self) -> list[Term]:
        """A step of plain decoding, as measured or, failing that, as the sum of its parts."""
        measured = self.law_times.plain
        return self.root() if measured is None else self._sized([measured], [1])

    def floor_s(self, sizes: Int[np.ndarray, "asked"], depth: int) -> Float[np.ndarray, "asked"]:
        """A lower bound of the seconds of a step: all levels are taken as the fastest measured one.

        Args:
            sizes: numbers of nodes, the root included, at least 2.
            depth: edges, at least 1.

        Raises:
            NotMeasured: see `tree`.
        """
        law = self.law_times
        by_size = seconds_of(self._sized([law.assemble, *self._target_pass()], sizes.tolist()))
        level = sum(share * curve.fitted.min() for curve, share in law.level.shares(self.prefix))
        first = level if law.first is None else law.first.at(1, self.prefix)
        return by_size + first + (depth - 1) * level

    def parts(self, shape: TreeShape) -> dict[str, float]:
        """Seconds by stage: draft, verify, accept, commit and the rest; see `LatencyModel.parts_s`."""
        plain = shape.size == 1
        seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        for curve, weights in self.root() if plain else self.tree([shape]):
            stage = curve.name if curve.name in seconds else "draft"
            seconds[stage] += float((weights @ curve.fitted)[0])
        if plain:
            seconds["verify"] += float(seconds_of(self.plain())[0]) - sum(seconds.values())
        return seconds

    def _target_pass(self) -> list[Table]:
        """The tables that every step takes from, whether anything is drafted or not."""
        return [self.times.verify, self.law_times.accept, self.times.commit, self.times.rest]

    def _sized(self, tables: Iterable[Table], sizes: Sequence[int]) -> list[Term]:
        """The terms of tables that depend on the number of nodes only."""
        counts = [{size: 1.0} for size in sizes]
        return [term for table in tables for term in gathered(table, self.prefix, counts)]


def seconds_of(terms: Sequence[Term]) -> Float[np.ndarray, "steps"]:
    """Seconds of each step."""
    total: Any = sum(weights @ curve.fitted for curve, weights in terms)
    return total
