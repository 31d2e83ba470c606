"""The autoregressive heads that tests run: how each is written, read and computed in a straight line."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from heads import eagle, eagle3, files, mtp, mtp_target
from marginal_heads import fitted, states_of
from tiny_models import build
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from treespec.draft.trained.contract import Contract
from treespec.draft.trained.eagle import Eagle
from treespec.draft.trained.eagle3 import Eagle3
from treespec.draft.trained.eagle3_files import load_eagle3, save_eagle3
from treespec.draft.trained.eagle_files import load_eagle, save_eagle
from treespec.draft.trained.head_drafter import HeadDrafter
from treespec.draft.trained.head_model import HeadModel
from treespec.draft.trained.head_net import HeadNet
from treespec.draft.trained.llama_parts import JoinedFeatures, SideBySide
from treespec.draft.trained.mtp import Mtp
from treespec.draft.trained.mtp_files import load_mtp, save_mtp
from treespec.draft.trained.target_parts import TargetParts
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel


@dataclass(frozen=True)
class Format:
    """One way in which a head is published.

    Args:
        family: module of `heads` that writes and computes it.
        load: reads it.
        drafter: drafts with it.
        save: writes it in its authors' layout.
        options: of the checkpoint.
        conventions: arguments of `rows` that are arguments of `load` too.
        architecture: of its target.
    """

    family: Any
    load: Callable[..., HeadModel]
    drafter: type[HeadDrafter]
    save: Callable[..., None]
    options: dict[str, Any] = field(default_factory=dict)
    conventions: dict[str, Any] = field(default_factory=dict)
    architecture: str = "llama"

    def write(self, folder: Path) -> Path:
        if self.architecture in mtp_target.FAMILIES:
            mtp_target.save(folder, self.architecture)
        else:
            self.family.checkpoint(folder, **self.options)
        return folder

    def read(self, folder: Path, model: TransformersModel) -> HeadModel:
        renamed = {"recycled": "state"}
        options = {renamed.get(key, key): value for key, value in self.conventions.items()}
        return self.load(str(folder), model, **options)

    def target(self, dtype: torch.dtype = torch.float32) -> TransformersModel:
        return target(self.architecture, dtype)

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
        text = (tensors, config, tokens, states, drafted, embedding, head)
        return self.family.rows(*text, **self.conventions)


def _eagle(**options: Any) -> Format:
    return Format(eagle, load_eagle, Eagle, save_eagle, {"steady": True, **options})


def _eagle3(**options: Any) -> Format:
    return Format(eagle3, load_eagle3, Eagle3, save_eagle3, {"layer_ids": (2, 1, 3), **options})


def _mtp(layout: str, **conventions: Any) -> Format:
    """On a target of its own architecture, or, beside no target, on one of llama."""
    of_target = layout in mtp_target.FAMILIES
    options = {} if of_target else {"layout": layout, "target_layers": 4}
    return Format(
        mtp, load_mtp, Mtp, save_mtp, options, conventions, layout if of_target else "llama"
    )


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
    "mtp, deepseek": _mtp("deepseek"),
    "mtp, deepseek, as vLLM": _mtp("deepseek", zero_first=True),
    "mtp, deepseek, pre": _mtp("deepseek", recycled="pre"),
    "mtp, glm": _mtp("glm"),
    "mtp, qwen3_next": _mtp("qwen3_next"),
    "mtp, mimo": _mtp("mimo"),
    "mtp, mimo, pre": _mtp("mimo", recycled="pre", zero_first=True),
    "mtp, speculators": _mtp("speculators"),
}


@cache
def target(architecture: str = "llama", dtype: torch.dtype = torch.float32) -> TransformersModel:
    """A target of four layers (of an MTP module: two), as a shared object: drafters use fresh caches."""
    if architecture not in mtp_target.FAMILIES:
        return TransformersModel(build(architecture, num_hidden_layers=4).to(dtype))
    with TemporaryDirectory() as folder:
        mtp_target.save(Path(folder), architecture)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, experts_implementation="eager"
        ).eval()
    model._is_stateful = False  # all layers of this Qwen3-Next attend
    return TransformersModel(model)


def head_of(name: str, folder: Path, model: TransformersModel | None = None) -> HeadModel:
    """A random head, read from the files of its format."""
    form = FORMATS[name]
    return form.read(form.write(folder), model or form.target())


@torch.no_grad()
def fitted_head(model: TransformersModel, ids: list[int], reads: Features) -> HeadModel:
    """A head for any target: a random layer, and a matrix that fits a text: drafts are sometimes right."""
    parts, width = TargetParts.of(model), 32
    config = LlamaConfig(
        vocab_size=1, hidden_size=width, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=512,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        embedding = nn.Embedding(parts.vocab_size, width)
        fuse = nn.Linear(len(reads.states) * parts.width, width, bias=False)
        combine, layer = nn.Linear(2 * width, width, bias=False), LlamaDecoderLayer(config, 0)

    def made(head: nn.Module, words: int) -> HeadModel:
        net: Any = HeadNet(
            config, embedding=embedding, fuse=JoinedFeatures([], nn.Identity(), fuse),
            combine=SideBySide(nn.Identity(), nn.Identity(), combine), layers=[layer], norm=nn.Identity(),
            head=head, recycles=Features((1,)), width=width, vocab_size=words,
        )  # fmt: skip
        return HeadModel(net.to(parts.dtype), Contract("eagle3", reads))

    blank = made(nn.Identity(), width)
    states = blank.fused(states_of(model, reads, ids[:-1]))
    blank.give(states, anew=True)
    blank.prefill(torch.tensor(ids[:1]))
    outputs = blank.run(torch.tensor(ids[1:-1]), tuple(range(-1, len(ids) - 3))).logits
    return made(fitted(outputs, ids[2:], model.vocab_size), model.vocab_size)
