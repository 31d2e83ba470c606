"""Steps as sums of the times of their parts, for one batch size and one law."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from treespec.search.errors import InvalidLatency
from treespec.search.latency.interpolation import Curve, Table, Term, gathered
from treespec.tree.shape import TreeShape

ANY_LAW = "any"
"""Name of times that hold for every law."""

NO_TIME = Table("no time", {None: Curve("no time", "size", {None: (0.0,)})})
"""What omitted tables count as."""


@dataclass(frozen=True, eq=False, kw_only=True)
class StepParts:
    """The tables of one law and batch size, and steps of any shape as weighted sums of fitted times.

    In a batch a step is a round: times are of all its texts, and sizes are of each.

    Steps are kept as weights (`seconds_of` adds them up) because they are linear in the fitted times:
    thousands of resamples of a step are one matrix product.

    Args:
        verify: the target's pass, by nodes (of each text).
        commit: keeping the accepted rows in the cache, by nodes.
        rest: the time of a step outside of its stages.
        level: a draft pass after the first, by the number of nodes that it gives one child each.
        draw: drawing one more child for each node, by the number of nodes.
        assemble: the rest of drafting, by nodes.
        accept: the acceptance rule, by nodes.
        first: the first draft pass, which gives the root one child; None if it equals `level` of one node.
            It finds the processor's caches filled by the target, and sometimes also runs a pending token.
        plain: a step of plain decoding under the same settings; None if it is the sum of its parts.
        decide: one decision of a tree that grows, on where to expand or what to keep, by the nodes drafted
            so far; None if it is not known.
        sampling: the sampling settings of the measurement.
        rule: the acceptance rule.
        together: whether children are chosen for all nodes of a level at once; see `further_draws`.
        prefix: committed tokens before the root; None only if times hold for every prefix.
    """

    verify: Table
    commit: Table = NO_TIME
    rest: Table = NO_TIME
    level: Table
    draw: Table = NO_TIME
    assemble: Table = NO_TIME
    accept: Table = NO_TIME
    first: Table | None = None
    plain: Table | None = None
    decide: Table | None = None
    sampling: str | None = None
    rule: str | None = None
    together: bool = False
    prefix: int | None = None

    @property
    def tables(self) -> list[Table]:
        values = (getattr(self, field.name) for field in fields(self))
        return [value for value in values if isinstance(value, Table)]

    @property
    def largest(self) -> int | None:
        """The largest tree for which all parts of a step are known; None if there is no bound."""
        tables = (self.assemble, *self._target_pass())
        sizes = [size for table in tables if (size := table.largest(self.prefix)) is not None]
        return min(sizes, default=None)

    @property
    def widest(self) -> int | None:
        """The most nodes that a measured draft pass gives a child each; None if there is no bound."""
        return self.level.largest(self.prefix)

    def step_s(self, shape: TreeShape) -> float:
        """Seconds of a step of this shape."""
        return float(seconds_of(self.step(shape))[0])

    def step(self, shape: TreeShape) -> list[Term]:
        """A step that drafts and verifies this shape; the root alone is a step of plain decoding."""
        return self.plain_step() if shape.size == 1 else self.tree([shape])

    def tree(self, shapes: Sequence[TreeShape]) -> list[Term]:
        """Steps that draft and verify these shapes, one for each shape."""
        return self.drafted(
            [levels_of(shape) for shape in shapes], [shape.size for shape in shapes]
        )

    def drafted(self, levels: Sequence[Sequence[Counter[int]]], sizes: Sequence[int]) -> list[Term]:
        """Steps that draft these levels and verify these numbers of nodes, also for trees that grow.

        Args:
            levels: for each step and each pass of the draft, the number of nodes that are given k children,
                by k; the first pass runs the root. Empty if nothing is drafted.
            sizes: for each step, the number of verified nodes, the root included.
        """
        after_first = [Counter(sum(level.values()) for level in step[1:]) for step in levels]
        first = [Counter([1] if step else []) for step in levels]
        if self.first is None:
            passes = [later + root for later, root in zip(after_first, first, strict=True)]
            terms = gathered(self.level, self.prefix, passes)
        else:
            terms = gathered(self.first, self.prefix, first)
            terms += gathered(self.level, self.prefix, after_first)
        draws = [further_draws(step, self.together) for step in levels]
        terms += gathered(self.draw, self.prefix, draws)
        return terms + self._sized([self.assemble, *self._target_pass()], sizes)

    def grown(self, levels: Sequence[Sequence[Counter[int]]], sizes: Sequence[int]) -> list[Term]:
        """`drafted`, with the time that a growth takes to decide, if it is known.

        A growth decides before each level where to expand, and once which nodes to keep; nothing is decided
        for a source without a draft model, whose levels are empty.
        """
        steps = self.drafted(levels, sizes)
        if self.decide is None or not any(levels):
            return steps
        counts = []
        for step in levels:
            added = (sum(k * nodes for k, nodes in level.items()) for level in step)
            counts.append(Counter(accumulate(added, initial=1)))
        return steps + gathered(self.decide, self.prefix, counts)

    def plain_step(self) -> list[Term]:
        """A step of plain decoding, as measured or, failing that, as the sum of its parts."""
        return self._sized([self.plain] if self.plain else self._target_pass(), [1])

    def by_size_s(self, sizes: Sequence[int]) -> Float[np.ndarray, "asked"]:
        """Seconds of all parts that depend on the number of verified nodes, and of the fixed ones."""
        return seconds_of(self._sized([self.assemble, *self._target_pass()], sizes))

    def floor_s(self, sizes: Int[np.ndarray, "asked"], depth: int) -> Float[np.ndarray, "asked"]:
        """A lower bound of the seconds of a step: all levels are taken as the fastest measured one."""
        level = sum(share * curve.fitted.min() for curve, share in self.level.shares(self.prefix))
        first = level if self.first is None else self.first.at(1, self.prefix)
        return self.by_size_s(sizes.tolist()) + first + (depth - 1) * level

    def _target_pass(self) -> list[Table]:
        """The tables that every step takes from, whether anything is drafted or not."""
        return [self.verify, self.accept, self.commit, self.rest]

    def _sized(self, tables: Iterable[Table], sizes: Sequence[int]) -> list[Term]:
        """The terms of tables that depend on the number of nodes only."""
        counts = [{size: 1.0} for size in sizes]
        return [term for table in tables for term in gathered(table, self.prefix, counts)]


def seconds_of(terms: Sequence[Term]) -> Float[np.ndarray, "steps"]:
    total: Any = sum(weights @ curve.fitted for curve, weights in terms)
    return total


def require_time(law: str, seconds: float, size: int) -> None:
    """Refuse a step that takes no time."""
    if not seconds > 0:
        raise InvalidLatency(
            f"law {law!r}: a step of {size} nodes takes no time, so its speed is infinite: "
            "give the times of whole passes"
        )


def levels_of(shape: TreeShape) -> list[Counter[int]]:
    """For each level with children, the number of nodes that have k children, by k."""
    levels: list[Counter[int]] = [Counter() for _ in range(shape.depth)]
    for node in shape.internal:
        levels[shape.depths[node]][len(shape.children[node])] += 1
    return levels


def further_draws(levels: Sequence[Counter[int]], together: bool = False) -> dict[int, float]:
    """The draws beyond the first of every expanded node, by the number of nodes that a draw is for.

    The time of a level's pass includes one draw over all of its nodes. All numbers are positive, so that no
    step takes less time than if every node had one child.

    Args:
        levels: see `levels_of`.
        together: whether one choice gives all nodes of a level their children, as for deterministic ones:
            then draw j is for the nodes with more than j children. Otherwise the nodes with k children draw
            as a group, k times in a row; a group after the first also draws once more, which is counted as
            for one node, because the pass over the level has drawn for all nodes.
    """
    draws: Counter[int] = Counter()
    for level in levels:
        if together:
            for elder in range(1, max(level)):
                draws[sum(nodes for k, nodes in level.items() if k > elder)] += 1
            continue
        for k, nodes in level.items():
            draws[nodes] += k - 1
        draws[1] += len(level) - 1
    return {nodes: float(number) for nodes, number in draws.items() if number}
