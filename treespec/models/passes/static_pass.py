"""A pass over nodes of a tree in fixed memory, which a captured CUDA graph can repeat.

A graph repeats the same operations on the same addresses, so everything that changes from step to step must
be read on the device. Here this is one integer buffer (`attention_masks.PassArrays`: prefix length, depths,
intervals of the tree) and the tokens; of a trained head also the states that it reads beside them. The pass
computes positions and cache rows from the buffer; its attention is the Triton kernel, which reads lengths
and tree from the buffer too; and the cache returns all its rows (`TreeCache.static`). The nodes of a pass
are padded to a bucket. The attention skips padding nodes (it reads nothing for them, and their output is
0), and no node attends to them. Their cache rows lie behind those of the tree, where the next pass writes.

A drafter runs a tree in parts, level by level: the nodes from some node on, which attend to nodes of
earlier passes. Such a pass gets the whole tree so far, and the range of nodes that it runs.

This file contains no CUDA graphs: it is an ordinary pass, and runs in Triton's interpreter too.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attention_masks import Topology, topology
from attention_masks.tree_attention import BufferedPass, PassArrays
from attention_masks.tree_attention.pass_arrays import HEADER, fill
from treespec.errors import InvalidTree
from treespec.models.attention import TreeAttention
from treespec.models.cache import LayerShape, TreeCache, cache_argument
from treespec.models.hidden_states import HiddenStates
from treespec.models.passes.compiled_layers import CompiledLayers
from treespec.models.passes.given_states import state_width, states_or_stand_ins
from treespec.models.passes.static_joined import StaticTogether
from treespec.models.passes.static_sizes import Size, size_of
from treespec.models.routes import Route
from treespec.models.runner import TreeRunner
from treespec.models.waiting import Nodes
from treespec.step import Scores


class Kind(NamedTuple):
    """What a pass, and so its graph, is made for.

    Args:
        size: its capacity.
        states: the features that it returns (`Features.states`).
    """

    size: Size
    states: tuple[int | str, ...] = ()


class StaticPass:
    """Fixed memory for passes over nodes of trees; call `load`, then `run`.

    Args:
        model: a model set to our attention.
        cache: a cache with allocated rows. The pass is valid as long as `cache.memory` does not change.
        size: capacity of the pass.
        states: the features that it returns.
        layers: the layers of the model as compiled code; by default they run operation by operation.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: TreeCache,
        size: Size,
        states: HiddenStates,
        layers: CompiledLayers | None = None,
    ) -> None:
        self.model, self.cache, self.size, self.states = model, cache, size, states
        self._layers = layers
        self._cache_argument = cache_argument(model)
        device, width = model.device, state_width(model)
        with torch.inference_mode(False):  # compiled code is for tensors of one mode
            self.input_ids = torch.zeros(1, size.rows, dtype=torch.long, device=device)
            self.arrays = PassArrays.empty(1, size.rows, size.nodes, device)
            self._index = torch.arange(size.rows, device=device)
            self.given: Tensor | None = None
            if width:
                self.given = torch.zeros(1, size.rows, width, dtype=model.dtype, device=device)
        self._tree = BufferedPass(self.arrays, cache.capacity)
        self._attention = _KernelAttention(self._tree)

    @property
    def kind(self) -> Kind:
        """What it is made for."""
        return Kind(self.size, self.states.states)

    @torch.inference_mode()
    def load(
        self,
        tokens: Int[Tensor, "T"],
        tree: Topology,
        prefix_len: int,
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> None:
        """Copy nodes after `prefix_len` committed rows into the buffers, without waiting for the device.

        Args:
            tokens: tokens of the nodes to run, on the model's device. Tokens of earlier trees remain behind
                them as padding.
            tree: the tree of these nodes and of those that have run.
            prefix_len: number of committed rows.
            first: first node to run; all later nodes are run too.
            states: what a head reads beside the tokens; by default those for tokens alone.

        Raises:
            InvalidTree: if the cache has too few rows; on the device this would go unnoticed.
        """
        rows = self.size.rows
        if prefix_len + first + rows > self.cache.capacity:
            raise InvalidTree(
                f"{prefix_len + first} rows and a bucket of {rows} nodes do not fit into a cache of "
                f"{self.cache.capacity} rows: call `cache.begin` first"
            )
        # Every copy has its own pinned memory, which the allocator does not reuse before it was read.
        pinned = self.arrays.buffer.is_cuda
        buffer = torch.empty(self.arrays.buffer.shape, dtype=torch.int32, pin_memory=pinned)
        line = buffer.numpy()
        line[:] = _filled(tree.parents, self.size, first)
        line[0, 0] = prefix_len
        self.arrays.buffer.copy_(buffer, non_blocking=True)
        self.input_ids[0, : len(tokens)].copy_(tokens, non_blocking=True)
        if self.given is not None:
            self.given[0, : len(tokens)] = states_or_stand_ins(self.model, states, tokens)

    @torch.inference_mode()
    def run(self) -> Scores:
        """Run the loaded nodes: write their rows to the cache; return logits and features of all rows.

        These include those of padding. The buffers do not change, so a run can be repeated.
        """
        arrays, rows = self.arrays.buffer[0].long(), self.size.rows
        prefix_len, first = arrays[0], arrays[HEADER]
        depths = arrays[HEADER + 2 * rows : HEADER + 3 * rows]  # 0 for padding
        slots = self._index + prefix_len + first
        read = {} if self.given is None else {"states": self.given}
        with self.cache.static(slots), self._compiled(), self.states.watched():
            output = self.model(
                input_ids=self.input_ids,
                position_ids=(depths + prefix_len)[None],
                **{self._cache_argument: self.cache},
                use_cache=True,
                **read,
                treespec_pass=self._attention,
            )
            return Scores(output.logits[0], self.states.taken())

    def _compiled(self) -> AbstractContextManager[None]:
        layers = self._layers
        return nullcontext() if layers is None else layers.standing_in(self.cache, self._tree)


@runtime_checkable
class Work(Protocol):
    """Several passes over a tree, and what lies between them, in fixed memory: one graph if captured."""

    model: PreTrainedModel
    """The model; its device."""

    def run(self) -> Any:
        """Do it; what is loaded does not change, so it can be repeated."""


@runtime_checkable
class WorkKind(Protocol):
    """What a work is made for; equal kinds give equal works. Hashable."""

    @property
    def rows(self) -> int:
        """Rows behind the committed ones that it writes, padding included."""

    def make(self, cache: TreeCache, new_pass: Callable[[Size], StaticPass]) -> Work:
        """Make it of new passes over this cache; valid as long as `cache.memory` does not change."""


class StaticRunner(TreeRunner):
    """Runs nodes of trees by static passes, one per size; prompts by ordinary passes.

    Nodes of several texts are run by what their runners have in common (`together`). A text alone keeps the
    passes over its own cache: they read no table of addresses, and are there already if it was decoded
    outside of a batch.

    Unlike with `TreeRunner`, the next pass of the same size may overwrite the returned scores; callers must
    copy what they keep.
    """

    any_cache = False

    def __init__(
        self,
        model: PreTrainedModel,
        route: Route,
        layout: Sequence[LayerShape | None] = (),
        together: StaticTogether | None = None,
        layers: CompiledLayers | None = None,
    ) -> None:
        super().__init__(model, route, layout)
        self._layers = layers
        self._shared = together
        self._passes: dict[Kind, StaticPass] = {}
        self._works: dict[WorkKind, Any] = {}
        self._memory: tuple[int, ...] = ()

    @torch.inference_mode()
    def run(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> Scores:
        """Logits after nodes first .. first + T - 1; see `TreeRunner.run`.

        Raises:
            InvalidTree: if parents, tokens and the nodes run so far do not fit together.
            UnsupportedModel: if the model's attention was changed in the meantime.
        """
        count = len(tokens)
        self._require_nodes(count, len(parents), first)
        self._require_route()
        tree = topology(parents)
        static = self._static(first, size_of(first, count))
        static.load(tokens, tree, self.cache.length, first, states)
        scores = self._launch(static)
        self._parents = tree.parents
        features = None if scores.features is None else scores.features[:count]
        return Scores(scores.logits[:count], features)

    @property
    def together(self) -> StaticTogether | None:
        """What runs nodes of several texts, which runners share; None if each runs alone."""
        return self._shared

    @property
    def joins(self) -> Hashable:
        """Passes of runners with equal values can be run as one; None if each must run alone."""
        together = self.together
        return None if together is None else (type(self), id(together), self._states.states)

    @torch.inference_mode()
    def run_together(self, parts: Sequence[tuple[Any, Nodes]]) -> list[Scores]:
        """One pass over the nodes of several texts; see `TreeRunner.run_together` and `run`."""
        if len(parts) == 1:
            return [self.run(*parts[0][1])]
        together = self.together
        assert together is not None, "`joins` says so"
        self._require_route()
        for runner, (tokens, parents, first, _) in parts:
            runner._require_nodes(len(tokens), len(parents), first)
            runner.cache.begin(first, len(tokens))
        scores = together.run([(runner.cache, nodes) for runner, nodes in parts], self._states)
        for runner, nodes in parts:
            runner._parents = topology(nodes.parents).parents
        return scores

    def release(self) -> None:
        """Forget the text and give the memory of its rows back, with the passes that are tied to it."""
        super().release()
        self._forget_memory()
        self._memory = self.cache.memory

    @torch.inference_mode()
    def work(self, kind: WorkKind) -> Any:
        """The work of this kind, after making room for its rows in the cache; made when first asked for.

        Raises:
            UnsupportedModel: if the model's attention was changed in the meantime.
        """
        self._require_route()
        self._make_room(0, kind.rows)
        if kind not in self._works:
            self._works[kind] = kind.make(self.cache, self._new_pass)
        return self._works[kind]

    @torch.inference_mode()
    def do(self, kind: WorkKind, work: Work, parents: tuple[int, ...]) -> Any:
        """Do a work that was loaded; what it returns is lent until the next.

        `parents`: the parent of each row that it writes behind the committed ones.
        """
        result = self._do(kind, work)
        self._parents = parents
        return result

    def _do(self, kind: WorkKind, work: Work) -> Any:
        return work.run()

    def _new_pass(self, size: Size) -> StaticPass:
        return StaticPass(self.model, self.cache, size, self._states, self._layers)

    def _make_room(self, first: int, rows: int) -> None:
        cache = self.cache
        cache.begin(first, rows)
        if cache.memory != self._memory:
            self._forget_memory()
            self._memory = cache.memory

    def _static(self, first: int, size: Size) -> StaticPass:
        """The pass of this size for the features lent, after making room for its rows in the cache."""
        self._make_room(first, max(size.rows, size.nodes - first))
        kind = Kind(size, self._states.states)
        if kind not in self._passes:
            self._passes[kind] = self._new_pass(size)
        return self._passes[kind]

    def _launch(self, static: StaticPass) -> Scores:
        return static.run()

    def _forget_memory(self) -> None:
        """Drop everything that is tied to the old addresses of the cache."""
        self._passes.clear()
        self._works.clear()


@lru_cache(maxsize=256)
def _filled(parents: tuple[int, ...], size: Size, first: int) -> np.ndarray:
    """What the buffer of a pass holds, without a prefix; trees of one shape differ in nothing else."""
    rows, nodes = size
    line = PassArrays.empty(1, rows, nodes)
    fill(line, 0, topology(parents), 0, range(first, len(parents)))
    return line.buffer.numpy()


class _KernelAttention(TreeAttention):
    """The Triton kernel, over a tree in device memory."""

    def __init__(self, tree_pass: BufferedPass) -> None:
        buffered: Any = (tree_pass,)
        self.passes, self.impl = buffered, "triton"
