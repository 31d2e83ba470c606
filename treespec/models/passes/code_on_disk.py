"""Tell from a note beside it whether the machine code of a model's compiled passes is on disk.

The compiler finds code by its source text, which is known only when most of the work is done. So a process
that has compiled a model leaves a note in the folder of the code, named by a hash of everything that the
text depends on. The note is deleted together with the code. A wrong note only makes a run say wrongly where
its code came from.
"""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from treespec.kernels import build, calls, drawn_children, masked_attention, packed_linear
from treespec.models.passes import (
    compiled_attention,
    compiled_code,
    compiled_pass,
    direct_call,
    packed_layers,
)
from treespec.models.transformers_model import TransformersModel

WRITERS = (
    compiled_attention, compiled_code, compiled_pass, direct_call, packed_layers,
    build, calls, drawn_children, masked_attention, packed_linear,
)  # fmt: skip
"""Modules on which the source text of the code depends."""


def is_on_disk(model: TransformersModel) -> bool:
    """Whether an earlier process has compiled the passes of such a model on this machine."""
    return compiled_pass.missing_for_compiling() is None and _note(model).exists()


def note_on_disk(model: TransformersModel) -> None:
    """Leave a note that the passes of this model were compiled."""
    note = _note(model)
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def _note(model: TransformersModel) -> Path:
    return compiled_pass.code_folder() / "treespec" / code_key(model)


def code_key(model: TransformersModel) -> str:
    """A hash of all that the code depends on: machine, versions, and the model without weight values."""
    inner: PreTrainedModel = model.model
    packed = compiled_pass.too_large_to_pack(inner) is None
    config = {name: str(value) for name, value in inner.config.to_dict().items()}
    dependencies: list[Any] = [
        torch.__version__,
        transformers.__version__,
        torch.get_num_threads(),
        torch.backends.cpu.get_cpu_capability(),
        os.environ.get("CXX"),
        [Path(str(module.__file__)).read_text(encoding="utf-8") for module in WRITERS],
        build.source(),
        type(model.finding.route).__name__,
        str(model.finding.layout),
        packed,
        {name: value for name, value in config.items() if not name.startswith("_")},
        [(name, type(module).__qualname__) for name, module in inner.named_modules()],
        [(name, list(p.shape), str(p.dtype)) for name, p in inner.named_parameters()],
    ]
    return hashlib.sha256(json.dumps(dependencies).encode()).hexdigest()
