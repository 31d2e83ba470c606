"""Cost-aware growth: draft another level, or verify another node, only while the gain is worth the time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from treespec import plugins
from treespec.search.growth.keys import (
    MEASURED,
    CalibrationFile,
    GrowthSettings,
    Levels,
    Name,
    Nodes,
    Prefix,
    Verified,
)
from treespec.search.growth.specexec import SpecExecGrowth
from treespec.search.growth.step_times import Cut, StepSeconds, read_seconds, widest_pass
from treespec.search.growth.values import (
    CalibrationMap,
    Chosen,
    Values,
    best,
    last_level,
    read_values,
)
from treespec.search.latency.latency import LatencyModel
from treespec.tree import TreeShape

LEAST_GAIN = 1e-9
"""Relative gain below which a plan is considered no better than stopping."""


@dataclass(frozen=True)
class CostAware(Chosen):
    """Growth that continues while the expected tokens of more nodes are worth their measured time; ours.

    A node's value is the (calibrated) probability that it is accepted: the product along its path. Keeping
    n nodes yields F = 1 + the sum of their values in a time T, which consists of the passes drafted so far,
    of verifying 1 + n nodes, and of the fixed parts of a step. The tree is cut where F / T, the predicted
    tokens per second, is highest.

    Before each level, plans with one to all of the remaining levels are evaluated in the same way. The
    acceptance of children that are not drafted yet is estimated from that of the expanded nodes' children,
    by rank, weighted by the nodes' values; a planned pass runs the nodes whose children would be kept. If
    no plan beats stopping now, drafting stops; otherwise the nodes of the last level that have children in
    the best plan are run. So the result may be a chain, or the root alone, which is plain decoding.

    EAGLE-2, OPT-Tree and SpecExec spend a fixed budget; Sequoia (arXiv:2402.12374, Section 3.4) and
    Yggdrasil (arXiv:2512.23858) account for time, the former for a static shape, the latter for the number
    of verified nodes.

    Maximising F / T in each step separately does not quite maximise the long-run speed, since the value of
    a second is what other steps yield in it. With `rate`, F - rate T is maximised instead; set it to the
    tokens per second that decoding reaches.

    Args:
        latency: measured times.
        size: maximum number of nodes that are kept, the root included.
        depth: maximum number of edges from the root, and of draft passes.
        branching: children of each node that is run.
        width: maximum number of nodes that a pass runs; by default size - 1, or the widest pass that was
            measured.
        calibration: map from the draft's probabilities to acceptance.
        prefix: committed tokens at which the times are read; None leaves it to `latency`.
        rate: tokens per second that a second is worth; by default what it yields in this step.
        prior: expected acceptance of the first level, before anything is drafted.

    Raises:
        InvalidGrowth: if a step takes no time.
        NotMeasured: if the times do not cover the sizes.
    """

    latency: LatencyModel = field(repr=False)
    size: int
    depth: int
    branching: int
    width: int | None = None
    calibration: CalibrationMap | None = field(default=None, repr=False)
    prefix: int | None = None
    rate: float | None = None
    prior: float = 1.0

    def __post_init__(self) -> None:
        """Read the times, which may not cover the sizes."""
        _ = self._seconds

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
            rate=self.rate,
        )

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The nodes of the last level that have children in the best plan; none if stopping is better."""
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
        """The nodes that are worth verifying."""
        paths = read_values(shape, probs, self.calibration).paths
        order = best(paths, len(paths))
        drafted = self._seconds.drafted(_widths(shape))
        return order[: 1 + self._seconds.cut(paths[order[1:]], drafted).nodes].tolist()

    @cached_property
    def _first(self) -> Sequence[tuple[int, int]]:
        """Whether to draft at all; decided once, since nothing is known about a text at its root."""
        if self.size == 1:
            return ()
        plan = self._plan(np.zeros(0), [], np.ones(1), np.array([self.prior]), self.depth)
        return () if plan is None else ((0, self.branching),)

    def _profile(self, shape: TreeShape, values: Values) -> Float[np.ndarray, "k"]:
        """Mean acceptance of children by rank, over the nodes expanded so far, weighted by their values."""
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
        """The best plan that continues drafting; None if stopping now is better.

        Args:
            drafted: values of the drafted nodes, best first.
            widths: number of nodes run in each pass so far.
            level: values of the nodes that can be run next, best first.
            profile: see `_profile`; a guess for the root.
            levels: number of further levels that are allowed.
        """
        seconds = self._seconds
        stop = seconds.cut(drafted, seconds.drafted(widths))
        plan, best_score = None, stop.score + abs(stop.score) * LEAST_GAIN
        pool, run = drafted, [level]
        for _ in range(levels):
            children = np.sort(np.outer(run[-1], profile).ravel())[::-1][: self.size]
            pool = np.sort(np.concatenate([pool, children]))[::-1][: self.size]
            # Cut as if all nodes were run, then run only nodes with children that this cut keeps.
            cut = seconds.cut(pool, seconds.drafted([*widths, *map(len, run)]))
            used = [int((nodes * profile[0] >= cut.least).sum()) for nodes in run]
            if all(used):
                tokens = 1 + float(pool[: cut.nodes].sum())
                time = seconds.drafted([*widths, *used]) + float(seconds.by_size[cut.nodes + 1])
                score = seconds.score(tokens, time)
                if score > best_score:
                    plan, best_score = Cut(cut.nodes, score, cut.least), score
            run.append(children[: self._width])
        return plan


def _widths(shape: TreeShape) -> list[int]:
    """Number of nodes run in each pass."""
    run = np.array(shape.depths)[list(shape.internal)]
    return np.bincount(run, minlength=shape.depth).tolist() if len(run) else []


class CostAwareGrowth(GrowthSettings):
    """Grow and prune the tree as long as the expected tokens are worth the measured time."""

    example = "{kind: cost_aware, size: 32, branching: 4, depth: 6}"
    named = "cost-aware {size}"
    widest = "branching"

    kind: Literal["cost_aware"]
    size: Verified
    branching: Nodes
    """Maximum children per node."""
    depth: Levels
    width: Nodes | None = None
    """Maximum nodes per level that get children; null for as many as times were measured for."""
    latency: Name = MEASURED
    """A file of times (`treespec profile`), or `measured`."""
    prefix: Prefix = None
    prior: Annotated[float, Field(ge=0, le=1)] | None = None
    """Acceptance expected before anything is drafted, which decides whether to draft at all; null for the
    rate of the first child if times are measured, else 1, with which it always drafts."""
    rate: Annotated[float, Field(gt=0)] | None = None
    """Value of a second, in tokens; null for the tokens that a second yields in the same step."""
    calibration: CalibrationFile = None

    def unmeasured(self) -> GrowthSettings:
        """A growth of the same laws and rules that needs no times."""
        return SpecExecGrowth(
            kind="specexec", size=self.size, branching=self.branching, depth=self.depth
        )


plugins.growth("cost_aware", settings=CostAwareGrowth)(CostAware)
