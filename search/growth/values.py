"""The values of a growing tree's nodes: their probabilities of acceptance, as estimated by the draft.

Values are products along paths, multiplied from the root down in float64. With factors of at most 1, no
node is ever worth more than its parent, even after rounding. So the best nodes, with ties in the order of
creation, always form a tree. (Sums of logarithms in another order lack this property, and saturate.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from treespec.search.errors import InvalidGrowth
from treespec.tree import Law, TreeShape

CalibrationMap: TypeAlias = Callable[[Float[np.ndarray, "n"]], Float[np.ndarray, "n"]]
"""A map from the draft's probability of a node given its parent to the probability that it is accepted if
its parent is. Must be non-decreasing, with values in [0, 1]."""

ROUNDING = 1e-6
"""Relative excess over 1/j that the probability of the j-th best token may have: rows are in float32."""


@dataclass(frozen=True, eq=False)
class Values:
    """The nodes of a tree, in the order of creation.

    Args:
        probs: the draft's probability of each node given its parent; 1 for the root.
        acceptance: the calibrated probabilities.
        paths: product of the acceptance along the path to each node.
    """

    probs: Float[np.ndarray, "N"]
    acceptance: Float[np.ndarray, "N"]
    paths: Float[np.ndarray, "N"]


class Chosen:
    """A growth whose children are the most probable tokens, down to its `depth`."""

    laws: ClassVar[frozenset[Law]] = frozenset({Law.DETERMINISTIC})

    @property
    def max_depth(self) -> int:
        """Maximum number of edges of a tree, and of draft passes."""
        settings: Any = self
        return settings.depth


class BestOfAll(Chosen):
    """A growth that keeps the `size` nodes with the largest path products of all that it drafted."""

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        """The nodes with the largest path products."""
        settings: Any = self
        if shape.size <= settings.size:
            return range(shape.size)
        return best(read_values(shape, probs, settings.calibration).paths, settings.size).tolist()


def read_values(
    shape: TreeShape,
    probs: Callable[[], Float[Tensor, "N"]],
    calibration: CalibrationMap | None = None,
) -> Values:
    """Read the values of all nodes, with one transfer from the device.

    Args:
        shape: the tree so far.
        probs: see `treespec.protocols.Growth.next`.
        calibration: None uses the draft's probabilities unchanged.

    Raises:
        InvalidGrowth: if the calibration does not return one number in [0, 1] for each probability.
    """
    if shape.size == 1:
        return Values(np.ones(1), np.ones(1), np.ones(1))
    draft = np.minimum(probs().detach().double().cpu().numpy(), 1.0)
    acceptance = draft
    if calibration is not None:
        acceptance = np.append(1.0, calibrated(calibration, draft[1:]))
    paths = [1.0]
    for parent, rate in zip(shape.parents[1:], acceptance[1:].tolist(), strict=True):
        paths.append(paths[parent] * rate)
    return Values(draft, acceptance, np.array(paths))


def calibrated(
    calibration: CalibrationMap, probs: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "n"]:
    """Apply a calibration to probabilities, and check its output."""
    mapped = np.asarray(calibration(probs), dtype=np.float64)
    if mapped.shape != probs.shape:
        raise InvalidGrowth(
            f"the calibration gives {list(mapped.shape)} numbers for {list(probs.shape)} probabilities, "
            "but must give one for each"
        )
    invalid = np.flatnonzero(~((mapped >= 0) & (mapped <= 1)))
    if len(invalid):
        raise InvalidGrowth(
            f"the calibration gives {mapped[invalid[0]]:g} for the probability {probs[invalid[0]]:g}, but "
            "an acceptance must be in [0, 1]"
        )
    return mapped


def best(values: Float[np.ndarray, "N"], count: int) -> Int[np.ndarray, "n"]:
    """The indices of the `count` largest values, best first, with ties in order."""
    return np.argsort(-values, kind="stable")[:count]


def rank_bounds(branching: int, calibration: CalibrationMap | None) -> Float[np.ndarray, "k"]:
    """Upper bounds of the j-th best child's value relative to its parent's, for j = 1 .. branching.

    The probability of that child is at most 1/j, whatever the distribution.
    """
    bounds = np.minimum((1 + ROUNDING) / np.arange(1, branching + 1), 1.0)
    return bounds if calibration is None else calibrated(calibration, bounds)


def promising(
    shape: TreeShape,
    paths: Float[np.ndarray, "N"],
    wanted: int,
    bounds: Float[np.ndarray, "k"],
) -> list[tuple[int, int]]:
    """The nodes of the last level with children that could be among the `wanted` best nodes, and how many.

    The best nodes do not include the root. All other children and their descendants are worth no more than
    the worst node that would be kept now, which was created earlier, so leaving them out changes nothing.
    """
    return worth_more(shape, paths, least_of_best(paths[1:], wanted), bounds)


def least_of_best(values: Float[np.ndarray, "N"], count: int) -> float:
    """The smallest of the `count` largest values; 0 if there are fewer."""
    return float(np.partition(values, -count)[-count]) if len(values) >= count > 0 else 0.0


def worth_more(
    shape: TreeShape,
    paths: Float[np.ndarray, "N"],
    least: float,
    bounds: Float[np.ndarray, "k"],
) -> list[tuple[int, int]]:
    """The nodes of the last level with children that could be worth more than `least`, and how many."""
    level = last_level(shape)
    counts = (paths[level, None] * bounds > least).sum(axis=1)
    return [(node, k) for node, k in zip(level.tolist(), counts.tolist(), strict=True) if k]


def last_level(shape: TreeShape) -> Int[np.ndarray, "L"]:
    """The nodes of the largest depth."""
    return np.flatnonzero(np.array(shape.depths) == shape.depth)
