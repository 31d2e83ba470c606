"""Checks of the settings of growth policies."""

from collections.abc import Callable
from math import inf
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from treespec.checks import integer, number
from treespec.search.errors import InvalidGrowth

CalibrationMap: TypeAlias = Callable[[Float[np.ndarray, "n"]], Float[np.ndarray, "n"]]
"""A map from the draft's probability of a node given its parent to the probability that it is accepted if
its parent is. Must be non-decreasing, with values in [0, 1]."""


def require_integers(policy: object, *names: str) -> None:
    """Refuse settings of these names that are not integers of at least 1.

    Raises:
        InvalidGrowth: naming the setting, its value and the policy.
    """
    for name in names:
        integer(f"{type(policy).__name__}'s {name}", getattr(policy, name), 1, InvalidGrowth)


def require_number(policy: object, name: str, *, positive: bool = False) -> None:
    """Refuse a setting that is not a finite number of at least 0, or not positive.

    Raises:
        InvalidGrowth: with the setting and its value.
    """
    value = number(f"{type(policy).__name__}'s {name}", getattr(policy, name), InvalidGrowth)
    if not 0 <= value < inf or (positive and not value):
        least = "a positive number" if positive else "a number of at least 0"
        raise InvalidGrowth(f"{type(policy).__name__}'s {name} = {value}, but must be {least}")
