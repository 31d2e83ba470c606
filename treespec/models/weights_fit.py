"""Whether the weights of a model fit on a device, found out before they are read."""

import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from treespec.errors import LoadError
from treespec.models.memory import free_bytes
from treespec.models.reading import Files

BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16}
"""Bits of a number, by its name in safetensors; others take 8."""

NF4 = "bitsandbytes-nf4"
"""The quantisation whose matrices take 4 bits a number; those of the others take 8."""


def require_room(
    name: str,
    dtype: torch.dtype | str | None,
    device: torch.device,
    quantised: str | None,
    left_out: Collection[str] = (),
) -> None:
    """Refuse weights that take more memory than is free on a device; nothing where sizes are not known.

    They are known from the headers of safetensors files on this machine. Not counted: scales of quantised
    weights, buffers that are computed (rotary tables), caches, activations, copies made while weights are
    converted or merged, and a layer of the model that a pattern of `left_out` names as the further layer of
    a model of another size. Counted though not loaded: a tied matrix that was stored twice, and what only a
    part of the model leaves out, or the model by its configuration.

    Args:
        name: a folder or hub id.
        dtype: dtype of the loaded weights, by name or not; None for the one that each is stored in.
        device: where all of them are to be.
        quantised: how matrices are quantised, as in `load_pair`.
        left_out: patterns of the names of tensors that the model leaves out on loading, such as layers that
            predict further tokens: `_keys_to_ignore_on_load_unexpected` of its class.

    Raises:
        LoadError: with the number of GiB that are missing.
    """
    wide = None if dtype is None else getattr(torch, dtype) if isinstance(dtype, str) else dtype
    narrow = None if quantised is None else 4 if quantised == NF4 else 8
    bits = 0
    for shape, stored in _tensors(Files(name).shards(), left_out):
        is_float = stored in ("F64", "F32", "F16", "BF16")
        each = BITS.get(stored, 8) if wide is None or not is_float else 8 * wide.itemsize
        bits += math.prod(shape) * (narrow if narrow and len(shape) > 1 else each)
    needed, free = bits / 8, float(free_bytes(device))
    if needed > free:
        stated = "as they are stored" if wide is None else f"in {str(wide).removeprefix('torch.')}"
        raise LoadError(
            f"the weights of {name!r} take {_gib(needed)} GiB {quantised or stated}, but {device} has "
            f"{_gib(free)} GiB free: {_gib(needed - free)} GiB are missing; choose a smaller dtype "
            "(bfloat16), quantise them (quantised='int8-weight-only'), or spread the target over all GPUs "
            "(device_map='auto')"
        )


def _tensors(files: list[Path], left_out: Collection[str]) -> Iterator[tuple[list[int], str]]:
    """Shape and dtype of each tensor that is loaded from safetensors files, from their headers."""
    for file in files:
        with safe_open(file, "pt") as weights:
            for key in weights.keys():  # noqa: SIM118  (no mapping)
                if any(re.search(pattern, key) for pattern in left_out):
                    continue
                stored = weights.get_slice(key)
                yield stored.get_shape(), stored.get_dtype()


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f}"
