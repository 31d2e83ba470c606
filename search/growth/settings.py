"""Checks of the settings of growth policies."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from treespec.door import integer, shown
from treespec.search.arguments import NUMBER
from treespec.search.errors import InvalidGrowth

__all__ = ["CalibrationMap", "require_calibration", "require_integers", "require_number"]

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


def require_number(policy: object, name: str, above: float | None = None) -> None:
    """Refuse a setting that is not a finite number of at least 0, or not more than `above`.

    Raises:
        InvalidGrowth: with the setting and its value.
    """
    value = getattr(policy, name)
    if not NUMBER.holds(value):
        raise InvalidGrowth(f"{_where(policy, name, value)} is not a finite number")
    if value < 0 or (above is not None and value <= above):
        least = "at least 0" if above is None else f"more than {above:g}"
        raise InvalidGrowth(f"{_where(policy, name, value)}, but must be {least}")


def require_calibration(policy: object) -> None:
    """Refuse a calibration that cannot be called.

    Raises:
        InvalidGrowth: if it is neither None nor a function.
    """
    calibration: Any = getattr(policy, "calibration", None)
    if calibration is not None and not callable(calibration):
        raise InvalidGrowth(
            f"{_where(policy, 'calibration', calibration)}, but must be a function from probabilities to "
            "acceptance, or None"
        )


def _where(policy: object, name: str, value: Any) -> str:
    return f"{type(policy).__name__}'s {name} = {shown(value)}"
