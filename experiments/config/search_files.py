"""Read the files that searches start from: estimates and calibrations as JSON, or traces."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from treespec.errors import TreespecError, Unreadable
from treespec.experiments.errors import ConfigError
from treespec.files import read_bytes, read_text
from treespec.search import (
    AcceptanceEstimate,
    Calibration,
    InvalidTrace,
    SmallSample,
    Trace,
    calibration_data,
    estimate_acceptance,
    fit_calibration,
    formats,
)
from treespec.search.traces.replay import require_given_trees

_T = TypeVar("_T")


VECTOR = ".pt"
"""Suffix of Sequoia's acceptance vectors."""


def read_acceptance(path: Path) -> AcceptanceEstimate | np.ndarray:
    """Acceptance rates from a file: an estimate as JSON, a trace, or Sequoia's vector."""
    if path.suffix == VECTOR:
        return _named(path, formats.load_rates, read_bytes)
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


def read_calibration(path: Path) -> Calibration:
    """A calibration map from a file, or the one fitted to a trace."""
    if path.suffix == ".npz":
        data = calibration_data(Trace.load(path))
        return fit_calibration(data.predicted, data.exact)
    return _named(path, Calibration.from_json)


def _named(path: Path, read: Callable[[Any], _T], contents: Callable = read_text) -> _T:
    """Parse the contents of a file with `read`; errors name the file."""
    try:
        return read(contents(path))
    except Unreadable as error:
        raise ConfigError(str(error)) from None
    except TreespecError as error:
        raise ConfigError(f"{path}: {error}") from None
