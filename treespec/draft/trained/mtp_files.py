"""Read modules for multi-token prediction, beside the target whose files they stand in or on their own."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from treespec.draft.trained.architecture import Architecture
from treespec.draft.trained.checkpoint import Checkpoint, read_checkpoint
from treespec.draft.trained.contract import Contract
from treespec.draft.trained.head_model import HeadModel, probed
from treespec.draft.trained.head_net import HeadNet
from treespec.draft.trained.llama_parts import (
    OneFeature,
    SideBySide,
    embedding,
    linear,
    taken_linear,
)
from treespec.draft.trained.target_parts import TargetParts, require_width
from treespec.draft.trained.writing import write_head
from treespec.errors import InvalidArgument, LoadError
from treespec.features import Features
from treespec.models.transformers_model import TransformersModel

OF_A_MODULE = re.compile(r"(?:model\.(?:language_model\.)?)?(?:mtp|mtp_layers|layers\.(\d+))\.")
"""How names begin in a target's files that may be those of a module."""

OF_NETWORK = {
    "model.layers.0.": "",
    "model.combine.embedding_norm.": "token_layernorm.",
    "model.combine.state_norm.": "hidden_layernorm.",
    "model.combine.project.": "input_proj.",
    "model.norm.": "final_layernorm.",
}
"""Beginnings of the network's names, and those of speculators behind `mtp_layers.0.`."""
PROJECT = "mtp_layers.0.input_proj.weight"
SPECULATORS_VERSION = "0.9.0"
"""The version of speculators whose layout is written."""


@dataclass(frozen=True)
class Layout:
    """Names of a module's tensors.

    Args:
        module: what they begin with.
        block: what those of the decoder layer begin with, behind it.
        embedding_norm: norm of the embedding.
        state_norm: norm of the state.
        project: maps both, side by side, to the layer's input.
        norm: norm of the layer's output.
        state_first: whether the state comes before the embedding.
    """

    module: str
    block: str
    embedding_norm: str
    state_norm: str
    project: str
    norm: str
    state_first: bool = False


def layouts(layers: int) -> tuple[Layout, ...]:
    """The known layouts, for a target of so many layers."""
    deepseek = ("", "enorm", "hnorm", "eh_proj", "shared_head.norm")
    mimo = ("", "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
    qwen = ("layers.0.", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
    return (
        Layout(f"model.layers.{layers}.", *deepseek),
        Layout(f"model.language_model.layers.{layers}.", *deepseek),
        Layout("mtp.", *qwen),
        Layout("model.mtp_layers.0.", *mimo, state_first=True),
        Layout("mtp_layers.0.", *mimo),
    )


def load_mtp(
    source: str | None,
    target: object,
    *,
    state: Literal["post", "pre"] = "post",
    state_first: bool | None = None,
    zero_first: bool = False,
) -> HeadModel:
    """Read the module of a DeepSeek-V3, GLM-4.5, Qwen3-Next, MiMo or speculators checkpoint.

    Only the module's tensors are read of the target's files.

    Args:
        source: the folder or hub id of the checkpoint; None for the one that the target was read from.
        target: the model that it was trained for.
        state: which state it reads, of the target and of its own: after the final norm, as vLLM and
            DeepSeek's code do, or before it. No file says which, and both are in use.
        state_first: whether it reads the state before the embedding; None for what its layout does.
        zero_first: whether the embedding of the first pair is zero, as vLLM and SGLang have it for DeepSeek
            and MiMo.

    Raises:
        InvalidArgument: if `state` is neither of them.
        LoadError: if it cannot be read, or is not such a module for this target.
        UnsupportedModel: if the target has no embedding and head to share, or transformers does not know
            the architecture.
    """
    if state not in ("post", "pre"):
        raise InvalidArgument(f"state = {state!r}, but must be 'post' or 'pre' (the final norm)")
    parts = TargetParts.of(target)
    checkpoint = read_checkpoint(_place(target) if source is None else source, only=_of_module)
    layout = _layout(checkpoint)
    architecture = Architecture.of(checkpoint, parts.config)
    require_width(checkpoint.name, architecture.config.hidden_size, parts)
    first = layout.state_first if state_first is None else state_first
    net, owned = _net(
        checkpoint, layout, architecture, parts, state=state, first=first, zero=zero_first
    )
    contract = Contract(
        family="mtp",
        reads=Features(final="post") if state == "post" else Features((parts.layers,)),
        order=("state", "embedding") if first else ("embedding", "state"),
        gain=architecture.gain,
        recycled="after the norm" if state == "post" else "before the norm",
        head="own" if "head" in owned else "target's",
        embedding="own" if "embedding" in owned else "target's",
        notes=(
            *(("the first embedding is zero",) if zero_first else ()),
            *(() if "head" in owned else parts.missing),
        ),
    )
    return probed(checkpoint.name, net, contract)


def save_mtp(head: HeadModel, folder: Path) -> None:
    """Write a module on its own, in the layout of speculators, which `load_mtp` reads.

    The layout has the embedding before the state: columns of the projection of other modules change places.
    Embedding and head are the target's. As no file does, it does not say on which side of the final norm
    the states are, and whether the first embedding is zero: give `load_mtp` the same arguments again.

    Raises:
        InvalidArgument: if the folder holds something already, or the module has an embedding or a head
            that is not its target's.
    """
    contract, net = head.contract, head.net
    own = [name for name in ("embedding", "head") if getattr(contract, name) == "own"]
    if own:
        raise InvalidArgument(
            f"a module with its own {' and '.join(own)} cannot be written: the layout of speculators takes "
            "those of the target"
        )
    tensors = {
        f"mtp_layers.0.{theirs}{name.removeprefix(ours)}": tensor
        for name, tensor in net.state_dict().items()
        for ours, theirs in OF_NETWORK.items()
        if name.startswith(ours)
    }
    if contract.order[0] == "state":
        states, embeddings = tensors[PROJECT].chunk(2, dim=1)
        tensors[PROJECT] = torch.cat([embeddings, states], dim=1)
    method = {"proposal_type": "greedy", "speculative_tokens": 3}
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "speculators_version": SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "transformer_layer_config": net.published,
        "num_nextn_predict_layers": 1,
    }
    write_head(folder, config, tensors)


def conventions() -> dict[str, dict[str, Any]]:
    """What no file states: the side of the final norm, and the order; by label, arguments of `load_mtp`."""
    return {
        f"states {'after' if state == 'post' else 'before'} the final norm; [{', '.join(order)}]": {
            "state": state,
            "state_first": order[0] == "state",
        }
        for state in ("post", "pre")
        for order in (("embedding", "state"), ("state", "embedding"))
    }


def _net(
    checkpoint: Checkpoint,
    layout: Layout,
    architecture: Architecture,
    parts: TargetParts,
    *,
    state: str,
    first: bool,
    zero: bool,
) -> tuple[HeadNet, set[str]]:
    """The network, and what it does not borrow of the target."""
    at, h = layout.module, parts.width

    def norm(name: str) -> nn.Module:
        return architecture.norm(parts.moved(checkpoint.take(f"{at}{name}.weight", (h,))))

    layer = architecture.layer(checkpoint, at + layout.block, parts)
    own = {
        name: None if tensor is None or _equal(tensor, of_target.weight) else tensor
        for name, tensor, of_target in (
            (
                "embedding",
                checkpoint.maybe(f"{at}embed_tokens.weight", (parts.vocab_size, h)),
                parts.embedding,
            ),
            (
                "head",
                checkpoint.maybe(f"{at}shared_head.head.weight", (parts.logits, h)),
                parts.head,
            ),
        )
    }
    net: Any = HeadNet(
        architecture.config,
        embedding=parts.embedding
        if own["embedding"] is None
        else embedding(own["embedding"], parts),
        fuse=OneFeature(),
        combine=SideBySide(
            norm(layout.embedding_norm),
            norm(layout.state_norm),
            taken_linear(checkpoint, at + layout.project, (h, 2 * h), parts),
            state_first=first,
        ),
        layers=[layer],
        norm=norm(layout.norm),
        head=parts.head if own["head"] is None else linear(own["head"], None, parts),
        recycles=Features(final="post") if state == "post" else Features((1,)),
        width=h,
        vocab_size=parts.logits,
        rotary=architecture.rotary(parts),
        zero_first=zero,
        published=architecture.published,
    )
    checkpoint.require_all_taken()
    return net, {name for name, tensor in own.items() if tensor is not None}


def _equal(copy: Float[Tensor, "v H"], of_target: Any) -> bool:
    """Whether a module's matrix is a copy of the target's."""
    own = of_target[: len(copy)].detach()
    return own.shape == copy.shape and torch.equal(copy.to(own.device, own.dtype), own)


def _place(target: object) -> str:
    """Where the target was read from."""
    assert isinstance(target, TransformersModel)
    name = target.model.config.name_or_path
    if not name or target.gguf is not None:
        why = "was read from a GGUF file" if target.gguf else "was not read from files"
        raise LoadError(
            f"the target {why}: give the folder of the checkpoint that holds its MTP module"
        )
    return name


def _of_module(config: dict[str, Any]) -> Callable[[str], bool]:
    """Which tensors of a checkpoint with this config.json may be those of modules."""
    if "speculators_model_type" in config:
        return lambda name: True
    layers = _layer_count(config)

    def wanted(name: str) -> bool:
        found = OF_A_MODULE.match(name)
        past_the_target = found is not None and int(found[1] or layers) >= layers
        return past_the_target and not name.endswith("rotary_emb.inv_freq")

    return wanted


def _layer_count(config: dict[str, Any]) -> int:
    inner = config.get("transformer_layer_config") or config.get("text_config") or config
    count = inner.get("num_hidden_layers") if isinstance(inner, dict) else None
    if type(count) is not int:
        raise LoadError(
            f"num_hidden_layers = {count} in config.json, but must be the number of layers of the target"
        )
    return count


def _layout(checkpoint: Checkpoint) -> Layout:
    known = layouts(_layer_count(checkpoint.config))
    found = next((x for x in known if checkpoint.has(f"{x.module}{x.project}.weight")), None)
    if found is None:
        names = ", ".join(f"{layout.module}{layout.project}.weight" for layout in known)
        raise LoadError(
            f"{checkpoint.name!r} holds no module for multi-token prediction: none of the tensors {names}"
        )
    scaled = [name for name in checkpoint.names if name.endswith("_scale_inv")]
    if scaled:
        raise LoadError(
            f"the module in {checkpoint.name!r} is quantised to FP8 ({scaled[0]}): give a checkpoint in "
            "bfloat16"
        )
    return found
