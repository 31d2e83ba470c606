"""A model that skips sublayers of another model and shares its weights.

The attention and the feed-forward part of a decoder layer each add their output to the residual stream, so
either can be skipped. The shortened model is made of the same modules: the modules that hold the list of
layers, and layers that lose one part, are copied without their weights, and everything below them is
shared. The original model does not change, and both can run side by side. A layer that loses both parts is
not run at all.

Layers keep their numbers, by which a cache finds their rows; layers that lose their attention store
nothing.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from treespec.errors import TreespecError, UnsupportedModel, in_words
from treespec.models.cache import LayerShape
from treespec.models.decoder_layers import ATTENTION, layer_count, list_of_layers
from treespec.models.routes import Route
from treespec.models.runner import TreeRunner
from treespec.models.variants.sublayers import Sublayer

Layout = tuple[LayerShape | None, ...]

MLP = "mlp"


@torch.inference_mode()
def shortened(
    model: PreTrainedModel, route: Route, skip: Collection[Sublayer]
) -> tuple[PreTrainedModel, Layout]:
    """A model without these sublayers, and the layout of its cache.

    The final norm and the head remain those of the model. The result is tested on a tree of three nodes.

    `skip`: sublayers of the model, not all of them. Returns a model of the same class that shares every
    parameter. The outermost module has the same configuration object, so that setting the attention affects
    both models.
    """
    model_type = model.config.model_type
    path, layers = _list_of_layers(model)
    skipped_layers = {i for i in range(len(layers)) if {(i, "attention"), (i, "mlp")} <= set(skip)}
    parts = [sublayer for sublayer in skip if sublayer.layer not in skipped_layers]
    names = {part: _name(model_type, layers[part.layer], part) for part in parts}
    try:
        paths = [f"{path}.{part.layer}.{name}" for part, name in names.items()]
        pair_paths = _returning_pairs(model, route, paths)
        kept: dict[int, nn.Module] = {
            i: layer for i, layer in enumerate(layers) if i not in skipped_layers
        }
        for part, name in names.items():
            if kept[part.layer] is layers[part.layer]:
                kept[part.layer] = shallow_copy(layers[part.layer])
            zero = _Zero(f"{path}.{part.layer}.{name}" in pair_paths)
            kept[part.layer]._modules[name] = zero
        result = _with_layers(model, path, kept)
        storing = {i for i in kept if Sublayer(i, "attention") not in skip}
        return result, _tried(result, route, len(layers), storing)
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # whatever the error, the model does not run without these layers
        why = str(problem) if isinstance(problem, TreespecError) else in_words(problem, "its code")
        raise UnsupportedModel(f"{model_type} models cannot skip layers: {why}") from problem


class _Zero(nn.Module):
    """Replaces a skipped sublayer, and adds nothing to the residual stream."""

    def __init__(self, returns_pair: bool) -> None:
        super().__init__()
        self.returns_pair = returns_pair

    def forward(
        self, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, None]:
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self.returns_pair else zeros


def _list_of_layers(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The list that holds the decoder's layers, some of which can be left out, after its name."""
    model_type = model.config.model_type
    try:
        path, layers = list_of_layers(model)
        if len(layers) != layer_count(model):
            raise UnsupportedModel("layers of this one were left out already")
    except UnsupportedModel as problem:
        raise UnsupportedModel(f"{model_type} models cannot skip layers: {problem}") from None
    if getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0):
        raise UnsupportedModel(
            f"{model_type} models cannot skip layers: some of their layers read the rows of others"
        )
    owner: nn.Module = model
    for name in ("", *path.split(".")[:-1]):
        owner = getattr(owner, name) if name else owner
        if "forward" in vars(owner):
            raise UnsupportedModel(
                f"this {model_type} model cannot skip layers: its passes are wrapped (device_map, adapters)"
            )
    return path, layers


def _name(model_type: str, layer: nn.Module, sublayer: Sublayer) -> str:
    """The name of a sublayer's module within its layer."""
    names = ATTENTION if sublayer.part == "attention" else (MLP,)
    name = next((name for name in names if name in layer._modules), None)
    if name is None:
        raise UnsupportedModel(
            f"{model_type} models cannot skip {sublayer} alone: their layers have no module for it; "
            "skip the whole layer"
        )
    return name


def _returning_pairs(model: PreTrainedModel, route: Route, paths: Sequence[str]) -> set[str]:
    """Those of the modules that return a pair, found by a pass over one token."""
    if not paths:
        return set()
    returning_pairs: set[str] = set()
    hooks = []
    for path in paths:

        def hook(module: nn.Module, inputs: Any, output: Any, path: str = path) -> None:
            if isinstance(output, tuple):
                returning_pairs.add(path)

        hooks.append(model.get_submodule(path).register_forward_hook(hook))
    try:
        TreeRunner(model, route).prefill(torch.ones(1, dtype=torch.long, device=model.device))
    finally:
        for handle in hooks:
            handle.remove()
    return returning_pairs


def _with_layers(model: PreTrainedModel, path: str, kept: dict[int, nn.Module]) -> PreTrainedModel:
    """The model with the kept layers, by number, instead of all of its layers."""
    *parents, name = path.split(".")
    top = owner = shallow_copy(model)
    for parent in parents:
        inner: Any = owner._modules[parent]
        owner._modules[parent] = owner = shallow_copy(inner)
    owner._modules[name] = nn.ModuleList(kept.values())
    config = copy.copy(owner.config)
    config.num_hidden_layers = len(kept)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        config.layer_types = [kinds[i] for i in kept]
    owner.config = config
    return top


def shallow_copy(module: Any) -> Any:
    """A shallow copy of a module, with the same weights and submodules but a registry of its own."""
    twin = copy.copy(module)
    twin.__dict__["_modules"] = dict(module._modules)
    return twin


def _tried(model: PreTrainedModel, route: Route, layers: int, storing: Collection[int]) -> Layout:
    """Run a prompt and a small tree, and return the layout of the model's cache."""
    runner = TreeRunner(model, route)
    tokens = torch.ones(3, dtype=torch.long, device=model.device)
    runner.prefill(tokens[:2])
    logits = runner.run(tokens, (-1, 0, 0)).logits
    if not torch.isfinite(logits).all():
        raise UnsupportedModel("without them it returns NaN or infinite logits")
    layout = runner.cache.layout
    stored = {i for i, shape in enumerate(layout) if shape is not None}
    if stored != set(storing):
        raise UnsupportedModel(
            f"without them layers {sorted(storing)} should store rows, but layers {sorted(stored)} do"
        )
    return (*layout, *[None] * (layers - len(layout)))
