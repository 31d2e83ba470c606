"""A pass over nodes of several texts in fixed memory, which a captured CUDA graph can repeat.

As in a pass of one text (`static_pass`), all that changes from step to step is read on the device: tokens,
trees and prefix lengths from one buffer, and the rows of each text's cache by their addresses, from a table
(`attention_masks.tree_attention.scattered` says why by addresses). So one graph serves whatever texts are
in the batch, and one that grows, ends or begins only changes the table. The rows of all texts are one after
the other; linear layers, norms and experts run once for all of them. There is padding only behind the last
text, up to a bucket of rows, and up to a power of two of texts; it reads no key and writes none.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from attention_masks import TreePass, topology
from attention_masks.tree_attention import Options, ScatteredPass, ScatteredSize, scattered
from treespec.models.attention import refuse_mask
from treespec.models.cache import LayerShape, TreeCache, cache_argument
from treespec.models.hidden_states import HiddenStates
from treespec.models.joined_cache import Unstored
from treespec.models.passes.static_sizes import joined_size_of
from treespec.models.waiting import Nodes
from treespec.step import Scores

Texts = Sequence[tuple[TreeCache, Nodes]]
"""The texts of a pass: the cache of each, begun for its nodes, and the nodes."""


class StaticJoinedPass:
    """Fixed memory for passes of one size; call `load`, then `run`.

    Args:
        model: a model set to our attention.
        layout: the layout of the texts' caches.
        size: the capacity.
        states: the features that it returns.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layout: Sequence[LayerShape | None],
        size: ScatteredSize,
        states: HiddenStates,
    ) -> None:
        self.model, self.size, self.states = model, size, states
        self._cache_argument, self._layers = cache_argument(model), len(layout)
        self._stored = [i for i, shape in enumerate(layout) if shape is not None]
        self._memories: list[tuple[int, ...]] = []
        self.input_ids = torch.zeros(1, size.rows, dtype=torch.long, device=model.device)
        self.scattered = ScatteredPass(size, model.device)
        self.tables: Int64[Tensor, "L texts 3"] = torch.zeros(
            len(self._stored), size.texts, 3, dtype=torch.long, device=model.device
        )
        tables = {layer: self.tables[k] for k, layer in enumerate(self._stored)}
        self._attention = _ScatteredAttention(self.scattered, tables)

    @torch.inference_mode()
    def load(self, texts: Texts) -> None:
        """Copy the nodes of these texts into the buffers, without waiting for the device.

        Raises:
            InvalidInput: if they exceed the size.
        """
        pinned = self.input_ids.is_cuda
        passes = [
            TreePass(topology(parents), cache.length, range(first, len(parents)))
            for cache, (_, parents, first, _) in texts
        ]
        # Every copy has its own pinned memory, which the allocator does not reuse before it was read.
        buffer = self.scattered.filled(passes, pinned=pinned)
        self.scattered.buffer.copy_(buffer, non_blocking=True)
        tokens = torch.cat([nodes.tokens for _, nodes in texts])
        self.input_ids[0, : len(tokens)].copy_(tokens, non_blocking=True)
        memories = [cache.memory for cache, _ in texts]
        if memories != self._memories:
            self._memories = memories
            caches = [cache for cache, _ in texts]
            tables = torch.stack([self._places(caches, layer) for layer in self._stored])
            tables = tables.pin_memory() if pinned else tables
            self.tables[:, : len(texts)].copy_(tables, non_blocking=True)

    def _places(self, caches: Sequence[TreeCache], layer: int) -> Int64[Tensor, "texts 3"]:
        """Where the rows of a layer are in each cache."""
        layers: list[Any] = [cache.layers[layer] for cache in caches]
        return scattered.places([(rows.keys, rows.values) for rows in layers])

    @torch.inference_mode()
    def run(self) -> Scores:
        """Run the loaded nodes: write their rows to the caches; return logits and features of all rows.

        These include those of padding. The buffers do not change, so a run can be repeated.
        """
        with self.states.watched():
            output = self.model(
                input_ids=self.input_ids,
                position_ids=self.scattered.positions.long()[None],
                **{self._cache_argument: Cache(layers=[Unstored() for _ in range(self._layers)])},
                use_cache=True,
                treespec_pass=self._attention,
            )
            return Scores(output.logits[0], self.states.taken())


class StaticTogether:
    """Runs nodes of several texts of one model by static passes, one per size and features.

    The next pass of the same size overwrites the returned scores; callers must copy what they keep.

    Args:
        model: a model set to our attention.
        layout: the layout of the texts' caches.
    """

    def __init__(self, model: PreTrainedModel, layout: Sequence[LayerShape | None]) -> None:
        self.model, self._layout = model, layout
        self.passes: dict[tuple[ScatteredSize, tuple[int | str, ...]], StaticJoinedPass] = {}

    def run(self, texts: Texts, states: HiddenStates) -> list[Scores]:
        """The scores of each text's nodes.

        Args:
            texts: the texts.
            states: what the pass returns besides logits.
        """
        capacity = max(cache.capacity for cache, _ in texts)
        counts = [len(nodes.tokens) for _, nodes in texts]
        firsts = [nodes.first for _, nodes in texts]
        size = joined_size_of(zip(firsts, counts, strict=True), capacity)
        kind = size, states.states
        if kind not in self.passes:
            self.passes[kind] = StaticJoinedPass(self.model, self._layout, size, states)
        static = self.passes[kind]
        static.load(texts)
        scores = self._launch(static)
        counts.append(size.rows - sum(counts))  # padding
        features = scores.features
        states_of = [None] * len(counts) if features is None else features.split(counts)
        return [*map(Scores, scores.logits.split(counts)[:-1], states_of[:-1])]

    def _launch(self, static: StaticJoinedPass) -> Scores:
        return static.run()


class _ScatteredAttention:
    """Writes the rows of all texts to their caches, and attends there (see `AttentionPass`)."""

    def __init__(self, scattered_pass: ScatteredPass, tables: dict[int, Tensor]) -> None:
        self._pass, self._tables = scattered_pass, tables

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
        layer: Any = module.layer_idx
        options = Options(
            query.shape[-1] ** -0.5 if scale is None else scale, softcap, window, sinks
        )
        table = self._tables[layer]
        return scattered.scattered_attention(query, key, value, table, self._pass, options)
