"""Runs tree nodes by compiled passes, in a cache of its own."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.models.cache import LayerShape
from treespec.models.compiled_pass import MOST_NODES, CompiledPass, tree_arrays
from treespec.models.routes import Route
from treespec.models.runner import TreeRunner

__all__ = ["CompiledRunner"]


class CompiledRunner(TreeRunner):
    """Trees and parts of trees by the graphs that all caches of a model share; prompts as ever.

    So are passes over more than `MOST_NODES` nodes, and that over a first token alone.

    Args:
        compiled: the graphs.
        model: they are of.
        route: how the model is told what each row may see.
        layout: of the cache.
    """

    def __init__(
        self,
        compiled: CompiledPass,
        model: PreTrainedModel,
        route: Route,
        layout: Sequence[LayerShape | None] = (),
    ) -> None:
        super().__init__(model, route, layout)
        self._compiled = compiled
        self._memory: tuple[int, ...] = ()
        self._one: Callable[..., Tensor]
        self._many: Callable[..., Tensor]

    @torch.inference_mode()
    def run(
        self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0
    ) -> Float[Tensor, "T V"]:
        """Logits after nodes first .. first + T - 1; see `TreeRunner.run`.

        Raises:
            InvalidTree: if parents, tokens and the nodes run so far do not fit together.
            UnsupportedModel: if the model was set to another attention since, or its weights were replaced.
        """
        count, cache = len(tokens), self.cache
        # Slots are at least 2 in the graphs: behind a single one memory of a text before may lie.
        if count > MOST_NODES or self.length + len(parents) < 2:
            return super().run(tokens, parents, first)
        self._require_nodes(count, len(parents), first)
        self._require_route()
        if not first:  # all passes over a tree are by one set of weights
            self._compiled.require_weights()
        tree = tree_arrays(parents)
        cache.begin(first, count + 1)  # the graphs are of fewer slots than there are rows
        cache.begin(first, count)
        if (memory := cache.memory) != self._memory:  # the rows have moved
            self._one, self._many = self._compiled.bound(cache)
            self._slots = torch.arange(cache.capacity)
            self._memory = memory
        run = self._one if count == 1 else self._many
        place, used = torch.tensor([cache.length, first]), self._slots[: cache.end]
        logits = run(tokens.long().contiguous(), place, tree, used)
        self._parents = parents
        return logits
