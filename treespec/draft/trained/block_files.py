"""Read a published block drafter: DFlash and JetSpec, in the layouts in which they are published."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from treespec.draft.trained.block_head import (
    BlockHead,
    BlockLayer,
    BlockNorm,
    BlockRules,
    BlockSizes,
)
from treespec.draft.trained.contract import Contract
from treespec.errors import InvalidArgument, LoadError, in_words
from treespec.features import Features

if TYPE_CHECKING:
    from treespec.draft.trained.checkpoint import Checkpoint
    from treespec.draft.trained.target_parts import TargetParts


M = TypeVar("M", bound=nn.Module)

OTHERS = {
    "markov_head.": "DSpark",
    "confidence_head.": "DSpark",
    "prefix_gru.": "Domino",
    "embed_proj.": "Domino",
}
"""Tensors of heads that correct the rows of a block one after the other, by the head that has them."""


ENCODER = ("encoder.fc", "encoder.output_norm_enc")
"""Names of the projection and its norm in transformers' layout."""


def load_block(source: str, target: Any, *, causal: bool | None = None) -> BlockHead:
    """Read a block drafter.

    A layer id i of the authors means `hidden_states[i + 1]` of transformers: our boundary i + 1 or, for the
    last layer, the state after the final norm. One of speculators' `aux_hidden_state_layer_ids` means the
    input of layer i: boundary i.

    Args:
        source: its folder, or a hub id.
        target: the target it was trained for.
        causal: whether a token of the block sees only those before it; None for what the head states.

    Raises:
        LoadError: if it cannot be read, or is not such a head for this target.
        UnsupportedModel: if the target is not a transformers model with a head.
    """
    from treespec.draft.trained.checkpoint import read_checkpoint  # loads transformers
    from treespec.draft.trained.target_parts import TargetParts

    parts, checkpoint = TargetParts.of(target), read_checkpoint(source)
    _refuse_others(checkpoint)
    config = _layer_config(checkpoint)
    sizes = _sizes(checkpoint, config)
    wanted = _states(checkpoint, parts, config.num_hidden_layers)
    reads = Features(
        tuple(state for state in wanted if isinstance(state, int)),
        "post" if "post" in wanted else None,
    )
    rules = _rules(checkpoint, parts, config, tuple(map(reads.states.index, wanted)), causal)
    net, own_head = _net(checkpoint, parts, config, sizes, len(wanted))
    return BlockHead(
        sizes,
        rules,
        _contract(parts, net, reads, wanted, rules, own_head=own_head),
        **net,
        rotary=_rotary(config, parts),
        vocab_size=target.vocab_size,
        ids=parts.vocab_size,
        target_layers=parts.layers,
    )


def save_block(head: BlockHead, folder: Path) -> None:
    """Write a block drafter in the layout of DFlash and JetSpec, which `load_block` and engines read.

    Raises:
        InvalidArgument: if the folder holds something already; or if the head reads the embedding's output
            or the last layer's before the norm, for which the layout has no id.
    """
    from treespec.draft.trained.writing import write_head

    write_head(folder, *_files(head))


def store_block(head: BlockHead, folder: Path) -> None:
    """As `save_block`, but without rows that are the target's: for `load_block` alone.

    Raises:
        InvalidArgument: see `save_block`.
    """
    from treespec.draft.trained.vocabulary import without_rows
    from treespec.draft.trained.writing import write_head

    files = _files(head)
    write_head(folder, *(without_rows(*files) if head.contract.head == "target's" else files))


def _files(head: BlockHead) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The content of config.json, and the tensors."""
    from treespec.draft.trained.vocabulary import tables_of
    from treespec.draft.trained.writing import layer_settings

    net: Any = head
    states = [head.contract.reads.states[i] for i in head.rules.order]
    ids = ids_of(states, head.target_layers)
    parts = {"": net.layers, "fc": net.project, "hidden_norm": net.hidden_norm, "norm": net.norm}
    if net.adapter is not None:
        parts["hidden_dim_adapter.proj"] = net.adapter
    if head.contract.head == "own" or net.kept is not None:
        parts["lm_head"] = net.head
    if head.contract.embedding == "own":
        parts["embed_tokens"] = net.embedding
    tensors = {
        f"{part or 'layers'}.{name}": tensor
        for part, module in parts.items()
        for name, tensor in module.state_dict().items()
    }
    if net.kept is not None:
        tensors |= tables_of(net.kept, net.vocab_size)
    rules = head.rules
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **layer_settings(net.rotary.config),
        "vocab_size": head.ids,
        "draft_vocab_size": net.vocab_size if net.kept is None else len(net.kept),
        "num_target_layers": head.target_layers,
        "block_size": rules.block_size,
        "dflash_config": {
            "mask_token_id": rules.mask_token,
            "target_layer_ids": ids,
            "causal_head": rules.causal,
            "sample_from_anchor": rules.from_anchor,
        },
    }
    return config, tensors


def ids_of(states: Sequence[int | str], layers: int) -> list[int]:
    """The ids by which DFlash's layout names states of a target with so many layers.

    Raises:
        InvalidArgument: for the embedding's output or the last layer's before the norm, which have no id.
    """
    if not layers or any(state in (0, layers) for state in states):
        raise InvalidArgument(
            f"a head that reads {', '.join(map(_named, states))} cannot be written: DFlash's ids mean "
            "outputs of layers, and that of the last layer the state after the norm"
        )
    return [layers - 1 if state == "post" else int(state) - 1 for state in states]


def _default_ids(layers: int, count: int) -> list[int]:
    """The authors' choice: points at equal distances from layer 1 to the third before the end."""
    if count == 1:
        return [layers // 2]
    return [round(1 + i * (layers - 4) / (count - 1)) for i in range(count)]


def _refuse_others(checkpoint: "Checkpoint") -> None:
    """Refuse heads of the same layers whose rows are corrected further."""
    for name in checkpoint.names:
        for prefix, family in OTHERS.items():
            if name.startswith(prefix):
                raise LoadError(
                    f"{checkpoint.name!r} is a {family} head: its tensor {name!r} corrects each row of a "
                    "block by the tokens before it, which is not implemented; without it, the rows are not "
                    "the head's"
                )
    kind = checkpoint.setting("speculators_model_type", str, "dflash")
    projector = _setting(checkpoint, "projector_type", str, "dflash")
    if kind != "dflash" or projector != "dflash":
        raise LoadError(
            f"{checkpoint.name!r} is a head of type {kind if kind != 'dflash' else projector!r}, not a "
            "block drafter (DFlash or JetSpec)"
        )
    checkpoint.require_family("block", f"{_projection(checkpoint)[0]}.weight")


def _projection(checkpoint: "Checkpoint") -> tuple[str, str]:
    """Names of the projection of the target's features and of its norm."""
    return ENCODER if checkpoint.has(f"{ENCODER[0]}.weight") else ("fc", "hidden_norm")


def _net(
    checkpoint: "Checkpoint", parts: "TargetParts", config: Any, sizes: BlockSizes, states: int
) -> tuple[dict[str, Any], bool]:
    """The network's modules and tokens by their names in `BlockHead`; whether it has a head of its own."""
    from treespec.draft.trained.llama_parts import linear
    from treespec.draft.trained.target_parts import require_width
    from treespec.draft.trained.vocabulary import OF_TARGET, ROWS, kept_tokens, shared_rows

    width, adapter = sizes.width, None
    if checkpoint.has("hidden_dim_adapter.proj.weight"):
        adapter = _linear(checkpoint, parts, "hidden_dim_adapter.proj", parts.width, width)
    else:
        require_width(checkpoint.name, width, parts)
    kept, rows = kept_tokens(checkpoint, parts.logits)
    own = checkpoint.maybe("embed_tokens.weight", (parts.vocab_size, width))
    shares = checkpoint.setting(OF_TARGET, bool, False)
    own_head = not shares and (kept is not None or checkpoint.has(ROWS))
    if width != parts.width and (own is None or not own_head):
        raise LoadError(
            f"{checkpoint.name!r} has the hidden size {width} and the target {parts.width}, so it cannot "
            "share the target's embedding and head, but it has none of its own"
        )
    embedding = parts.embedding
    if own is not None:
        embedding = nn.Embedding.from_pretrained(own.to(parts.device, parts.dtype))
    head = parts.head
    if own_head:
        head = _linear(checkpoint, parts, "lm_head", width, rows)
    elif kept is not None:
        head = linear(shared_rows(parts, kept), None, parts)
    project, hidden_norm = _projection(checkpoint)
    net = {
        "layers": [_layer(checkpoint, parts, i, sizes) for i in range(config.num_hidden_layers)],
        "project": _linear(checkpoint, parts, project, states * width, width),
        "hidden_norm": _norm(checkpoint, parts, hidden_norm, sizes),
        "norm": _norm(checkpoint, parts, "norm", sizes),
        "embedding": embedding,
        "head": head,
        "kept": None if kept is None else kept.to(parts.device),
        "adapter": adapter,
    }
    checkpoint.ignore("verifier_lm_head.weight", "verifier_norm.weight")
    checkpoint.require_all_taken()
    return net, own_head


def _contract(
    parts: "TargetParts",
    net: dict[str, Any],
    reads: Features,
    wanted: list[Any],
    rules: BlockRules,
    *,
    own_head: bool,
) -> Contract:
    return Contract(
        "block",
        reads,
        order=tuple(map(_named, wanted)),
        vocabulary=None if net["kept"] is None else len(net["kept"]),
        head="own" if own_head else "target's",
        embedding="target's" if net["embedding"] is parts.embedding else "own",
        notes=(*_notes(rules), *(() if own_head else parts.missing)),
    )


def _layer_config(checkpoint: "Checkpoint") -> Any:
    """The configuration of its layers, as transformers reads it: what is not stated has its defaults."""
    from transformers import AutoConfig

    given = dict(checkpoint.setting("transformer_layer_config", dict, checkpoint.config))
    kind = given.pop("model_type", "qwen3")
    try:
        config: Any = AutoConfig.for_model(kind, **given)
        config.hidden_size, config.num_hidden_layers, config.head_dim, config.num_key_value_heads  # noqa: B018
    except Exception as error:  # of several classes
        why = in_words(error, "transformers")
        raise LoadError(
            f"config.json of {checkpoint.name!r} is not that of a head: {why}"
        ) from error
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise LoadError(
            f"{checkpoint.name!r} has layers of sliding attention, which are not implemented here"
        )
    if config.hidden_act != "silu":
        raise LoadError(
            f"{checkpoint.name!r}: hidden_act = {config.hidden_act!r}, but must be 'silu'"
        )
    return config


def _sizes(checkpoint: "Checkpoint", config: Any) -> BlockSizes:
    sizes = BlockSizes(
        width=config.hidden_size,
        inner=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        bias=bool(getattr(config, "attention_bias", False)),
    )
    if sizes.heads % sizes.kv_heads:
        raise LoadError(
            f"config.json of {checkpoint.name!r} states {sizes.heads} heads of queries and "
            f"{sizes.kv_heads} of keys, which do not divide them"
        )
    return sizes


def _states(checkpoint: "Checkpoint", parts: "TargetParts", layers: int) -> list[Any]:
    """The target's states that the projection reads, in its order."""
    stated = checkpoint.setting("num_target_layers", int, parts.layers)
    if stated != parts.layers:
        raise LoadError(
            f"{checkpoint.name!r} is a head for a target of {stated} layers, but the target has "
            f"{parts.layers}"
        )
    given = checkpoint.setting("aux_hidden_state_layer_ids", list, None)
    if given is None and "speculators_model_type" in checkpoint.config:
        given = checkpoint.setting("aux_hidden_state_layer_ids", list)
    if given is not None:
        boundaries, last = list(given), parts.layers
    else:
        ids = _setting(checkpoint, "target_layer_ids", list, None)
        ids = _default_ids(parts.layers, layers) if ids is None else ids
        boundaries, last = [i + 1 if type(i) is int else i for i in ids], None
    wrong = [b for b in boundaries if type(b) is not int or not 0 <= b <= parts.layers]
    if wrong or len(set(boundaries)) < len(boundaries) or not boundaries:
        raise LoadError(
            f"{checkpoint.name!r} reads the boundaries {boundaries}, but the target's are 0.."
            f"{parts.layers} (an id i of DFlash's config.json is boundary i + 1), each at most once"
        )
    return ["post" if b == parts.layers != last else b for b in boundaries]


def _rules(
    checkpoint: "Checkpoint",
    parts: "TargetParts",
    config: Any,
    order: tuple[int, ...],
    causal: bool | None,
) -> BlockRules:
    size = _setting(checkpoint, "block_size", int)
    mask = _setting(checkpoint, "mask_token_id", int)
    stated_by = checkpoint.setting("transformer_layer_config", dict, checkpoint.config)
    vocabulary = stated_by.get("vocab_size")
    if vocabulary not in (None, parts.vocab_size):
        raise LoadError(
            f"{checkpoint.name!r} is a head for a vocabulary of {vocabulary:,} tokens, but the target has "
            f"{parts.vocab_size:,}"
        )
    if size < 2 or not 0 <= mask < parts.vocab_size:
        raise LoadError(
            f"config.json of {checkpoint.name!r}: block_size = {size} and mask_token_id = {mask}, but a "
            f"block has 2 tokens or more, and the target embeds the tokens 0..{parts.vocab_size - 1}"
        )
    stated = _setting(checkpoint, "causal_head", bool, False)
    return BlockRules(
        block_size=size,
        mask_token=mask,
        order=order,
        causal=stated if causal is None else causal,
        from_anchor=_setting(checkpoint, "sample_from_anchor", bool, False),
        max_length=config.max_position_embeddings,
    )


def _setting(checkpoint: "Checkpoint", key: str, kind: type, *default: Any) -> Any:
    """A value of the object `dflash_config`, or of the file itself."""
    value = checkpoint.setting(f"dflash_config.{key}", kind, None)
    return checkpoint.setting(key, kind, *default) if value is None else value


def _layer(
    checkpoint: "Checkpoint", parts: "TargetParts", index: int, sizes: BlockSizes
) -> BlockLayer:
    with torch.device("meta"):
        layer = BlockLayer(sizes)
    return _filled(layer, checkpoint, parts, f"layers.{index}.")


def _linear(
    checkpoint: "Checkpoint", parts: "TargetParts", name: str, inputs: int, outputs: int
) -> nn.Linear:
    with torch.device("meta"):
        made = nn.Linear(inputs, outputs, bias=False)
    return _filled(made, checkpoint, parts, f"{name}.")


def _norm(
    checkpoint: "Checkpoint", parts: "TargetParts", name: str, sizes: BlockSizes
) -> BlockNorm:
    with torch.device("meta"):
        made = BlockNorm(sizes.width, sizes.eps)
    return _filled(made, checkpoint, parts, f"{name}.")


def _filled(module: M, checkpoint: "Checkpoint", parts: "TargetParts", prefix: str) -> M:
    """The module with the checkpoint's tensors, which have the names and shapes of its own."""
    tensors: dict[str, Tensor] = {
        name: checkpoint.take(prefix + name, empty.shape).to(parts.device, parts.dtype)
        for name, empty in module.state_dict().items()
    }
    module.load_state_dict(tensors, assign=True)
    module.requires_grad_(False)
    return module


def _rotary(config: Any, parts: "TargetParts") -> nn.Module:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    return Qwen3RotaryEmbedding(config).to(parts.device)


def _named(state: int | str) -> str:
    return f"boundary {state}" if isinstance(state, int) else "final"


def _notes(rules: BlockRules) -> tuple[str, ...]:
    return (
        f"blocks of {rules.block_size}, {'causal' if rules.causal else 'two-way'}, mask {rules.mask_token}",
        f"a row predicts {'the next token' if rules.from_anchor else 'its own place'}",
    )
