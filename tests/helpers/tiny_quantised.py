"""Tiny models with quantised weights: a checkpoint of compressed-tensors, and a layer that mixes rows."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.models.quantised import without_bars

SCALES = {"weights only": None, "a scale for each row": "token", "one scale": "tensor"}
"""Strategies of compressed-tensors for activations."""


def write_compressed(model: PreTrainedModel, folder: Path, activations: str) -> Path:
    """Save a model with int8 weights, a scale for each output, in the format of compressed-tensors."""
    from compressed_tensors import compressors, quantization

    strategy = SCALES[activations]
    int8: Any = {"num_bits": 8, "type": "int", "symmetric": True}
    rows = strategy and quantization.QuantizationArgs(**int8, strategy=strategy, dynamic=True)
    scheme = quantization.QuantizationScheme(
        targets=["Linear"],
        weights=quantization.QuantizationArgs(**int8, strategy="channel"),
        input_activations=rows,
    )
    settings = quantization.QuantizationConfig(
        config_groups={"all": scheme}, ignore=["lm_head"], quantization_status="compressed"
    )
    with without_bars():
        quantization.apply_quantization_config(model, settings)
        for layer in model.modules():
            if getattr(layer, "quantization_scheme", None) is not None:
                layer.weight_scale.data = layer.weight.abs().amax(1, keepdim=True) / 127
        compressors.ModelCompressor(quantization_config=settings).compress_model(model)
    model.save_pretrained(folder, state_dict=dict(model.state_dict()))
    file = folder / "config.json"
    data = json.loads(file.read_text()) | {"quantization_config": settings.model_dump(mode="json")}
    file.write_text(json.dumps(data))
    return folder


class OneScale(nn.Linear):
    """A layer whose activations are rounded to 8 bits with one scale: the maximum over all rows."""

    def forward(self, input: Tensor) -> Tensor:
        scale = input.abs().amax() / 127
        return super().forward((input / scale).round() * scale)


class RowScales(nn.Linear):
    """The same with a scale for each row."""

    steps = 127

    def forward(self, input: Tensor) -> Tensor:
        scale = input.abs().amax(-1, keepdim=True).clamp_min(1e-9) / self.steps
        return super().forward((input / scale).round() * scale)


def with_row_scales(model: PreTrainedModel, steps: int) -> PreTrainedModel:
    """The model with such layers only, which round to this many steps on each side of 0."""
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = RowScales
            layer.steps = steps
    return model


def with_one_scale(model: PreTrainedModel, layer: int = 1) -> PreTrainedModel:
    """The model with one such layer."""
    found: Any = model
    mlp = found.model.layers[layer].mlp
    planted = OneScale(mlp.up_proj.in_features, mlp.up_proj.out_features, bias=False)
    planted.weight = mlp.up_proj.weight
    mlp.up_proj = planted
    return model
