"""The decoder layers of a model, compiled one by one, with code that they share.

Operation by operation a layer is some 40 kernels, most of which move a few kilobytes. The compiler fuses
norms, rotary embedding, residuals, activations and the writing of cache rows, so that what remains is
four products, the attention and a handful of kernels. Layers differ in their weights only, which are
arguments of the code: one compilation serves all layers of a kind, for each bucket of rows. Cache rows,
the tree and its size are arguments too, with sizes that the code leaves open: nothing is compiled again
when a cache grows or a tree is run in parts.

Attention is the operator `treespec::tree_attention`. Final norm and rotary embedding are compiled in the
same way; embedding and head are one operation each, and stay.

The code stands in for the model's layers only while a static pass runs (`standing_in`): prompts and plain
calls do not see it.

Predicted for an H100 (bfloat16, T = 0, 1 to 8 nodes behind 512 tokens), before it ran on one: a layer is
4 products, 1 attention and 5 other kernels of 2 us each. At 8B, 32 layers: products 5.3 ms (5.57 in seven
per layer, measured), attention 32 x 7 us, the rest 0.3 ms, outside the layers 0.05 ms: 5.9 ms, 1.40 of
the bytes (4.20 ms). At 1B, 16 layers: products 0.90 ms (1.03 measured), attention 0.11, the rest 0.16,
outside 0.05: 1.22 ms, 2.1 of the bytes (0.59 ms).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, no_type_check

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from attention_masks.tree_attention import BufferedPass
from attention_masks.tree_attention.operator import tree_attention_operator
from treespec.errors import UnsupportedModel
from treespec.models.attention import refuse_mask
from treespec.models.cache import TreeCache
from treespec.models.decoder_layers import ATTENTION, list_of_layers
from treespec.models.passes.merged_projections import (
    Group,
    merge_projections,
    merged_projections,
    without_repetitions,
)

PASS = "treespec_pass"
"""The argument by which layers are given the attention of a pass (`treespec.models.attention`)."""

OPTIONS = {"emulate_precision_casts": True}
"""Round where the model's own operations do, so that near ties are more often decided as by them."""

ONE_OPERATION = (nn.Embedding, nn.ModuleList, nn.Dropout, nn.Linear)
"""Modules beside the layers that are not compiled."""


class Place(NamedTuple):
    """The tensors of one layer of a pass besides its weights.

    Args:
        keys: `[B, Hkv, S, D]`, all rows of the cache.
        values: the same of the values.
        slots: where the rows of the pass go.
        arrays: the buffer that describes the tree.
        counters: those of the pass (`AnyPass.counters`).
    """

    keys: Tensor
    values: Tensor
    slots: Tensor
    arrays: Tensor
    counters: Tensor


class CompiledLayers:
    """Compiled layers, for any number of caches of a model.

    Nothing is compiled here, but at the first pass of each number of rows. Projections that read the same
    rows are merged in the model's own memory.

    Args:
        model: a model in eval mode, set to our attention.

    Raises:
        UnsupportedModel: if its layers cannot be found.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        path, layers = list_of_layers(model)
        self._layers = [(layer, _index(layer)) for layer in layers]
        owner = model.get_submodule(path.rpartition(".")[0])
        self._beside = [m for m in owner.children() if not isinstance(m, ONE_OPERATION)]
        self._merged = [merge_projections(layer) for layer in layers]
        self._code: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self.compilations = 0
        """Pieces of code made for layers: one for each kind of layer and number of rows."""

    @contextmanager
    def standing_in(self, cache: TreeCache, tree: BufferedPass) -> Iterator[None]:
        """Context in which the model's layers run as compiled code.

        Args:
            cache: the cache of the pass, in its `static` context.
            tree: the tree.
        """
        rows, slots = tree.row_count, cache.slots
        assert slots is not None, "the cache is in no `static` context"
        if rows not in self._code:
            self._code[rows] = self._compiled(_layer), self._compiled(_module)
        of_layer, of_module = self._code[rows]
        arrays, counters = tree.arrays(slots.device).buffer, tree.counters(slots.device)
        torch._dynamo.mark_dynamic(arrays, 1)
        stand_ins: dict[Any, Any] = {module: partial(of_module, module) for module in self._beside}
        merged: list[Group] = []
        for (layer, index), groups in zip(self._layers, self._merged, strict=True):
            stored: Any = cache.layers[index]
            if stored.keys is None:  # its attention was taken out
                continue
            for each in (stored.keys, stored.values):
                torch._dynamo.mark_dynamic(each, 2)
            place = Place(stored.keys, stored.values, slots, arrays, counters)
            stand_ins[layer] = partial(_stand_in, of_layer, layer, cache, place)
            merged += groups
        try:
            with merged_projections(merged):
                for module, stand_in in stand_ins.items():
                    module.forward = stand_in
                yield
        finally:
            for module in stand_ins:
                module.__dict__.pop("forward", None)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            from torch._inductor.compile_fx import compile_fx

            without_repetitions(graph)
            self.compilations += function is _layer
            code: Any = compile_fx(graph, inputs, config_patches=OPTIONS)
            return code

        # Functions that share a code object share compiled code, and the limit of its number.
        code: Any = getattr(function, "__code__")  # noqa: B009
        own = FunctionType(code.replace(co_name=f"{code.co_name}_{id(backend)}"), globals())
        return torch.compile(own, fullgraph=True, dynamic=False, backend=backend)


def _index(layer: nn.Module) -> int:
    """The number of a layer in the cache."""
    for name in ATTENTION:
        index = getattr(getattr(layer, name, None), "layer_idx", None)
        if index is not None:
            return index
    raise UnsupportedModel("its layers do not state which rows of the cache are theirs")


def _stand_in(
    run: Callable[..., Any],
    layer: nn.Module,
    cache: TreeCache,
    place: Place,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call the code of a layer with tensors in place of the cache and the pass."""
    given = dict(enumerate(args)) | kwargs
    taken_as = next((name for name, value in given.items() if value is cache), None)
    if taken_as is None or PASS not in given:
        raise UnsupportedModel("its layers are not given the cache and the tree")
    rest = {name: given[name] for name in kwargs if name not in (PASS, taken_as)}
    first = [None if value is cache else value for value in args]
    return run(layer, place, taken_as, first, rest)


@no_type_check  # the compiler cannot trace the type checks of the tests
def _layer(
    layer: nn.Module, place: Place, taken_as: int | str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """What is compiled: a layer's own `forward`, which stands behind that of its class."""
    cache = _Rows(place)
    if isinstance(taken_as, int):
        args = [cache if i == taken_as else value for i, value in enumerate(args)]
    else:
        kwargs = {**kwargs, taken_as: cache}
    return type(layer).forward(layer, *args, **{**kwargs, PASS: _Attention(place)})


@no_type_check
def _module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return type(module).forward(module, *args, **kwargs)


@no_type_check
class _Rows:
    """The cache of one layer inside its code: writes the rows of the pass, and returns all."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def update(
        self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        place = self._place
        place.keys.index_copy_(2, place.slots, keys)
        place.values.index_copy_(2, place.slots, values)
        return place.keys, place.values


@no_type_check
class _Attention:
    """The operator, over a tree in device memory."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        scale: float | None,
        softcap: float | None,
        window: int | None,
        sinks: Tensor | None,
    ) -> Tensor:
        refuse_mask(mask, module)
        tree = self._place.arrays, self._place.counters
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        out = tree_attention_operator(query, key, value, *tree, sinks, scale, softcap, window)
        return out.transpose(1, 2)
