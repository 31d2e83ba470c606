"""Acceptance rates as input, by rank or by depth and rank, with their checks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from jaxtyping import Float
from torch import Tensor

from treespec.checks import shown
from treespec.search.errors import InvalidAcceptance

TOLERANCE = 1e-3
"""How far above 1 the rates of siblings may sum: published tables are rounded to four digits."""


class ArrayLike(Protocol):
    """An object that numpy can read as an array, such as an `AcceptanceEstimate`."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The numbers as an array."""
        ...


Acceptance: TypeAlias = (
    ArrayLike
    | Sequence[float]
    | Sequence[Sequence[float]]
    | Float[np.ndarray, "ranks"]
    | Float[np.ndarray, "levels ranks"]
    | Tensor
)
"""Rates by rank (one vector for all depths), by depth and rank (a matrix: row d belongs to the children of
nodes at depth d). Column 0 is the first child's."""


@dataclass(frozen=True, eq=False)
class Rates:
    """Checked rates by rank, or by depth and rank.

    Args:
        table: float64 `[levels, ranks]`; one row if the rates are the same at every depth.
        by_depth: whether the rates depend on the depth; then no tree may be deeper than the table.
    """

    table: Float[np.ndarray, "levels ranks"] = field(repr=False)
    by_depth: bool

    @property
    def levels(self) -> int | None:
        """The largest depth with known rates; None if rates hold at every depth."""
        return len(self.table) if self.by_depth else None

    @property
    def ranks(self) -> int:
        """The largest number of children of a node with known rates."""
        return self.table.shape[1]


def read_rates(acceptance: Acceptance) -> Rates:
    """Check rates by rank or by depth and rank.

    Raises:
        InvalidAcceptance: if the rates are empty, ragged, not numbers, NaN, outside [0, 1], or sum to more
            than 1 among siblings, of which at most one is accepted.
    """
    array = _numbers("acceptance", acceptance)
    if array.ndim not in (1, 2):
        raise InvalidAcceptance(
            f"acceptance has {array.ndim} dimensions, but must be a vector (a rate for each child rank) "
            "or a matrix (a row for each depth)"
        )
    _check_range("acceptance", array)
    table = np.atleast_2d(array)
    for row, total in enumerate(table.sum(axis=1)):
        if total > 1 + TOLERANCE:
            name = "acceptance" if array.ndim == 1 else f"acceptance[{row}]"
            raise InvalidAcceptance(
                f"{name} sums to {total:.6g}, but at most one child of a node is accepted, so the rates of "
                "its children sum to at most 1: rate k is the share of steps in which child k is the "
                "accepted one, not the share of those that reach it"
            )
    return Rates(table, by_depth=array.ndim == 2)


def _numbers(name: str, values: Any) -> np.ndarray:
    """A read-only copy of the values as a non-empty float64 array."""
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu().double().numpy()
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError) as error:
        raise InvalidAcceptance(
            f"{name} must hold numbers, in rows of equal length, not {shown(values)}"
        ) from error
    if array.size == 0:
        raise InvalidAcceptance(f"{name} is empty: give at least the first child's rate")
    array.flags.writeable = False
    return array


def _check_range(name: str, array: np.ndarray) -> None:
    """Refuse NaN and other values that are not probabilities; the message has the index."""
    invalid = np.argwhere(~((array >= 0) & (array <= 1)))
    if len(invalid):
        index = tuple(map(int, invalid[0]))
        where = "".join(f"[{i}]" for i in index)
        raise InvalidAcceptance(
            f"{name}{where} = {array[index]:g}, but an acceptance rate is a probability in [0, 1]: "
            "leave out ranks and depths that were never measured"
        )
