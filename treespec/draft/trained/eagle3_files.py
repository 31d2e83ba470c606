"""Read heads of EAGLE-3 and 3.1 in the layouts in which they are published."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, no_type_check

import torch
from torch import Tensor, nn

from treespec.draft.trained.checkpoint import Checkpoint, read_checkpoint
from treespec.draft.trained.contract import Contract
from treespec.draft.trained.head_model import HeadModel, probed
from treespec.draft.trained.head_net import HeadNet
from treespec.draft.trained.llama_parts import (
    JoinedFeatures,
    OneFeature,
    decoder_layer,
    embedding,
    layer_config,
    linear,
    rms_norm,
    rotary,
)
from treespec.draft.trained.target_parts import TargetParts, require_boundaries, require_width
from treespec.draft.trained.vocabulary import (
    OF_TARGET,
    ROWS,
    kept_tokens,
    shared_rows,
    tables_of,
    without_rows,
)
from treespec.draft.trained.writing import layer_settings, write_head
from treespec.errors import InvalidArgument, LoadError
from treespec.features import Features

OF_NETWORK = {
    "model.layers.0.": "midlayer.",
    "model.": "",
    "fuse.project.": "fc.",
    "fuse.norms.": "fc_norm.",
    "fuse.norm.": "input_norm.",
}
"""Beginnings of the network's names, and the authors'; the first that fits counts."""

IDS = "eagle_aux_hidden_state_layer_ids"


def default_boundaries(layers: int) -> tuple[int, ...]:
    """The boundaries that a head reads which names none: 2, L // 2 and L - 3."""
    return 2, layers // 2, layers - 3


def load_eagle3(
    source: str,
    target: object,
    *,
    boundaries: Sequence[int] | None = None,
    norm_output: bool | None = None,
) -> HeadModel:
    """Read an EAGLE-3 or 3.1 head as SafeAILab, SpecForge, NVIDIA, vLLM or speculators write it.

    Args:
        source: its folder, or a hub id.
        target: the model that it was trained for.
        boundaries: what it reads, counted as in `treespec.features`; None for what its config.json says, or
            2, L // 2 and L - 3. The file's ids are inputs of layers, but outputs if the first of them is 1.
        norm_output: whether drafted tokens read the normed output; None for what its config.json says.
            Heads that SpecForge trained before September 2026 with an explicit flag may need the other
            value (sgl-project/SpecForge#879).

    Raises:
        LoadError: if it cannot be read, or is not such a head for this target.
        UnsupportedModel: if the target has no embedding and head to share.
    """
    parts = TargetParts.of(target)
    checkpoint = read_checkpoint(source)
    within = "transformer_layer_config." if "transformer_layer_config" in checkpoint.config else ""
    checkpoint.rename(_of_layers)
    checkpoint.require_family("eagle3", "layers.0.hidden_norm.weight")
    layers = _count_of_layers(checkpoint)
    qk_norms = checkpoint.has("layers.0.self_attn.q_norm.weight")
    config = layer_config(checkpoint, within, layers, qk_norms=qk_norms)
    if _flag(checkpoint, "use_aux_hidden_state", True):
        reads = Features(tuple(boundaries or _boundaries(checkpoint, parts.layers)))
        require_boundaries(checkpoint.name, reads, parts)
    else:
        reads = Features(final="post")
    normed = _flag(checkpoint, "norm_output", False) if norm_output is None else norm_output
    net, own_embedding, kept = _net(checkpoint, config, parts, reads, normed=normed)
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm")
    contract = Contract(
        family="eagle3",
        reads=reads,
        order=("embedding", "state"),
        recycled="after the norm" if normed else "before the norm",
        vocabulary=None if kept is None else len(kept),
        head="target's" if checkpoint.setting(OF_TARGET, bool, False) else "own",
        embedding="own" if own_embedding else "target's",
        flags=tuple(flag for flag in flags if _flag(checkpoint, flag, False)),
    )
    return probed(checkpoint.name, net, contract)


def save_eagle3(head: HeadModel, folder: Path) -> None:
    """Write a head in its authors' layout, which `load_eagle3` and serving engines read.

    Raises:
        InvalidArgument: if the folder holds something already; or if the first boundary that it reads is 1,
            since an id of 1 in the first place means outputs of layers to readers.
    """
    write_head(folder, *_files(head))


def store_eagle3(head: HeadModel, folder: Path) -> None:
    """As `save_eagle3`, but without rows that are the target's: for `load_eagle3` alone.

    Raises:
        InvalidArgument: see `save_eagle3`.
    """
    files = _files(head)
    write_head(folder, *(without_rows(*files) if head.contract.head == "target's" else files))


def _files(head: HeadModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The content of config.json, and the tensors."""
    reads, net = head.contract.reads, head.net
    if reads.boundaries[:1] == (1,):
        raise InvalidArgument(
            f"a head that reads boundaries {reads.boundaries} cannot be written: readers take a first id "
            "of 1 as the output of layer 1; train it on other boundaries, or in another order"
        )
    tensors = {
        _authors_name(name): tensor
        for name, tensor in net.state_dict().items()
        if not name.startswith("model.embed_tokens.") or head.contract.embedding == "own"
    }
    if net.kept is not None:
        kept: Any = net.kept
        tensors |= tables_of(kept, net.logits_width)
    flags = dict.fromkeys(head.contract.flags, True)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": net.config.model_type,
        "vocab_size": net.logits_width,
        "draft_vocab_size": head.contract.vocabulary or net.logits_width,
        "norm_output": head.contract.recycled == "after the norm",
        **flags,
        **layer_settings(net.config),
    }
    if reads.final is None:
        width = tensors["fc.weight"].shape[1] // len(reads.states)
        config |= {IDS: list(reads.boundaries), "target_hidden_size": width}
    else:
        config["eagle_config"] = {"use_aux_hidden_state": False}
    return config, tensors


def _authors_name(name: str) -> str:
    """The authors' name of a tensor of the network."""
    for ours, theirs in OF_NETWORK.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def conventions(contract: Contract, layers: int) -> dict[str, dict[str, Any]]:
    """What no file states reliably: how layers are counted, and which state is recycled.

    Args:
        contract: of a head as it is read.
        layers: of its target.

    Returns:
        By label, arguments of `load_eagle3`; those of the head as it is read are among them.
    """
    read, found = contract.reads.boundaries, {}
    for by in (0, 1, -1) if read else (0,):
        moved = [boundary + by for boundary in read]
        if moved and not 0 <= min(moved) <= max(moved) <= layers:
            continue
        at = f"boundaries {', '.join(map(str, moved))}; " if moved else ""
        for normed in (False, True):
            label = f"{at}recycles the state {'after' if normed else 'before'} the norm"
            found[label] = ({"boundaries": moved} if moved else {}) | {"norm_output": normed}
    return found


def _net(
    checkpoint: Checkpoint, config: Any, parts: TargetParts, reads: Features, *, normed: bool
) -> tuple[HeadNet, bool, Tensor | None]:
    """The network, whether it has an embedding of its own, and the tokens that it has rows for."""
    h = config.hidden_size
    own = checkpoint.maybe("embed_tokens.weight", (parts.vocab_size, h))
    if own is None:
        require_width(checkpoint.name, h, parts)
    kept, rows = kept_tokens(checkpoint, parts.logits)
    after = checkpoint.take("norm.weight", (h,))
    state_norm = rms_norm(checkpoint.take("layers.0.hidden_norm.weight", (h,)), config, parts)
    embedding_norm = rms_norm(
        checkpoint.take("layers.0.input_layernorm.weight", (h,)), config, parts
    )
    layers = [
        decoder_layer(checkpoint, f"layers.{i}.", config, i, parts, 0 if i else 2 * h)
        for i in range(config.num_hidden_layers)
    ]
    residual_normed = _flag(checkpoint, "norm_before_residual", False)
    first = _FirstLayer(layers[0], embedding_norm, state_norm, residual_normed=residual_normed)
    shares = checkpoint.setting(OF_TARGET, bool, False)
    if shares:
        require_width(checkpoint.name, h, parts)
    rows_of_head = shared_rows(parts, kept) if shares else checkpoint.take(ROWS, (rows, h))
    net: Any = HeadNet(
        config,
        embedding=parts.embedding if own is None else embedding(own, parts),
        fuse=_fuse(checkpoint, config, parts, reads),
        combine=_Pair(),
        layers=[first, *layers[1:]],
        norm=rms_norm(after, config, parts),
        head=linear(rows_of_head, None, parts),
        recycles=Features(final="post") if normed else Features((len(layers),)),
        width=h,
        vocab_size=parts.logits,
        kept=None if kept is None else kept.to(parts.device),
        rotary=rotary(config, parts),
    )
    checkpoint.require_all_taken()
    return net, own is not None, kept


def _fuse(checkpoint: Checkpoint, config: Any, parts: TargetParts, reads: Features) -> nn.Module:
    """What makes a state of the target's features."""
    h, width, count = config.hidden_size, parts.width, len(reads.states)
    stated = checkpoint.setting("target_hidden_size", int, width)
    if stated != width:
        raise LoadError(
            f"{checkpoint.name!r} reads states of width {stated} (target_hidden_size), but those of this "
            f"target have the width {width}: it is a head for another target"
        )
    if reads.final is not None:
        require_width(checkpoint.name, h, parts)
        return OneFeature()
    if all(_flag(checkpoint, flag, False) for flag in ("norm_before_fc", "fc_norm")):
        raise LoadError(
            f"config.json of {checkpoint.name!r}: norm_before_fc and fc_norm are both true, but states are "
            "normed together or each on its own, never both"
        )
    norm: nn.Module = nn.Identity()
    norms: list[nn.Module] = []
    if _flag(checkpoint, "norm_before_fc", False):
        gain = checkpoint.take("input_norm.weight", (count * width,))
        norm = rms_norm(gain, config, parts)
    if _flag(checkpoint, "fc_norm", False):
        gains = [checkpoint.take(f"fc_norm.{i}.weight", (width,)) for i in range(count)]
        norms = [rms_norm(gain, config, parts) for gain in gains]
    fc = checkpoint.take("fc.weight", (h, count * width))
    return JoinedFeatures(norms, norm, linear(fc, None, parts))


def _flag(checkpoint: Checkpoint, name: str, default: bool) -> bool:
    """A flag, in `eagle_config` where NVIDIA keeps it, or at the top."""
    nested = checkpoint.setting(f"eagle_config.{name}", bool, None)
    return checkpoint.setting(name, bool, default) if nested is None else nested


def _boundaries(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """What the file says that the head reads, in our counting."""
    nested = checkpoint.setting(f"eagle_config.{IDS}", list, None)
    ids = checkpoint.setting(IDS, list, None) if nested is None else nested
    if ids is None:
        found = default_boundaries(layers)
        if len(set(found)) < len(found) or min(found) < 0:
            raise LoadError(
                f"{checkpoint.name!r} does not name the layers that it reads, and 2, L // 2 and L - 3 of a "
                f"target of {layers} layers are {', '.join(map(str, found))}: give `boundaries`"
            )
        return found
    if not ids or not all(type(i) is int for i in ids):
        raise LoadError(f"config.json of {checkpoint.name!r}: {IDS} = {ids}, but must be integers")
    if min(ids) < 0 or len(set(ids)) < len(ids):
        raise LoadError(
            f"config.json of {checkpoint.name!r}: {IDS} = {ids}, but each must be at least 0, and each "
            "boundary may stand once"
        )
    return tuple(i + (ids[0] == 1) for i in ids)


def _count_of_layers(checkpoint: Checkpoint) -> int:
    numbers = {name.split(".")[1] for name in checkpoint.names if name.startswith("layers.")}
    return max(1, len(numbers))


def _of_layers(name: str) -> str:
    """The name of a tensor, with the first layer among the others."""
    name = name.removeprefix("model.")
    return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name


class _Pair(nn.Module):
    """Embedding and state side by side, as the first layer takes them apart again."""

    @no_type_check
    def forward(self, embeddings: Tensor, states: Tensor) -> Tensor:
        return torch.cat([embeddings, states], dim=-1)


class _FirstLayer(nn.Module):
    """A decoder layer whose attention reads embedding and state, and adds to the state alone.

    Args:
        layer: the layer, of twice the inputs.
        embedding_norm: of the embedding.
        state_norm: of the state.
        residual_normed: whether the attention is added to the normed state.
    """

    def __init__(
        self,
        layer: nn.Module,
        embedding_norm: nn.Module,
        state_norm: nn.Module,
        *,
        residual_normed: bool,
    ) -> None:
        super().__init__()
        parts: Any = layer
        self.self_attn, self.mlp = parts.self_attn, parts.mlp
        self.post_attention_layernorm = parts.post_attention_layernorm
        self.input_layernorm, self.hidden_norm = embedding_norm, state_norm
        self.residual_normed = residual_normed

    @no_type_check
    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        embeddings, states = hidden_states.chunk(2, dim=-1)
        normed = self.hidden_norm(states)
        both = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        attended, _ = self.self_attn(hidden_states=both, **options)
        hidden = (normed if self.residual_normed else states) + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
