"""What a model's configuration says about running trees: its context, and why trees may be impossible."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from transformers import DynamicCache, PreTrainedModel

from treespec.errors import UnsupportedModel

UNSTATED_CONTEXT = 1 << 20
"""Context length of a model whose configuration states none."""

CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
DECODER_NAMES = ("max_decoder_position_embeddings", "max_target_positions")
ENCODER_NAMES = ("max_encoder_position_embeddings", "max_source_positions")
"""Names of the limits of an encoder-decoder whose two halves have limits of their own."""
NAMES_A_LIMIT = re.compile(r"window(?!_layers|_pattern)|attention_chunk")
PLAIN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}
"""Layers of transformers' cache that hold rows, or nothing; by name, since the last is newer than 5.17."""
LENGTH_DEPENDENT_ROPE = ("longrope", "dynamic")


def refusal(model: PreTrainedModel) -> str | None:
    """Why this model cannot run trees with any attention; None if no reason is known."""
    config = model.config
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder and model.main_input_name != "input_ids":
        return f"its encoder reads {model.main_input_name} instead of the tokens of a text"
    if model._is_stateful:
        return "it keeps a recurrent state, which cannot be rolled back to a branch of a tree"
    if _alibi(text):
        return (
            "its ALiBi position bias follows the order of rows, in which the branches of a tree come one "
            "after the other, instead of the depth of nodes"
        )
    for layer in DynamicCache(config=config).layers:
        if type(layer).__name__ not in PLAIN_LAYERS:
            return (
                f"its cache has layers of type {type(layer).__name__}, which do not hold plain rows"
            )
    return None


def context_length(config: Any) -> int:
    """Number of positions in a model's context; of an encoder-decoder, in that of its decoder.

    T5 and its relatives (relative positions) have none, whatever their configuration states; tables of
    positions end there (BART, mBART, Pegasus, Marian); M2M-100 would compute further sinusoids, but was
    trained up to there, as models with rotary embeddings were.

    Rotary embeddings that change with the length of the text (longrope, dynamic NTK) are used within their
    original context only. Beyond it, cached rows and new rows would use different frequencies, and a single
    tree could span the change.

    Raises:
        UnsupportedModel: if the configuration states a context of less than one position.
    """
    text = config.get_text_config(decoder=True)
    limits = _stated(text, (*DECODER_NAMES, *CONTEXT_NAMES))
    for rope in _ropes(text):
        if rope.get("rope_type", rope.get("type")) in LENGTH_DEPENDENT_ROPE:
            original = rope.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            if original:
                limits.append((int(original), "original_max_position_embeddings"))
    return _least(limits)


def source_length(config: Any) -> int:
    """Number of tokens that the encoder of an encoder-decoder takes.

    Raises:
        UnsupportedModel: if the configuration states less than one.
    """
    return _least(_stated(config.get_text_config(encoder=True), (*ENCODER_NAMES, *CONTEXT_NAMES)))


def _stated(text: Any, names: Sequence[str]) -> list[tuple[int, str]]:
    """The first of these limits that a configuration states; none for relative positions."""
    if getattr(text, "relative_attention_num_buckets", None) and text.is_encoder_decoder:
        return []
    stated = [(name, getattr(text, name, None)) for name in names]
    return [(value, name) for name, value in stated if isinstance(value, int)][:1]


def _least(limits: Sequence[tuple[int, str]]) -> int:
    length, name = min(limits, default=(UNSTATED_CONTEXT, ""))
    if length < 1:
        raise UnsupportedModel(
            f"{name} = {length} in its config.json, but a context has at least 1 position: correct it"
        )
    return length


def embedding_count(model: PreTrainedModel) -> int:
    """Number of token ids that the model can embed."""
    table: Any = model.get_input_embeddings()
    return table.weight.shape[0]


def local_attention(config: Any, longest: int | None = None) -> str | None:
    """The setting that keeps some layers from attending to all previous tokens, or None.

    For models that make their own masks, where the mask functions cannot tell.

    Args:
        config: of the model.
        longest: tokens of a text; None for as many as the model's context has.
    """
    text = config.get_text_config(decoder=True)
    longest = longest or context_length(config)
    unused = getattr(text, "use_sliding_window", True) is False
    for name, value in vars(text).items():
        if name == "sliding_window" and unused:
            continue
        if NAMES_A_LIMIT.search(name) and type(value) is int and 0 < value < longest:
            return f"{name} = {value}"
    kinds = getattr(text, "layer_types", None) or ()
    local_kinds = sorted({kind for kind in kinds if kind != "full_attention"})
    if local_kinds and not getattr(text, "sliding_window", None):
        return f"layer_types with {', '.join(local_kinds)}"
    return None


def _alibi(config: Any) -> bool:
    inner = getattr(config, "attn_config", None)
    return bool(
        getattr(config, "alibi", False)
        or getattr(inner, "alibi", False)
        or getattr(config, "position_embedding_type", None) == "alibi"
        or config.model_type == "bloom"
    )


def _ropes(config: Any) -> Iterator[dict[str, Any]]:
    """Every set of rotary parameters: a single one, or one per layer type."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if any(isinstance(value, dict) for value in rope.values()):
        yield from (value for value in rope.values() if isinstance(value, dict))
    else:
        yield rope
