"""A decoder layer of any architecture of transformers, filled with a checkpoint's tensors.

A module for multi-token prediction is a layer of its target's architecture, whatever that is: with latent
attention, experts, gates, norms of its own. So transformers' own classes compute it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING

from treespec.draft.trained.checkpoint import Checkpoint
from treespec.draft.trained.target_parts import TargetParts
from treespec.errors import LoadError, UnsupportedModel, in_words

AS = {"mimo": "qwen2"}
"""Architectures that transformers knows by another name only, as far as their layers go."""

EXPERTS = "mlp.experts."


@dataclass(frozen=True, eq=False)
class Architecture:
    """The parts of an architecture, in the sizes of a config.json.

    Args:
        config: the sizes, of a model of one layer, which attends to the whole text.
        body: a model of that layer without memory, of which the layer and the classes are taken.
        published: what the config.json says of the layers.
    """

    config: Any
    body: Any
    published: Mapping[str, Any]

    @classmethod
    def of(cls, checkpoint: Checkpoint, like: Any) -> "Architecture":
        """The architecture that a checkpoint's config.json names.

        Args:
            checkpoint: the head.
            like: the target's configuration; experts are computed as the target's.

        Raises:
            UnsupportedModel: if transformers has no such causal model with the usual parts.
            LoadError: if its sizes are impossible.
        """
        within = checkpoint.config.get("transformer_layer_config", checkpoint.config)
        kind = within.get("model_type") if isinstance(within, dict) else None
        kind = AS.get(str(kind), str(kind))
        if kind not in CONFIG_MAPPING:
            raise UnsupportedModel(
                f"{checkpoint.name!r}: transformers knows no layers of the model_type {kind!r}"
            )
        given = {key: value for key, value in within.items() if key != "quantization_config"}
        try:
            config: Any = CONFIG_MAPPING[kind].from_dict(given).get_text_config(decoder=True)
            _to_one_layer(config)
            config._experts_implementation = like._experts_implementation
            with torch.device("meta"):
                body = _model_class(config)(config)
            if not all(hasattr(body, part) for part in ("layers", "norm", "rotary_emb")):
                raise UnsupportedModel(
                    f"{checkpoint.name!r}: {kind} models are not made of layers, a norm and rotary "
                    "positions"
                )
            return cls(config, body, given.get("text_config", given))
        except UnsupportedModel:
            raise
        except Exception as error:  # transformers checks sizes by errors of several classes
            why = in_words(error, "transformers")
            raise LoadError(
                f"config.json of {checkpoint.name!r} is not that of a {kind} model: {why}"
            ) from error

    @property
    def gain(self) -> Literal["w", "1 + w"]:
        """What its norms multiply by."""
        return "w" if not self.norm(torch.zeros(1))(torch.ones(1)) else "1 + w"

    def norm(self, weight: Tensor) -> nn.Module:
        """A norm of the architecture's own kind, with this weight."""
        norm = type(self.body.norm)(len(weight), eps=self.config.rms_norm_eps)
        norm.weight = nn.Parameter(weight, requires_grad=False)
        return norm

    def rotary(self, parts: TargetParts) -> nn.Module:
        """Its rotary positions."""
        return type(self.body.rotary_emb)(self.config).to(parts.device)

    def layer(self, checkpoint: Checkpoint, prefix: str, parts: TargetParts) -> nn.Module:
        """The decoder layer, which holds the checkpoint's tensors with this prefix.

        Most are in the target's dtype, and all on its device.

        Raises:
            LoadError: naming a tensor that is missing or has another shape.
        """
        layer, kept = self.body.layers[0], self.body._keep_in_fp32_modules_strict or ()
        tensors = {}
        for name, empty in layer.state_dict().items():
            tensor = _taken(checkpoint, prefix, name, empty.shape)
            precise = any(part in name for part in kept) and parts.dtype.itemsize < 4
            dtype = torch.float32 if precise else parts.dtype
            tensors[name] = tensor.to(parts.device, dtype)
        layer.load_state_dict(tensors, assign=True)
        return layer.requires_grad_(False)


def _taken(checkpoint: Checkpoint, prefix: str, name: str, shape: torch.Size) -> Tensor:
    """A tensor of a layer; transformers holds experts in one tensor, most checkpoints one by one."""
    if not name.startswith(EXPERTS) or checkpoint.has(prefix + name):
        return checkpoint.take(prefix + name, shape)
    parts = name.removeprefix(EXPERTS).split("_")
    count, rows, columns = shape
    parts = ["gate_proj", "up_proj"] if parts[0] == "gate" else ["down_proj"]
    one = (rows // len(parts), columns)
    return torch.stack(
        [
            torch.cat(
                [checkpoint.take(f"{prefix}{EXPERTS}{i}.{part}.weight", one) for part in parts]
            )
            for i in range(count)
        ]
    )


def _model_class(config: Any) -> Callable[[Any], Any]:
    """The class of models of this configuration, without a head."""
    found: Any = MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _to_one_layer(config: Any) -> None:
    """Let a configuration be that of one layer, which is the last of its kind: with experts, if any."""
    config.num_hidden_layers = 1
    for name, value in {
        "layer_types": ["full_attention"],
        "mlp_layer_types": ["sparse"],
        "first_k_dense_replace": 0,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
