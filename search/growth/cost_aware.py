"""Cost-aware growth: draft another level, and verify another node, only while that pays its time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

from treespec.search.errors import InvalidGrowth
from treespec.search.growth.settings import (
    CalibrationMap,
    require_calibration,
    require_number,
    require_whole,
)
from treespec.search.growth.step_times import Cut, StepSeconds, StepTimes, read_seconds, widest_pass
from treespec.search.growth.values import Values, best, last_level, read_values
from treespec.tree import Law, TreeShape

__all__ = ["CostAware"]

LEAST_GAIN = 1e-9
"""Relative gain below which a plan is no better than to stop."""


@dataclass(frozen=True)
class CostAware:
    """Grows as long as the expected tokens of more pay the measured time of more; ours.

    A node's value is the (calibrated) probability that it is accepted: the product along its path. To
    keep n nodes yields F = 1 + the sum of their values, in a time T: of the passes drafted so far, of
    verifying 1 + n nodes, and of what every step takes. The tree is cut where F / T, the predicted tokens
    per second, is highest.

    Before each level the same is asked of trees that are not drafted yet. What the children of a node
    would hold is estimated by what the expanded nodes' children hold, rank by rank, weighted by the nodes'
    values; one to all levels more are played through in these terms, their passes over as many nodes as
    would have children kept. If none of these plans beats stopping now, drafting stops; else the nodes of
    the last level that have children in the best plan are run. So the result may be a chain, or the root
    alone, which is plain decoding.

    EAGLE-2, OPT-Tree and SpecExec spend a fixed budget; Sequoia (arXiv:2402.12374, Section 3.4) and
    Yggdrasil (arXiv:2512.23858) weigh time, one for a static shape and the other for the number verified.

    F / T of each step by itself is not quite the best long-run speed: a second is worth what other steps
    make of it. With `rate`, F - rate T decides instead; give it the tokens per second that decoding
    reaches.

    Args:
        latency: measured times; a `treespec.search.LatencyModel`, or anything with `verify_s` and
        `draft_level_s`. size: most nodes that are kept, the root included.
        depth: edges from the root; most draft passes.
        branching: children of each node that is run.
        width: most nodes that a pass runs; by default size - 1, or as many as a `LatencyModel` measured.
        calibration: from the draft's probabilities to acceptance.
        prefix: committed tokens at which the times are read; None leaves it to `latency`.
        fixed_s: seconds of a step that `latency` does not know of.
        rate: tokens per second that a second is worth; by default what it yields in this step.
        prior: acceptance that the first level is expected to hold, before anything is drafted.

    Raises:
        InvalidGrowth: if a setting is out of range, or a time is none.
        NotMeasured: if the times do not cover the sizes.
    """

    laws: ClassVar[frozenset[Law]] = frozenset({Law.DETERMINISTIC})

    latency: StepTimes = field(repr=False)
    size: int
    depth: int
    branching: int
    width: int | None = None
    calibration: CalibrationMap | None = field(default=None, repr=False)
    prefix: int | None = None
    fixed_s: float = 0.0
    rate: float | None = None
    prior: float = 1.0

    def __post_init__(self) -> None:
        """Refuse settings out of range, and read the times."""
        for name in ("size", "depth", "branching", *(["width"] if self.width is not None else [])):
            require_whole(self, name, least=1)
        require_number(self, "fixed_s")
        require_number(self, "prior")
        if self.prior > 1:
            raise InvalidGrowth(f"prior = {self.prior!r} of CostAware, but must be in [0, 1]")
        if self.rate is not None:
            require_number(self, "rate", above=0)
        require_calibration(self)
        _ = self._seconds

    @property
    def max_depth(self) -> int:
        """Most edges of a tree."""
        return self.depth

    @cached_property
    def _width(self) -> int:
        widest = self.width or widest_pass(self.latency, self.prefix)
        return max(1, self.size - 1 if widest is None else min(widest, self.size - 1))

    @cached_property
    def _seconds(self) -> StepSeconds:
        return read_seconds(
            self.latency,
            size=self.size,
            width=self._width,
            children=self.branching,
            prefix=self.prefix,
            fixed_s=self.fixed_s,
            rate=self.rate,
        )

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The nodes of the last level that have children in the best plan, if it beats stopping."""
        levels = self.depth - shape.depth
        if shape.size == 1:
            return self._first
        if not levels:
            return ()
        values = read_values(shape, probs, self.calibration)
        level = last_level(shape)
        order = level[best(values.paths[level], self._width)]
        profile = self._profile(shape, values)
        drafted = np.sort(values.paths[1:])[::-1]
        plan = self._plan(drafted, _widths(shape), values.paths[order], profile, levels)
        if plan is None:
            return ()
        run = order[values.paths[order] * profile[0] >= plan.least]
        return [(node, self.branching) for node in np.sort(run).tolist()]

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        """The nodes that pay for their verification."""
        paths = read_values(shape, probs, self.calibration).paths
        order = best(paths, len(paths))
        drafted = self._seconds.drafted(_widths(shape))
        return order[: 1 + self._seconds.cut(paths[order[1:]], drafted).nodes].tolist()

    @cached_property
    def _first(self) -> Sequence[tuple[int, int]]:
        """Whether to draft at all: decided once, since nothing is known of any text then."""
        if self.size == 1:
            return ()
        plan = self._plan(np.zeros(0), [], np.ones(1), np.array([self.prior]), self.depth)
        return () if plan is None else ((0, self.branching),)

    def _profile(self, shape: TreeShape, values: Values) -> Float[np.ndarray, "k"]:
        """What the children of a node hold by rank, on average of the nodes expanded so far."""
        rows = values.acceptance[1:].reshape(-1, self.branching)
        weights = values.paths[np.array(shape.parents[1 :: self.branching])]
        return weights @ rows / max(weights.sum(), np.finfo(np.float64).tiny)

    def _plan(
        self,
        drafted: Float[np.ndarray, "n"],
        widths: list[int],
        level: Float[np.ndarray, "w"],
        profile: Float[np.ndarray, "k"],
        levels: int,
    ) -> Cut | None:
        """The best plan that drafts on, if it beats stopping now.

        Args:
            drafted: values of the drafted nodes, best first.
            widths: nodes run in each pass so far.
            level: values of the nodes that can be run next, best first.
            profile: see `_profile`; for the root a guess.
            levels: how many more are allowed.
        """
        seconds = self._seconds
        now = seconds.cut(drafted, seconds.drafted(widths))
        plan, enough = None, now.score + abs(now.score) * LEAST_GAIN
        pool, run = drafted, [level]
        for _ in range(levels):
            children = np.sort(np.outer(run[-1], profile).ravel())[::-1][: self.size]
            pool = np.sort(np.concatenate([pool, children]))[::-1][: self.size]
            # First as if all were run, then only those with children that this would keep.
            seconds_cut = seconds.cut(pool, seconds.drafted([*widths, *map(len, run)]))
            used = [int((nodes * profile[0] >= seconds_cut.least).sum()) for nodes in run]
            if all(used):
                tokens = 1 + float(pool[: seconds_cut.nodes].sum())
                time = seconds.drafted([*widths, *used]) + float(
                    seconds.by_size[seconds_cut.nodes + 1]
                )
                score = seconds.score(tokens, time)
                if score > enough:
                    plan, enough = Cut(seconds_cut.nodes, score, seconds_cut.least), score
            run.append(children[: self._width])
        return plan


def _widths(shape: TreeShape) -> list[int]:
    """Nodes run in each pass."""
    run = np.array(shape.depths)[list(shape.internal)]
    return np.bincount(run, minlength=shape.depth).tolist() if len(run) else []
