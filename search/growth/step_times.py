"""The time of a step as a growth needs it: by verified nodes and drafted levels."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from treespec.search.errors import InvalidGrowth
from treespec.search.latency.latency import LatencyModel
from treespec.tree import Law


@runtime_checkable
class StepTimes(Protocol):
    """Measured times; a `treespec.search.LatencyModel` is one."""

    def verify_s(self, size: int, prefix: int | None = None) -> float:
        """Seconds of the target's pass over a tree of `size` nodes, the root included."""
        ...

    def draft_level_s(self, width: int, prefix: int | None = None) -> float:
        """Seconds of a draft pass over `width` nodes."""
        ...


@dataclass(frozen=True)
class Cut:
    """The number of nodes to keep of a ranked list.

    Args:
        nodes: number of kept nodes, without the root.
        score: resulting score of the step: tokens per second, or tokens gained over `rate`.
        least: value of the last kept node; infinite if none is kept.
    """

    nodes: int
    score: float
    least: float


@dataclass(frozen=True, eq=False)
class StepSeconds:
    """Seconds of the parts of a step, read once.

    Args:
        by_size: `[size + 1]`, all parts that depend on the number of verified nodes, and the fixed parts of
            a step; 0 nodes take no time.
        level: `[width + 1]`, a draft pass by the nodes that it runs.
        first: the pass over the root alone.
        rate: tokens per second that a second is worth elsewhere; None for what it yields in this step.
    """

    by_size: Float[np.ndarray, "sizes"]
    level: Float[np.ndarray, "widths"]
    first: float
    rate: float | None

    def drafted(self, widths: list[int]) -> float:
        """Seconds of draft passes over levels of these widths, the root's first."""
        later = sum(float(self.level[width]) for width in widths[1:])
        return (self.first if widths else 0.0) + later

    def score(self, tokens: float, seconds: float) -> float:
        """The score of a step that yields these tokens in this time."""
        return tokens / seconds if self.rate is None else tokens - self.rate * seconds

    def cut(self, ranked: Float[np.ndarray, "n"], drafted: float) -> Cut:
        """The best number of nodes to keep, the smallest one among ties."""
        ranked = ranked[: len(self.by_size) - 2]
        tokens = 1 + np.concatenate([[0.0], np.cumsum(ranked)])
        seconds = self.by_size[1 : len(tokens) + 1] + drafted
        scores = tokens / seconds if self.rate is None else tokens - self.rate * seconds
        nodes = int(scores.argmax())
        return Cut(nodes, float(scores[nodes]), float(ranked[nodes - 1]) if nodes else float("inf"))


def read_seconds(
    times: StepTimes,
    *,
    size: int,
    width: int,
    children: int,
    prefix: int | None,
    fixed_s: float,
    rate: float | None,
) -> StepSeconds:
    """Read all times that a policy can need.

    From a `LatencyModel` these are the times of deterministic children, including accepting, committing and
    the loop itself.
    """
    sizes, widths = range(1, size + 1), range(1, width + 1)
    if isinstance(times, LatencyModel):
        prefix = times.prefix_at(prefix)
    by_size = np.array([0.0, *(times.verify_s(n, prefix) for n in sizes)])
    if isinstance(times, LatencyModel):
        law = Law.DETERMINISTIC.value
        law_times = times.law_times(law)
        for table in (law_times.accept, law_times.commit, law_times.rest):
            by_size[1:] += [table.at(n, prefix) for n in sizes]
        # The minimum time of assembling is charged for drafting at all, the rest to the nodes kept.
        least = law_times.assemble.at(1, prefix)
        by_size[1:] += [law_times.assemble.at(n, prefix) - least for n in sizes]
        draws = [
            (children - 1) * law_times.draw.at(w, prefix) if children > 1 else 0.0 for w in widths
        ]
        passes = [
            times.draft_level_s(w, prefix, law=law) + draw
            for w, draw in zip(widths, draws, strict=True)
        ]
        first = law_times.level if law_times.first is None else law_times.first
        root = first.at(1, prefix) + least + draws[0]
        level = np.array([0.0, *passes])
    else:
        level = np.array([0.0, *(times.draft_level_s(w, prefix) for w in widths)])
        root = float(level[1])
    by_size[1:] += fixed_s
    for name, seconds in (("verify_s", by_size), ("draft_level_s", level)):
        invalid = np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0)))
        if len(invalid):
            n = invalid[0]
            raise InvalidGrowth(
                f"{name}({n}) = {seconds[n]!r}, but must be seconds: finite, and at least 0"
            )
    if not by_size[1:].min() > 0:
        raise InvalidGrowth(
            f"a tree of {1 + int(by_size[1:].argmin())} nodes takes no time to verify, so its speed is "
            "infinite: give the times of whole passes, or fixed_s"
        )
    return StepSeconds(by_size, level, root, rate)


def widest_pass(times: StepTimes, prefix: int | None) -> int | None:
    """The largest number of nodes for which a draft pass was measured; None if there is no bound."""
    if not isinstance(times, LatencyModel):
        return None
    law_times, prefix = times.law_times(Law.DETERMINISTIC.value), times.prefix_at(prefix)
    widths = [
        width
        for table in (law_times.level, law_times.draw)
        if (width := table.largest(prefix)) is not None
    ]
    return min(widths, default=None)
