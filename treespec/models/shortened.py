"""A model that leaves sublayers of another one out, and has no weights of its own.

A decoder layer adds what its attention and its feed-forward part give to what it is given, so that either
can be left out. The shortened model is made of the same modules: those that hold the list of layers, and
layers that lose one part, are copied without their weights, and everything below is shared. The target
itself is not changed, and both can run side by side. A layer that loses both parts is not run at all.

Layers keep their numbers, by which their rows stand in a cache; those that lose their attention store
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
from treespec.models.routes import Route
from treespec.models.runner import TreeRunner
from treespec.models.sublayers import Sublayer

__all__ = ["Layout", "layer_count", "shortened"]

Layout = tuple[LayerShape | None, ...]

ATTENTION = ("self_attn", "attn", "attention", "self_attention")
"""What transformers calls the attention of a layer."""

MLP = "mlp"


def layer_count(model: PreTrainedModel) -> int:
    """Decoder layers that a model has by its configuration."""
    return model.config.get_text_config(decoder=True).num_hidden_layers


@torch.inference_mode()
def shortened(
    model: PreTrainedModel, route: Route, skip: Collection[Sublayer]
) -> tuple[PreTrainedModel, Layout]:
    """A model without these sublayers, and the layout of its cache.

    What follows the last layer (the final norm and the head) is that of the model. It is tried on a tree of
    three nodes.

    Args:
        model: in eval mode, set to the route's attention.
        route: by which trees enter it.
        skip: sublayers that it has, not all of them.

    Returns:
        A model of the same class that shares every parameter. Its top has the same configuration, so that
        the attention is set for both at once.

    Raises:
        UnsupportedModel: naming the architecture, if its layers are no list that can be cut, if a layer has
            no part of that name, if layers read the rows of others, or if what is left does not run.
    """
    kind = model.config.model_type
    path = _path_of_layers(model)
    layers: Any = model.get_submodule(path)
    whole = {i for i in range(len(layers)) if {(i, "attention"), (i, "mlp")} <= set(skip)}
    parts = [one for one in skip if one.layer not in whole]
    names = {one: _name(kind, layers[one.layer], one) for one in parts}
    try:
        pairs = _giving_pairs(
            model, route, [f"{path}.{n.layer}.{name}" for n, name in names.items()]
        )
        kept: dict[int, nn.Module] = {i: layer for i, layer in enumerate(layers) if i not in whole}
        for one, name in names.items():
            if kept[one.layer] is layers[one.layer]:
                kept[one.layer] = _twin(layers[one.layer])
            nothing = _Nothing(f"{path}.{one.layer}.{name}" in pairs)
            kept[one.layer]._modules[name] = nothing
        made = _with_layers(model, path, kept)
        stored = {i for i in kept if Sublayer(i, "attention") not in skip}
        return made, _tried(made, route, len(layers), stored)
    except torch.OutOfMemoryError:
        raise
    except Exception as problem:  # whatever it raises, the model does not run without these layers
        why = str(problem) if isinstance(problem, TreespecError) else in_words(problem, "its code")
        raise UnsupportedModel(f"{kind} models cannot leave layers out: {why}") from problem


class _Nothing(nn.Module):
    """What adds nothing where a sublayer was."""

    def __init__(self, gives_pair: bool) -> None:
        super().__init__()
        self.gives_pair = gives_pair

    def forward(
        self, hidden_states: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor | tuple[Tensor, None]:
        """Zeros, in the form in which the sublayer gave its output."""
        zeros = torch.zeros_like(hidden_states)
        return (zeros, None) if self.gives_pair else zeros


def _path_of_layers(model: PreTrainedModel) -> str:
    """The name of the list that holds the decoder's layers.

    Raises:
        UnsupportedModel: if there is no such list, or it cannot be cut.
    """
    kind, count = model.config.model_type, layer_count(model)
    paths = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == count
        and all(any(hasattr(layer, part) for part in ATTENTION) for layer in module)
    ]
    if len(paths) != 1 or "." not in paths[0]:
        raise UnsupportedModel(
            f"{kind} models cannot leave layers out: their {count} layers are no single list of modules "
            "with an attention each"
        )
    if getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0):
        raise UnsupportedModel(
            f"{kind} models cannot leave layers out: some of their layers read the rows of others"
        )
    owner: nn.Module = model
    for name in ("", *paths[0].split(".")[:-1]):
        owner = getattr(owner, name) if name else owner
        if "forward" in vars(owner):
            raise UnsupportedModel(
                f"this {kind} model cannot leave layers out: its passes are wrapped (device_map, adapters)"
            )
    return paths[0]


def _name(kind: str, layer: nn.Module, sublayer: Sublayer) -> str:
    """What the part is called in a layer."""
    names = ATTENTION if sublayer.part == "attention" else (MLP,)
    name = next((name for name in names if name in layer._modules), None)
    if name is None:
        raise UnsupportedModel(
            f"{kind} models cannot leave {sublayer} out by itself: their layers have no module for it; "
            "leave out the whole layer"
        )
    return name


def _giving_pairs(model: PreTrainedModel, route: Route, names: Sequence[str]) -> set[str]:
    """Which of these modules give a pair, seen in one pass over a token."""
    if not names:
        return set()
    givers: set[str] = set()
    hooks = []
    for name in names:

        def look(module: nn.Module, given: Any, output: Any, name: str = name) -> None:
            if isinstance(output, tuple):
                givers.add(name)

        hooks.append(model.get_submodule(name).register_forward_hook(look))
    try:
        TreeRunner(model, route).prefill(torch.ones(1, dtype=torch.long, device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    return givers


def _with_layers(model: PreTrainedModel, path: str, kept: dict[int, nn.Module]) -> PreTrainedModel:
    """The model with these layers, by their numbers, instead of its own."""
    *above, name = path.split(".")
    top = owner = _twin(model)
    for part in above:
        inner: Any = owner._modules[part]
        owner._modules[part] = owner = _twin(inner)
    owner._modules[name] = nn.ModuleList(kept.values())
    config = copy.copy(owner.config)
    config.num_hidden_layers = len(kept)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        config.layer_types = [kinds[i] for i in kept]
    owner.config = config
    return top


def _twin(module: Any) -> Any:
    """A module of the same weights and parts, whose list of parts is its own."""
    twin = copy.copy(module)
    twin.__dict__["_modules"] = dict(module._modules)
    return twin


def _tried(model: PreTrainedModel, route: Route, layers: int, stored: Collection[int]) -> Layout:
    """The layout of the model's cache after a prompt and a small tree."""
    runner = TreeRunner(model, route)
    tokens = torch.ones(3, dtype=torch.long, device=model.device)
    runner.prefill(tokens[:2])
    logits = runner.run(tokens, (-1, 0, 0))
    if not torch.isfinite(logits).all():
        raise UnsupportedModel("without them it returns NaN or infinite logits")
    layout = runner.cache.layout
    storing = {i for i, shape in enumerate(layout) if shape is not None}
    if storing != set(stored):
        raise UnsupportedModel(
            f"without them layers {sorted(stored)} should store rows, but layers {sorted(storing)} do"
        )
    return (*layout, *[None] * (layers - len(layout)))
