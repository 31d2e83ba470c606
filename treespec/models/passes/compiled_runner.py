"""Runs tree nodes by compiled passes, in a cache of its own."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.models.cache import LayerShape
from treespec.models.passes.compiled_pass import MOST_NODES, CompiledPass, tree_arrays
from treespec.models.routes import Route
from treespec.models.runner import TreeRunner


class CompiledRunner(TreeRunner):
    """Runs trees and parts of trees by the compiled graphs that all caches of a model share.

    Prompts, passes over more than `MOST_NODES` nodes, and a pass over the first token of a text alone are
    run by ordinary passes.

    Args:
        compiled: the graphs.
        model: the model of the graphs.
        route: how the model learns what each row may attend to.
        layout: layout of the cache.
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
            UnsupportedModel: if the model's attention was changed in the meantime, or its weights replaced.
        """
        count, cache = len(tokens), self.cache
        # The graphs need at least 2 slots; after a single slot, memory of an earlier text may lie.
        if count > MOST_NODES or self.length + len(parents) < 2:
            return super().run(tokens, parents, first)
        self._require_nodes(count, len(parents), first)
        self._require_route()
        if not first:  # check once per tree: all its passes must use the same weights
            self._compiled.require_weights()
        tree = tree_arrays(parents)
        cache.begin(first, count + 1)  # the graphs need fewer slots than rows
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
