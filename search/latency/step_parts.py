"""What a step is the sum of: the times of its parts, for one batch size, one law and one prefix."""

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

    Steps are kept as weights until the end because they are linear in the fitted times: thousands of
    resamples of a step are one matrix product.

    Args:
        times: of the batch size.
        law_times: of the law.
        prefix: committed tokens before the root; None only where times hold behind all.
        together: whether children are chosen for all nodes of a level at once; see `further_draws`.
    """

    times: BatchTimes
    law_times: LawTimes
    prefix: int | None
    together: bool = False

    def tree(self, shapes: Sequence[TreeShape]) -> list[Term]:
        """Steps that draft and verify these shapes, one after the other.

        Raises:
            NotMeasured: naming the table, what was asked of it, its range and the way out.
        """
        return self.drafted(
            [levels_of(shape) for shape in shapes], [shape.size for shape in shapes]
        )

    def drafted(self, levels: Sequence[Sequence[Counter[int]]], sizes: Sequence[int]) -> list[Term]:
        """Steps that draft these levels and verify so many nodes, as those of trees that grow do.

        Args:
            levels: of each step, for each pass of the draft, how many nodes are given k children, by k;
                the first pass runs the root. None where nothing is drafted.
            sizes: of each step, nodes that are verified, the root included.

        Raises:
            NotMeasured: see `tree`.
        """
        law = self.law_times
        narrow = [Counter(sum(level.values()) for level in one[1:]) for one in levels]
        terms: list[Term] = []
        if law.first is None:
            whole = [
                more + Counter([1] if one else []) for more, one in zip(narrow, levels, strict=True)
            ]
            terms += gathered(law.level, self.prefix, whole)
        else:
            firsts = [{1: 1.0} if one else {} for one in levels]
            terms += gathered(law.first, self.prefix, firsts)
            terms += gathered(law.level, self.prefix, narrow)
        draws = [further_draws(one, self.together) for one in levels]
        terms += gathered(law.draw, self.prefix, draws)
        return terms + self._sized([law.assemble, *self._pass()], sizes)

    def deciding(self, levels: Sequence[Sequence[Counter[int]]]) -> list[Term]:
        """What the growth of each of these steps takes to decide; nothing where that is not known.

        It decides before each level where to go on, and once what is kept.

        Args:
            levels: see `drafted`.

        Raises:
            NotMeasured: see `tree`.
        """
        if self.law_times.decide is None:
            return []
        counts = []
        for one in levels:
            more = (sum(k * nodes for k, nodes in level.items()) for level in one)
            counts.append(Counter(accumulate(more, initial=1)))
        return gathered(self.law_times.decide, self.prefix, counts)

    def grown(self, levels: Sequence[Sequence[Counter[int]]], sizes: Sequence[int]) -> list[Term]:
        """Steps that draft these levels and verify so many nodes, and what deciding them takes.

        Args:
            levels: see `drafted`; a source without a draft model has none, and no growth decides.
            sizes: see `drafted`.

        Raises:
            NotMeasured: see `tree`.
        """
        steps = self.drafted(levels, sizes)
        return steps + self.deciding(levels) if any(levels) else steps

    def root(self) -> list[Term]:
        """A step over the root alone, as the sum of its parts."""
        return self._sized(self._pass(), [1])

    def plain(self) -> list[Term]:
        """A step of plain decoding: as it was measured, or else as the sum of its parts."""
        measured = self.law_times.plain
        return self.root() if measured is None else self._sized([measured], [1])

    def floor_s(self, sizes: Int[np.ndarray, "asked"], depth: int) -> Float[np.ndarray, "asked"]:
        """Seconds below which no step of a tree of this depth comes: as if all levels were the quickest.

        Args:
            sizes: nodes, the root included, at least 2.
            depth: edges, at least 1.

        Raises:
            NotMeasured: see `tree`.
        """
        law = self.law_times
        below = seconds_of(self._sized([law.assemble, *self._pass()], sizes.tolist()))
        level = sum(share * curve.fitted.min() for curve, share in law.level.shares(self.prefix))
        first = level if law.first is None else law.first.at(1, self.prefix)
        return below + first + (depth - 1) * level

    def parts(self, shape: TreeShape) -> dict[str, float]:
        """Seconds by stage: draft, verify, accept, commit and the rest; see `LatencyModel.parts_s`."""
        alone = shape.size == 1
        seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        for curve, weights in self.root() if alone else self.tree([shape]):
            stage = curve.name if curve.name in seconds else "draft"
            seconds[stage] += float((weights @ curve.fitted)[0])
        if alone:
            seconds["verify"] += float(seconds_of(self.plain())[0]) - sum(seconds.values())
        return seconds

    def _pass(self) -> list[Table]:
        """What every step takes, drafted or not."""
        return [self.times.verify, self.law_times.accept, self.times.commit, self.times.rest]

    def _sized(self, tables: Iterable[Table], sizes: Sequence[int]) -> list[Term]:
        """The times of tables that depend on the number of nodes alone."""
        counts = [{size: 1.0} for size in sizes]
        return [term for table in tables for term in gathered(table, self.prefix, counts)]


def seconds_of(terms: Sequence[Term]) -> Float[np.ndarray, "steps"]:
    """Seconds of each step."""
    total: Any = sum(weights @ curve.fitted for curve, weights in terms)
    return total
