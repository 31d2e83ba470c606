"""The autoregressive heads that tests run: how each is written, read and computed in a straight line."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from heads import eagle, eagle3, files
from tiny_models import build
from torch import Tensor

from treespec.draft.trained.eagle import Eagle
from treespec.draft.trained.eagle3 import Eagle3
from treespec.draft.trained.eagle3_files import load_eagle3
from treespec.draft.trained.eagle_files import load_eagle
from treespec.draft.trained.head_drafter import HeadDrafter
from treespec.draft.trained.head_model import HeadModel
from treespec.models.transformers_model import TransformersModel

__all__ = ["FORMATS", "Format", "head_of", "target"]


@dataclass(frozen=True)
class Format:
    """One way in which a head is published.

    Args:
        family: module of `heads` that writes and computes it.
        load: reads it.
        drafter: drafts with it.
        options: of the checkpoint.
    """

    family: Any
    load: Callable[..., HeadModel]
    drafter: type[HeadDrafter]
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        self.family.checkpoint(folder, **self.options)
        return folder

    def rows(
        self,
        folder: Path,
        model: TransformersModel,
        tokens: list[int],
        states: Tensor,
        drafted: list[int],
    ) -> Tensor:
        """Logits in a straight line, in float64; -inf for tokens that the head lacks."""
        tensors, config = files.read(folder)
        net: Any = model.model
        embedding = net.get_input_embeddings().weight.double()
        head = net.get_output_embeddings().weight.double()
        return self.family.rows(tensors, config, tokens, states, drafted, embedding, head)


def _eagle(**options: Any) -> Format:
    return Format(eagle, load_eagle, Eagle, options)


def _eagle3(**options: Any) -> Format:
    return Format(eagle3, load_eagle3, Eagle3, {"layer_ids": (2, 1, 3), **options})


FORMATS = {
    "eagle": _eagle(),
    "eagle, no bias": _eagle(bias=False),
    "eagle, norms": _eagle(layernorms=True),
    "eagle, target's embedding": _eagle(embedding=False),
    "eagle, speculators": _eagle(layout="speculators"),
    "eagle, speculators, norms": _eagle(layout="speculators", layernorms=True, bias=False),
    "eagle3": _eagle3(),
    "eagle3, whole vocabulary": _eagle3(small=False, flags=("norm_before_residual",)),
    "eagle3, specforge": _eagle3(layout="specforge", embedding=True, flags=("norm_output",)),
    "eagle3, nvidia": _eagle3(layout="nvidia", flags=("norm_before_fc",)),
    "eagle3, no aux": _eagle3(layout="nvidia", aux=False, count=1),
    "eagle3, vllm": _eagle3(layout="vllm", flags=("fc_norm",)),
    "eagle3, speculators": _eagle3(layout="speculators", flags=("norm_before_residual",)),
    "eagle3, two layers": _eagle3(layers=2, flags=("norm_output",)),
    "eagle3, qwen3": _eagle3(layout="speculators", qwen3=True),
}


@cache
def target(architecture: str = "llama", dtype: torch.dtype = torch.float32) -> TransformersModel:
    """A target of four layers, as a shared object: drafters use fresh caches."""
    return TransformersModel(build(architecture, num_hidden_layers=4).to(dtype))


def head_of(name: str, folder: Path, model: TransformersModel | None = None) -> HeadModel:
    """A random head, read from the files of its format."""
    form = FORMATS[name]
    return form.load(str(form.write(folder)), model or target())
