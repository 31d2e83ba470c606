"""Passes on CUDA that are captured once for each size, and replayed.

A pass over a small tree is hundreds of short kernels, and launching them takes the host longer than the
device takes to run them. A captured graph launches all at once. What is captured is the static pass
(`treespec.models.static_pass`), which is an ordinary one and tested as such; prompts are not captured,
since their lengths differ and their kernels are long.

A graph knows the addresses of the cache that it was captured with. So cache and graphs are one `Place`,
which serves the next runner when the one that has it is gone: a target or a drafter for each prompt
captures no more than one for all.

Graphs are as many as there are sizes, which are few (`static_pass.most_sizes`): a target whose trees have
up to 64 nodes captures 7 at most, and one more for every 64 nodes beyond.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.models.cache import LayerShape, TreeCache
from treespec.models.routes import Route
from treespec.models.static_pass import Size, StaticPass, StaticRunner

__all__ = ["CapturedRunner", "Place", "Places"]

WARM_UPS = 2
"""Passes before a capture: they compile kernels, choose algorithms and allocate scratch, all of which
fail or would be captured too."""


@dataclass(eq=False)
class Place:
    """A cache, the passes over it and their graphs.

    Args:
        cache: whose rows the graphs write and read.
        passes: in fixed memory, by size.
        graphs: of these passes, and the memory that each writes logits to, as many as there are sizes.
        memory: of the cache, as passes and graphs know it.
        side: the stream of warm-ups and captures.
        pool: of the graphs' memory. They run one at a time, and the logits of each are held, so no other is
            given their memory.
        lent: what holds logits of the last pass, if somebody must be told that they are overwritten.
    """

    cache: TreeCache
    side: Any
    pool: Any
    passes: dict[Size, StaticPass] = field(default_factory=dict)
    graphs: dict[Size, tuple[Any, Tensor]] = field(default_factory=dict)
    memory: tuple[int, ...] = ()
    lent: Any = None


class Places:
    """The places of a model, of runners that are gone: what makes its captured runners."""

    def __init__(self) -> None:
        self._idle: list[Place] = []

    def runner(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> "CapturedRunner":
        """A runner at an idle place, or at a new one; logits are lent until its next pass."""
        return self._give(CapturedRunner, model, route, layout)

    def copying_runner(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> "CapturedRunner":
        """The same, for who keeps logits over several passes, as drafters do: copies are given out."""
        return self._give(_CopyingRunner, model, route, layout)

    def _give(
        self,
        kind: "type[CapturedRunner]",
        model: PreTrainedModel,
        route: Route,
        layout: Sequence[LayerShape | None],
    ) -> "CapturedRunner":
        place = self._idle.pop() if self._idle else _new_place(model, layout)
        place.cache.reset()
        runner = kind(model, route, place)
        handing_back: Any = weakref.finalize(runner, self._idle.append, place)
        handing_back.atexit = False
        return runner


class CapturedRunner(StaticRunner):
    """Runs static passes by replaying them.

    Args:
        model: on CUDA, set to the route's attention.
        route: how the model is told what each row may see.
        place: that nobody else uses meanwhile.
    """

    def __init__(self, model: PreTrainedModel, route: Route, place: Place) -> None:
        super().__init__(model, route)
        self.place, self.cache = place, place.cache
        self._passes, self._memory = place.passes, place.memory

    def _launch(self, static: StaticPass) -> Float[Tensor, "rows V"]:
        graphs = self.place.graphs
        if static.size not in graphs:
            graphs[static.size] = self._capture(static)
        graph, logits = graphs[static.size]
        graph.replay()
        return logits

    def _capture(self, static: StaticPass) -> tuple[Any, Tensor]:
        """The graph of `static.run`, and the memory that it writes logits to.

        Warm-up and capture share a stream, so that the workspaces of cuBLAS, one for each stream, are
        there before the capture.
        """
        place = self.place
        place.side.wait_stream(torch.cuda.current_stream(self.model.device))
        with torch.cuda.stream(place.side):
            for _ in range(WARM_UPS):
                static.run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=place.pool, stream=place.side):
            logits = static.run()
        return graph, logits

    def _forget_memory(self) -> None:
        super()._forget_memory()
        self.place.graphs.clear()
        self.place.memory = self.cache.memory
        # A pool without graphs may not be used again.
        self.place.pool = torch.cuda.graph_pool_handle()


class _CopyingRunner(CapturedRunner):
    """Gives out copies of logits."""

    def run(
        self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0
    ) -> Float[Tensor, "T V"]:
        """Logits after nodes first .. first + T - 1; see `TreeRunner.run`."""
        return super().run(tokens, parents, first).clone()


def _new_place(model: PreTrainedModel, layout: Sequence[LayerShape | None]) -> Place:
    return Place(TreeCache(layout), torch.cuda.Stream(model.device), torch.cuda.graph_pool_handle())
