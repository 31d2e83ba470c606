"""The target on CUDA: a tree's pass is captured once for each bucket of sizes, and replayed.

A pass over a small tree is hundreds of short kernels, and launching them takes the host longer than the
device takes to run them. A captured graph launches all at once. What is captured is the static pass
(`treespec.models.static_pass`), which is an ordinary one and tested as such; prompts are not captured,
since their lengths differ and their kernels are long.

Nothing here runs on a CPU, and the CPU path does not import it (`make_target`).
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import StaleScores, Unavailable
from treespec.models.cache import LayerShape
from treespec.models.routes import Route
from treespec.models.static_pass import StaticPass, StaticRunner
from treespec.models.static_trial import require_static
from treespec.models.transformers_model import TransformersModel
from treespec.step import Scores
from treespec.target.model import ModelTarget
from treespec.tree import TokenTree

__all__ = ["GraphTarget"]

WARM_UPS = 2
"""Passes before a capture: they compile kernels, choose algorithms and allocate scratch, all of which
fail or would be captured too."""


class GraphTarget(ModelTarget):
    """Scores a whole tree by replaying a captured pass; the same `Target` as `ModelTarget`.

    The first tree of each bucket costs a capture: three ordinary passes, and about their time again. When
    the cache grows (it doubles), what was captured is dropped, since it knows the old addresses. Memory and
    graphs of a target that is gone serve the next one on the same model, so that a target for each prompt
    captures no more than one for all.

    **Logits are lent.** `score` returns rows of the graph's own memory; a copy of `[N, V]` numbers at every
    step would be paid by all for the few who keep them. At the next `score` they are overwritten, and
    `Scores.logits` raises from then on (`StaleScores`), so a step that was kept cannot be misread. What is
    wanted longer, copy while its step is the last: `step.scores.logits.clone()`. A tensor taken out of the
    scores before cannot be guarded so.

    Args:
        model: on CUDA, on our attention with the kernel (`attention` "auto" or "triton"). Tried out at the
            first target on it (`treespec.models.static_trial`).

    Raises:
        Unavailable: without a CUDA device, or without Triton.
        UnsupportedModel: if the model's pass cannot be captured: it takes trees as a mask, is spread over
            several devices, reads values back (some experts, rotary scalings that change with the length),
            or keeps lengths as Python numbers.

    Not thread-safe: one graph runs at a time, as one model does.
    """

    def __init__(self, model: TransformersModel) -> None:
        _require_cuda(model)
        self._place = place = _idle_place(model)
        self.model = place.model
        handing_back: Any = weakref.finalize(self, _IDLE[model].append, place)
        handing_back.atexit = False

    def score(self, tree: TokenTree) -> Scores:
        """Logits after every node of the tree, lent until the next call."""
        self._place.take_back()
        return self._place.lend(self.model.run(tree.tokens, tree.shape.parents))


class GraphRunner(StaticRunner):
    """Runs static passes by replaying them."""

    def __init__(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> None:
        super().__init__(model, route, layout)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._side, self._pool = torch.cuda.Stream(model.device), torch.cuda.graph_pool_handle()

    def _launch(self, static: StaticPass) -> Float[Tensor, "size V"]:
        if static.size not in self._graphs:
            self._graphs[static.size] = self._capture(static)
        graph, logits = self._graphs[static.size]
        graph.replay()
        return logits

    def _capture(self, static: StaticPass) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The graph of `static.run`, and the memory that it writes logits to.

        Warm-up and capture share a stream, so that the workspaces of cuBLAS, one for each stream, are
        there before the capture. All graphs share a pool: they run one at a time, and the logits of each
        are held, so no other is given their memory.
        """
        self._side.wait_stream(torch.cuda.current_stream(self.model.device))
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UPS):
                static.run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side):
            logits = static.run()
        return graph, logits

    def _forget_memory(self) -> None:
        super()._forget_memory()
        self._graphs.clear()
        # A pool without graphs may not be used again.
        self._pool = torch.cuda.graph_pool_handle()


class LentScores(Scores):
    """Scores whose logits can be taken back."""

    def __repr__(self) -> str:
        """The logits, if they are still there."""
        return f"LentScores({vars(self).get('logits', 'overwritten')})"

    def __getattr__(self, name: str) -> Any:
        if name != "logits":
            raise AttributeError(name)
        raise StaleScores(
            "the logits of this step were overwritten by a later one: a GraphTarget lends them until its "
            "next pass. Copy those that are kept, step.scores.logits.clone(), or use ModelTarget"
        )


class _Place:
    """A cache with its graphs, and the scores that were lent last."""

    def __init__(self, model: TransformersModel) -> None:
        self.model = model.fresh(runner=GraphRunner)
        self._lent: LentScores | None = None

    def lend(self, logits: Float[Tensor, "N V"]) -> LentScores:
        self._lent = LentScores(logits)
        return self._lent

    def take_back(self) -> None:
        if self._lent is not None:
            object.__delattr__(self._lent, "logits")
            self._lent = None


_IDLE: weakref.WeakKeyDictionary[TransformersModel, list[_Place]] = weakref.WeakKeyDictionary()
"""Places whose targets are gone, for each model that has been tried out."""


def _idle_place(model: TransformersModel) -> _Place:
    if model not in _IDLE:
        require_static(model)
        _IDLE[model] = []
    return _IDLE[model].pop() if _IDLE[model] else _Place(model)


def _require_cuda(model: TransformersModel) -> None:
    if model.device.type != "cuda":
        found = "" if torch.cuda.is_available() else ", and torch finds no CUDA device here"
        raise Unavailable(
            f"GraphTarget needs a CUDA device, but the model is on {model.device}{found}: "
            "use ModelTarget, or load the model with device='cuda'"
        )
