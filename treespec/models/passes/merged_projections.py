"""Projections that read the same rows as one product: queries, keys and values; gate and up.

From one row to a few dozen rows a product takes as long as reading its matrix, plus a few microseconds for
the launch and for the first and last tiles. One product instead of three (or two) pays those once.

The matrices of a group are moved side by side into one tensor, and the weights of the layers become views
of its rows: nothing is stored twice, and names, shapes and the number of parameters do not change. Other
passes read the views as before; where the layers are compiled, each computes the product of all and takes
its part, and the repetitions are removed from the graph (`without_repetitions`).

Not merged: weights that are quantised, sharded or on several devices, layers whose `forward` was replaced,
subclasses of `nn.Linear`, and pairs of which only one has a bias.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, no_type_check

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from treespec.models.passes.packed_layers import TOGETHER


class Group(NamedTuple):
    """Layers that read the same rows, and their weights in one tensor.

    Args:
        layers: the layers, in the order of their outputs.
        weight: `[outputs of all, inputs]`.
        bias: `[outputs of all]`, if they have biases.
    """

    layers: tuple[Any, ...]
    weight: Tensor
    bias: Tensor | None


def merge_projections(model: nn.Module) -> list[Group]:
    """Move the weights of each group side by side, if they are not yet, and return the groups."""
    groups = []
    for parent in model.modules():
        for names in TOGETHER:
            layers: tuple[Any, ...] = tuple(getattr(parent, name, None) for name in names)
            if all(map(_fits, layers)) and len({_kind(layer) for layer in layers}) == 1:
                weight = _side_by_side([layer.weight for layer in layers])
                biases = [layer.bias for layer in layers]
                bias = None if biases[0] is None else _side_by_side(biases)
                groups.append(Group(layers, weight, bias))
    return groups


@contextmanager
def merged_projections(groups: list[Group]) -> Iterator[None]:
    """Context in which each layer of a group computes the product of all, and takes its part."""
    layers = [layer for group in groups for layer in group.layers]
    try:
        for group in groups:
            begin = 0
            for layer in group.layers:
                end = begin + layer.out_features
                layer._buffers |= {"merged": group.weight, "merged_bias": group.bias}
                layer.forward = _part(begin, end).__get__(layer)
                begin = end
        yield
    finally:
        for layer in layers:
            for name in ("merged", "merged_bias"):
                layer._buffers.pop(name, None)
            layer.__dict__.pop("forward", None)


def without_repetitions(graph: torch.fx.GraphModule) -> None:
    """Compute products of the same rows with the same matrix once."""
    known: dict[Any, torch.fx.Node] = {}
    for node in [*graph.graph.nodes]:
        if node.op == "call_function" and node.target is F.linear and not node.kwargs:
            first = known.setdefault(node.args, node)
            if first is not node:
                node.replace_all_uses_with(first)
                graph.graph.erase_node(node)
    graph.recompile()


def _fits(layer: Any) -> bool:
    if type(layer) is not nn.Linear or "forward" in layer.__dict__:
        return False
    weights = [weight for weight in (layer.weight, layer.bias) if weight is not None]
    return all(type(w) is nn.Parameter and type(w.data) is Tensor for w in weights)


def _kind(layer: Any) -> tuple[Any, ...]:
    weight = layer.weight
    return weight.shape[1], weight.dtype, weight.device, layer.bias is None


def _side_by_side(weights: list[nn.Parameter]) -> Tensor:
    """One tensor whose rows are those of all weights, which become views of it."""
    first, count = weights[0].detach(), sum(len(weight) for weight in weights)
    size = (count, *first.shape[1:])
    if _adjacent(weights):
        return first.as_strided(size, first.stride())
    with torch.inference_mode(False):
        merged = torch.cat([weight.detach() for weight in weights])
    for weight, part in zip(weights, merged.split([len(w) for w in weights]), strict=True):
        weight.data = part
    return merged


def _adjacent(weights: list[nn.Parameter]) -> bool:
    """Whether each weight begins in memory where the one before it ends."""
    if len({weight.untyped_storage().data_ptr() for weight in weights}) > 1:
        return False
    ends = [weight.storage_offset() + weight.numel() for weight in weights]
    begins = [weight.storage_offset() for weight in weights]
    return ends[:-1] == begins[1:] and all(weight.is_contiguous() for weight in weights)


@lru_cache
@no_type_check  # the compiler cannot trace the type checks of the tests
def _part(begin: int, end: int) -> Callable[..., Tensor]:
    """The `forward` of a layer that takes outputs begin .. end - 1; layers share it, and compiled code."""

    def forward(self: Any, input: Tensor) -> Tensor:
        return F.linear(input, self.merged, self.merged_bias)[..., begin:end]

    return forward
