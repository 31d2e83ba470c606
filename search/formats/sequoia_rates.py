"""Sequoia's acceptance vectors: one tensor in a file of torch.save.

Facts (Infini-AI-Lab/Sequoia, `tests/test_accept.py`): float `[W + 2]`; entry 0 is 0, entry k the share of
steps that accept child k (counted from 1), and the last one the share of rejections, which `tree_search.py`
cuts off. Entries 1 to W are the rates that `optimal_tree` takes.
"""

import io
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from treespec.search.errors import InvalidAcceptance
from treespec.search.formats.reading import MAX_NODES, MalformedTree, shown
from treespec.search.formats.sequoia import unpickled
from treespec.search.traces.acceptance import TOLERANCE, Acceptance, read_rates

LAYOUT = "entry 0 is 0, then the rate of each child, and the last is the share of rejections"


def load_rates(data: bytes | Tensor) -> Float[np.ndarray, "ranks"]:
    """The rates by rank in an acceptance vector: the bytes of its file, or the tensor.

    Raises:
        InvalidAcceptance: if it is anything but a tensor of this layout; no pickle is ever run.
    """
    try:
        vector: Any = data if isinstance(data, Tensor) else unpickled(bytes(data), "such a vector")
    except MalformedTree as error:
        raise InvalidAcceptance(f"not an acceptance vector of Sequoia: {error}") from None
    plain = isinstance(vector, Tensor) and vector.layout is torch.strided and vector.ndim == 1
    if not plain or not vector.is_floating_point() or not 3 <= len(vector) <= MAX_NODES:
        raise InvalidAcceptance(
            f"{shown(vector)} is not one row of 3 to {MAX_NODES} floats, as Sequoia's vectors are: {LAYOUT}"
        )
    first, total = float(vector[0]), float(vector.double().sum())
    if first != 0 or not abs(total - 1) <= TOLERANCE:
        raise InvalidAcceptance(
            f"the vector begins with {first:.6g} and sums to {total:.6g}, but must sum to 1: {LAYOUT}"
        )
    return read_rates(vector[1:-1]).table[0]


def dump_rates(acceptance: Acceptance) -> bytes:
    """The file of the acceptance vector with these rates by rank, for `tree_search.py`.

    Raises:
        InvalidAcceptance: if the rates are invalid, or depend on the depth, for which it has no place.
    """
    rates = read_rates(acceptance)
    if rates.by_depth:
        raise InvalidAcceptance(
            "Sequoia's vector has one rate for each child, whatever its depth: estimate rates by rank "
            "(`treespec estimate --by rank`)"
        )
    vector, file = [0.0, *rates.table[0], max(0.0, 1.0 - rates.table.sum())], io.BytesIO()
    torch.save(torch.tensor(vector, dtype=torch.float32), file)
    return file.getvalue()
