"""The pass over nodes of a tree as a function of tensors alone, compiled once for all caches of a model.

Between the operations of an ordinary pass there is Python: of a small model it takes most of the time, and
of a large one what a tree could save. `torch.compile` leaves one call. One graph is made, in which the
number of nodes, the rows of the cache and its capacity are free: no pass is padded, no bucket is compiled
later, and caches of all methods go through it. Models whose code asks how many nodes there are have two.

What a pass is about is read from three small tensors: tokens, (committed rows, first node to run), and the
tree's intervals (`attention_masks.topology`) with its depths. Positions, rows and mask are computed from
them inside the graph. The mask is additive and shared by all layers of one window. Of a mixture of
experts and of layers with a softcap or sinks, what the compiler would make for some sizes only is promised
(`MOST_NODES`) or written otherwise (`compiled_attention`). Probabilities and draws are made outside
(`treespec.draft.heads`).
"""

import logging
import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, no_type_check

import psutil
import torch
from jaxtyping import Int32
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from attention_masks import topology
from treespec.errors import Unavailable, UnsupportedModel, in_words
from treespec.kernels.calls import calls
from treespec.models.cache import LayerShape, TreeCache
from treespec.models.compiled_attention import BEYOND_ALL_RANKS, MaskedAttention, Seen
from treespec.models.direct_call import DirectCall
from treespec.models.packed_layers import packed_linears
from treespec.models.packed_weights import PackedWeights
from treespec.models.routes import OwnAttention, Route

__all__ = [
    "CompiledPass",
    "code_folder",
    "missing_for_compiling",
    "too_large_to_pack",
    "tree_arrays",
]

log = logging.getLogger("treespec")

OPTIONS = {"cpp_wrapper": True, "cpp.min_chunk_size": 16384}
"""No Python between kernels, and no threads for small ones: of a few rows they took longer to begin."""

LARGEST_SHARE_OF_FREE_MEMORY = 0.25
"""Of the memory that is free: packed copies of weights that take more are not made."""

CHANGING_ARGUMENTS = 4
"""Arguments that change from pass to pass: tokens, place, tree, slots."""

MOST_NODES = 2048
"""Of a compiled pass: of mixtures of experts, the compiler counts in 16 bits."""


class CompiledPass:
    """The compiled graph of a model, for any number of caches; two of some models.

    Args:
        model: in eval mode, on the CPU, set to the route's attention. Its weights must stay as they are:
            packed copies do not follow.
        route: how the model is told what each row may see.
        layout: of its caches.
        packed: copies of weights, of earlier graphs too; this one's are added.

    Raises:
        Unavailable: if there is no C++ compiler, or nowhere to compile to.
        UnsupportedModel: if the model cannot be compiled as a whole.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        route: Route,
        layout: Sequence[LayerShape | None],
        packed: PackedWeights,
    ) -> None:
        if (missing := missing_for_compiling()) is not None:
            raise Unavailable(missing)
        if model.device.type != "cpu":
            raise Unavailable(
                f"compiled passes are for the CPU, but the model is on {model.device}: there, choose "
                "passes='captured' for the target"
            )
        self._model, self._route, self._layout = model, route, layout
        self.unpacked = too_large_to_pack(model)
        """Why weights are not packed; None if they are."""
        begin, before = time.perf_counter(), packed.bytes
        layers = packed_linears(model, packed) if self.unpacked is None else nullcontext()
        with packed.shared(), layers:
            self._one, self._many = self._compiled(OPTIONS | calls())
        self.packed_bytes = packed.bytes - before
        """What copies of weights take that graphs of this model did not have before."""
        self.seconds = time.perf_counter() - begin
        """That compiling took."""
        self._places = [
            (module._parameters, name)
            for module in model.modules()
            for name, weight in module._parameters.items()
            if weight is not None
        ]
        self._weights = self._seen_weights()

    def bound(self, cache: TreeCache) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        """The passes over one node and over more in this cache, as long as its memory stays.

        Both take tokens `[T]`, place `[2]`, tree `[3, N]` and slots `[S]`, as `tree_arrays` explains, and
        give logits `[T, V]`; they write rows to the cache.
        """
        rows = _rows(cache, self._layout)
        return self._one.bound(rows), self._many.bound(rows)

    def require_weights(self) -> None:
        """Refuse to run where the graphs would not read the weights that the model has now.

        Raises:
            UnsupportedModel: if some are others, or elsewhere, or of another dtype. Values that changed in
                place are not seen.
        """
        if self._seen_weights() != self._weights:
            raise UnsupportedModel(
                "the model's weights were replaced after its passes were compiled: load the pair anew"
            )

    def _seen_weights(self) -> tuple[list[int], list[torch.dtype]]:
        weights: Any = [owner[name] for owner, name in self._places]
        return [*map(Tensor.data_ptr, weights)], [*map(attrgetter("dtype"), weights)]

    def _compiled(self, options: dict[str, Any]) -> tuple[DirectCall, DirectCall]:
        """The graphs of a single node and of more: the same one where that can be."""
        try:
            return (self._graph(options, 3, 5, alone=True),) * 2
        except (TorchDynamoException, UnsupportedModel) as problem:
            # The model asks how many there are.
            kind = self._model.config.model_type
            log.info(
                "%s models are compiled as two graphs: %s", kind, in_words(problem, "the compiler")
            )
            one = self._graph(options, 1, 6, alone=False)
            return one, self._graph(options, 3, 5, alone=False)

    def _graph(self, options: dict[str, Any], nodes: int, known: int, alone: bool) -> DirectCall:
        """One graph. The examples differ in all that varies, and agree in nothing else."""
        example = self._example(nodes, known, committed=13, capacity=320)
        other = self._example(nodes + (nodes > 1), known + 2, committed=29, capacity=448)
        fixed = len(example) - CHANGING_ARGUMENTS
        return DirectCall(
            self._pass(fixed // 2),
            example,
            other,
            fixed=fixed,
            below=[((3, 0), (CHANGING_ARGUMENTS, 2))],  # slots, and the rows of any layer
            at_most={(0, 0): MOST_NODES},
            alone=(0, 0) if alone else None,
            options=options,
            frozen=self.unpacked is None,
        )

    @torch.inference_mode()
    def _example(self, nodes: int, known: int, committed: int, capacity: int) -> list[Tensor]:
        cache = TreeCache(self._layout)
        cache.begin(0, capacity)
        tokens = torch.ones(nodes, dtype=torch.long)
        tree = tree_arrays(tuple(range(-1, known - 1)))
        slots = torch.arange(committed + known)
        return [
            tokens,
            torch.tensor([committed, known - nodes]),
            tree,
            slots,
            *_rows(cache, self._layout),
        ]

    def _pass(self, layers: int) -> Callable[..., Tensor]:
        """The function that is compiled."""
        model, route, layout = self._model, self._route, self._layout
        stored = [i for i, shape in enumerate(layout) if shape is not None]

        def tree_pass(
            tokens: Tensor, place: Tensor, tree: Tensor, slots: Tensor, *rows: Tensor
        ) -> Tensor:
            count, used = tokens.shape[0], slots.shape[0]
            torch._check(count >= 1)
            torch._check(count <= MOST_NODES)
            torch._check(used < rows[0].shape[2])
            length, first = place[0], place[1]
            nodes = first + torch.arange(count, device=tokens.device)
            seen = Seen(tree, nodes, slots - length, length)
            cache_rows: list[tuple[Tensor, Tensor] | None] = [None] * len(layout)
            for k, i in enumerate(stored):
                cache_rows[i] = (rows[k], rows[layers + k])
            cache = Cache(layers=[_Rows(pair, length + nodes, used) for pair in cache_rows])
            how: dict[str, Any]
            if isinstance(route, OwnAttention):
                how = {"treespec_pass": MaskedAttention(seen)}
            else:
                how = {"attention_mask": seen.bias(None, model.dtype)[None, None]}
            output = model(
                input_ids=tokens[None],
                position_ids=(tree[2][nodes].long() + length)[None],
                past_key_values=cache,
                use_cache=True,
                **how,
            )
            return output.logits[0]

        return tree_pass


def too_large_to_pack(model: PreTrainedModel) -> str | None:
    """Why no copies of a model's weights are made; None if there is room for them."""
    copies = sum({id(p): p.nbytes for p in model.parameters()}.values())
    free = psutil.virtual_memory().available
    if copies <= LARGEST_SHARE_OF_FREE_MEMORY * free:
        return None
    return (
        f"packed copies of its weights would take {copies / 2**20:,.0f} MiB, more than "
        f"{LARGEST_SHARE_OF_FREE_MEMORY:.0%} of the {free / 2**20:,.0f} MiB of memory that are free"
    )


def code_folder() -> Path:
    """Where the compiler writes code, and finds what earlier processes wrote."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())


def missing_for_compiling() -> str | None:
    """Why nothing can be compiled here; None if it can be tried."""
    compiler = next(iter(shlex.split(os.environ.get("CXX", ""))), "g++")
    if shutil.which(compiler) is None:
        return (
            f"compiled passes need a C++ compiler, but {compiler!r} is not found: install one (the package "
            "g++ of most systems), or name one by the environment variable CXX"
        )
    folder = code_folder()
    above = next(place for place in (folder, *folder.parents) if place.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        return (
            f"compiled passes are written to {str(folder)!r}, which cannot be written to: name another "
            "folder by the environment variable TORCHINDUCTOR_CACHE_DIR"
        )
    return None


@lru_cache(maxsize=1024)
def tree_arrays(parents: tuple[int, ...]) -> Int32[Tensor, "3 N"]:
    """Of all nodes of a tree: depth-first rank, end of the subtree's ranks, depth.

    A root alone has a node more that is nobody's, since compiled code of sizes that vary is of 2 and more.
    """
    tree = topology(parents)
    with torch.inference_mode(False):
        arrays = torch.stack([tree.pre, tree.end, tree.depth])
        if tree.size == 1:
            arrays = torch.cat([arrays, torch.full_like(arrays, BEYOND_ALL_RANKS)], dim=1)
    return arrays


@no_type_check
class _Rows(CacheLayerMixin):
    """The cache of one layer inside a graph: rows go to slots, and all rows that are used come back."""

    is_sliding = False

    def __init__(self, rows: tuple[Tensor, Tensor] | None, slots: Tensor, used: int) -> None:
        super().__init__()
        if rows is not None:
            self.keys, self.values = rows
        self.is_initialized = True
        self._slots, self._used = slots, used

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The rows are there."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows of this pass; return all rows up to the last of them."""
        keys, values = self.keys, self.values
        assert keys is not None
        assert values is not None
        keys.index_copy_(2, self._slots, key_states)
        values.index_copy_(2, self._slots, value_states)
        return keys[:, :, : self._used], values[:, :, : self._used]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a pass sees at most, and the offset of the first."""
        return self._used, 0

    def get_seq_length(self) -> int:
        """Rows before those of the pass."""
        return self._used - self._slots.shape[0]

    def get_max_length(self) -> int:
        """-1: the memory grows."""
        return -1


def _rows(cache: TreeCache, layout: Sequence[LayerShape | None]) -> list[Tensor]:
    """Keys of all layers that store some in this layout, then values."""
    every: list[Any] = [*cache.layers]
    layers = [layer for layer, shape in zip(every, layout, strict=True) if shape is not None]
    return [layer.keys for layer in layers] + [layer.values for layer in layers]
