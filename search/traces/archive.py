"""Read the archives of plain arrays (.npz) that traces are stored in."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from treespec import files
from treespec.errors import Unreadable
from treespec.search.errors import InvalidTrace


def read_arrays(path: Path, known: Sequence[Mapping[str, str]]) -> dict[str, np.ndarray]:
    """Read the arrays of a trace's file, by name.

    Args:
        path: path of the file.
        known: sets of arrays that a file may consist of: the type of each, by name. Messages name the
            first set.

    Raises:
        InvalidTrace: if the file is missing, damaged, or not an archive of one of these sets.
    """
    try:
        arrays = files.read_arrays(path)
    except Unreadable as error:
        raise InvalidTrace(str(error)) from None
    kinds = next((kinds for kinds in known if kinds.keys() == arrays.keys()), None)
    if kinds is None:
        raise InvalidTrace(
            f"{path} is not a trace: it holds {', '.join(arrays)[:200] or 'nothing'} instead of "
            f"{', '.join(known[0])}"
        )
    for name, kind in kinds.items():
        if arrays[name].dtype != np.dtype(kind):
            raise InvalidTrace(f"{path}: {name} holds {arrays[name].dtype} instead of {kind}")
    return arrays
