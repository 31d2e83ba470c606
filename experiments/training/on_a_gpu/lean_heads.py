"""Weights of heads on their way: in bfloat16, and without matrices that are their target's."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from treespec.draft.trained.target_parts import TargetParts
from treespec.files import write_whole
from treespec.models.transformers_model import TransformersModel

Matrices = Mapping[str, Tensor]
"""Matrices of a target by the names of `matrices_of`, on the CPU."""
LACKS = "of_target."
"""How the keys begin that say, in a file of weights, which matrix of the target a tensor was."""


def matrices_of(target: TransformersModel) -> dict[str, Tensor]:
    """Embedding and head of a target."""
    parts = TargetParts.of(target)
    modules: dict[str, Any] = {"embedding": parts.embedding, "head": parts.head}
    return {name: module.weight.detach().cpu() for name, module in modules.items()}


def lean(weights: bytes, matrices: Matrices, *, pickled: bool = False) -> bytes:
    """A file of weights in bfloat16, which names matrices that are the target's instead of holding them.

    Args:
        weights: the file.
        matrices: those of the target.
        pickled: whether it is one of `torch.save`, as Medusa's is; none of these holds such matrices.
    """
    if pickled:
        tensors = torch.load(io.BytesIO(weights), map_location="cpu", weights_only=True)
        torch.save({name: short(tensor) for name, tensor in tensors.items()}, file := io.BytesIO())
        return file.getvalue()
    kept, lacking = {}, {}
    for name, tensor in load(weights).items():
        same = [key for key, own in matrices.items() if _equal(own, tensor)]
        if same:
            lacking[LACKS + name] = same[0]
        else:
            kept[name] = short(tensor)
    return save(kept, metadata={"format": "pt", **lacking})


def completed(file: Path, matrices: Matrices) -> None:
    """Put the target's matrices, as they are, back into a file of weights."""
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        about: Any = opened.metadata() or {}
    lacking = {name[len(LACKS) :]: key for name, key in about.items() if name.startswith(LACKS)}
    if not lacking:
        return
    tensors = load(file.read_bytes())
    tensors |= {name: matrices[key] for name, key in lacking.items()}
    write_whole(file, save(tensors, metadata={"format": "pt"}))


def short(tensor: Tensor) -> Tensor:
    """A weight in bfloat16; other tensors as they are."""
    return tensor.bfloat16() if tensor.dtype == torch.float32 else tensor


def _equal(own: Tensor, tensor: Tensor) -> bool:
    return own.shape == tensor.shape and torch.equal(own.to(tensor.dtype), tensor)
