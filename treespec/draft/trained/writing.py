"""Write heads in their authors' layouts, so that serving engines can load what was trained here."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from treespec.errors import InvalidArgument
from treespec.files import write_whole
from treespec.models.reading import WEIGHTS

SETTINGS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_parameters",
    "attention_bias",
    "mlp_bias",
    "max_position_embeddings",
    "num_hidden_layers",
)
"""What config.json says of the layers."""


def layer_settings(config: Any) -> dict[str, Any]:
    """What config.json says of a head's layers; rotary positions also stand where older readers look."""
    data = {key: getattr(config, key) for key in SETTINGS if getattr(config, key, None) is not None}
    rope = dict(data.get("rope_parameters") or {})
    if (theta := rope.pop("rope_theta", None)) is not None:
        data["rope_theta"] = theta
    if rope.get("rope_type", "default") != "default":
        data["rope_scaling"] = rope
    return data


def require_empty(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        InvalidArgument: if it does, or is a file.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InvalidArgument(f"{str(folder)!r} exists and is not empty: name a new folder")


def write_head(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], file: str = WEIGHTS
) -> None:
    """Write config.json and weights into a new or empty folder.

    `file`: name of the weights: safetensors, or a pickle of tensors for readers that know nothing else.

    Raises:
        InvalidArgument: if something is there already.
    """
    require_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if file.endswith(".safetensors"):
        write_whole(folder / file, save(stored, metadata={"format": "pt"}))
    else:
        write_whole(folder / file, lambda opened: torch.save(stored, opened))
    write_whole(folder / "config.json", json.dumps(config, indent=1) + "\n")
