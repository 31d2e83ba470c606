"""Read heads of EAGLE-1, EAGLE-2 and HASS in the layouts in which they are published."""

from pathlib import Path
from typing import Any

from torch import nn

from treespec.draft.trained.checkpoint import Checkpoint, read_checkpoint
from treespec.draft.trained.contract import Contract
from treespec.draft.trained.head_model import HeadModel, probed
from treespec.draft.trained.head_net import HeadNet
from treespec.draft.trained.llama_parts import (
    OneFeature,
    SideBySide,
    decoder_layer,
    embedding,
    layer_config,
    rms_norm,
    rotary,
    taken_linear,
)
from treespec.draft.trained.target_parts import TargetParts, require_width
from treespec.draft.trained.writing import layer_settings, write_head
from treespec.errors import InvalidArgument
from treespec.features import Features

OF_SPECULATORS = {
    "fusion_fc": "fc",
    "transformer.input_layernorm": "hidden_layernorm",
    "transformer": "layers.0",
    "embedding_layernorm": "embed_layernorm",
    "post_embedding_layernorm": "embed_layernorm",
    "pre_lm_head_layernorm": "lm_head_layernorm",
}
"""Names of speculators, whose versions differ, and the authors'; the first that fits counts."""


def load_eagle(source: str, target: object) -> HeadModel:
    """Read an EAGLE-1, EAGLE-2 or HASS head, in its authors' layout or that of speculators.

    Args:
        source: its folder, or a hub id.
        target: the model that it was trained for.

    Raises:
        LoadError: if it cannot be read, or is not such a head for this target.
        UnsupportedModel: if the target has no embedding and head to share.
    """
    parts = TargetParts.of(target)
    checkpoint = read_checkpoint(source)
    within = ""
    if "speculators_model_type" in checkpoint.config:
        within = "transformer_layer_config."
        biased = checkpoint.setting("fusion_bias", bool, False)
    else:
        biased = checkpoint.setting("bias", bool, True)
    checkpoint.rename(_of_authors)
    checkpoint.require_family("eagle", "fc.weight")
    qk_norms = checkpoint.has("layers.0.self_attn.q_norm.weight")
    config = layer_config(checkpoint, within, 1, qk_norms=qk_norms)
    require_width(checkpoint.name, config.hidden_size, parts)
    net, own_embedding = _net(checkpoint, config, parts, biased=biased)
    contract = Contract(
        family="eagle",
        reads=Features(final="post"),
        order=("embedding", "state"),
        recycled="before the norm",
        embedding="own" if own_embedding else "target's",
        notes=parts.missing,
    )
    return probed(checkpoint.name, net, contract)


def _net(
    checkpoint: Checkpoint, config: object, parts: TargetParts, *, biased: bool
) -> tuple[HeadNet, bool]:
    """The network, and whether it has an embedding of its own."""
    sizes: Any = config
    h = sizes.hidden_size

    def norm(name: str) -> nn.Module:
        weight = checkpoint.maybe(f"{name}.weight", (h,))
        return nn.Identity() if weight is None else rms_norm(weight, sizes, parts)

    layer: Any = decoder_layer(checkpoint, "layers.0.", sizes, 0, parts)
    if isinstance(layer.input_layernorm, nn.Identity):
        layer.input_layernorm = norm("hidden_layernorm")
    own = checkpoint.maybe("embed_tokens.weight", (parts.vocab_size, h))
    fuse = taken_linear(checkpoint, "fc", (h, 2 * h), parts, biased=biased)
    net: Any = HeadNet(
        sizes,
        embedding=parts.embedding if own is None else embedding(own, parts),
        fuse=OneFeature(),
        combine=SideBySide(norm("embed_layernorm"), nn.Identity(), fuse),
        layers=[layer],
        norm=norm("lm_head_layernorm"),
        head=parts.head,
        recycles=Features((1,)),
        width=h,
        vocab_size=parts.logits,
        rotary=rotary(sizes, parts),
    )
    checkpoint.require_all_taken()
    return net, own is not None


def _of_authors(name: str) -> str:
    """The authors' name of a tensor."""
    name = name.removeprefix("model.")
    old = next((old for old in OF_SPECULATORS if name.startswith(f"{old}.")), None)
    return name if old is None else OF_SPECULATORS[old] + name.removeprefix(old)


def save_eagle(head: HeadModel, folder: Path) -> None:
    """Write a head in its authors' layout, which `load_eagle` and serving engines read.

    Raises:
        InvalidArgument: if the folder holds something already; or if the head has norms of speculators,
            which other readers of the layout would leave out.
    """
    net: Any = head.net
    layer, combine = net.model.layers[0], net.model.combine
    norms = (combine.embedding_norm, layer.input_layernorm, net.model.norm)
    if not all(isinstance(norm, nn.Identity) for norm in norms):
        raise InvalidArgument(
            "a head with norms of its embedding, input or output cannot be written: the authors' layout "
            "has none, and engines would run the head without them"
        )
    tensors = {f"layers.0.{name}": tensor for name, tensor in layer.state_dict().items()}
    tensors |= {f"fc.{name}": tensor for name, tensor in combine.project.state_dict().items()}
    if head.contract.embedding == "own":
        tensors["embed_tokens.weight"] = net.model.embed_tokens.weight
    config = {
        "architectures": ["LlamaForCausalLMEagle"],
        "model_type": net.config.model_type,
        "vocab_size": net.logits_width,
        "bias": "fc.bias" in tensors,
        **layer_settings(net.config),
    }
    write_head(folder, config, tensors)
