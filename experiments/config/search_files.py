"""Read the files that searches start from: estimates and calibrations as JSON, or traces."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from treespec.errors import TreespecError, Unreadable
from treespec.experiments.errors import ConfigError
from treespec.reading import read_text

if TYPE_CHECKING:
    from treespec.search import AcceptanceEstimate, Calibration

__all__ = ["read_acceptance", "read_calibration"]

_T = TypeVar("_T")


def read_acceptance(path: Path) -> "AcceptanceEstimate":
    """Acceptance rates by depth from a file: an estimate as JSON, or a trace.

    Raises:
        ConfigError, InvalidTrace: if it is neither, or of a source that does not draft given trees.
    """
    from treespec.search import (
        AcceptanceEstimate,
        InvalidTrace,
        SmallSample,
        Trace,
        estimate_acceptance,
    )
    from treespec.search.rates.replay import require_given_trees

    if path.suffix == ".npz":
        trace = Trace.load(path)
        try:
            require_given_trees(trace)
        except InvalidTrace as error:
            raise InvalidTrace(f"{path}: {error}") from None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSample)  # the estimate keeps the warnings
            return estimate_acceptance(trace, by="depth")
    return _named(path, AcceptanceEstimate.from_json)


def read_calibration(path: Path) -> "Calibration":
    """A calibration map from a file, or the one fitted to a trace.

    Raises:
        ConfigError, InvalidTrace: if the file holds neither.
    """
    from treespec.search import Calibration, Trace, calibration_data, fit_calibration

    if path.suffix == ".npz":
        data = calibration_data(Trace.load(path))
        return fit_calibration(data.predicted, data.exact)
    return _named(path, Calibration.from_json)


def _named(path: Path, read: Callable[[str], _T]) -> _T:
    """Parse a JSON file with `read`; errors name the file."""
    try:
        return read(read_text(path))
    except Unreadable as error:
        raise ConfigError(str(error)) from None
    except TreespecError as error:
        raise ConfigError(f"{path}: {error}") from None
