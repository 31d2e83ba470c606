"""The time of a step as a growth needs it: by verified nodes and drafted levels."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from treespec.search.errors import InvalidGrowth
from treespec.search.latency.latency import LatencyModel
from treespec.tree import Law


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
    times: LatencyModel,
    *,
    size: int,
    width: int,
    children: int,
    prefix: int | None,
    rate: float | None = None,
) -> StepSeconds:
    """Read all times that a policy can need.

    These are the times of deterministic children, including accepting, committing and the loop itself.
    """
    parts = times.at(prefix, Law.DETERMINISTIC.value)
    # The minimum time of assembling is charged for drafting at all, the rest to the nodes kept.
    least = parts.assemble.at(1, parts.prefix)
    whole = parts.by_size_s(range(1, size + 1)) - least
    if not whole.min() > 0:
        raise InvalidGrowth(
            f"a tree of {1 + int(whole.argmin())} nodes takes no time to verify, so its speed is "
            "infinite: give the times of whole passes"
        )
    levels, draws = [0.0], [0.0]
    for w in range(1, width + 1):
        draws.append((children - 1) * parts.draw.at(w, parts.prefix) if children > 1 else 0.0)
        levels.append(parts.level.at(w, parts.prefix) + draws[w])
    root = (parts.first or parts.level).at(1, parts.prefix) + least + draws[1]
    return StepSeconds(np.array([0.0, *whole]), np.array(levels), root, rate)


def widest_pass(times: LatencyModel, prefix: int | None) -> int | None:
    """The largest number of nodes for which a draft pass was measured; None if there is no bound."""
    parts = times.at(prefix, Law.DETERMINISTIC.value)
    widths = [table.largest(parts.prefix) for table in (parts.level, parts.draw)]
    return min((width for width in widths if width is not None), default=None)
