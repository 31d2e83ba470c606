"""Passes on CUDA that are captured once per size and replayed.

A pass over a small tree consists of hundreds of short kernels, and the host takes longer to launch them
than the device takes to run them. A captured graph launches all of them at once. The captured pass is the
static pass (`models.passes.static_pass`), which is an ordinary pass and tested as such; its layers are
compiled first if they can be (`compiled_layers`), so that there are fewer kernels to launch. Prompts are
not captured, since their lengths differ and their kernels are long.

A graph is tied to the addresses of the cache that it was captured with. So a `Place` holds a cache together
with its graphs, and is reused once its runner no longer exists: one target or drafter per prompt captures
no more graphs than one for all prompts.

Methods that take turns each have a place, and the next text may get any of them. So a runner that is made
for a text (`TransformersModel.fresh`) first captures the sizes that other runners have needed, before any
step is timed (`CapturedRunner.prepare`). A size that no text has needed before is still captured in a step:
a run's warm-up meets the sizes of trees of fixed shape, but not all sizes of trees that grow.

A pass over several texts has graphs that their runners share (`CapturedTogether`): it reads on the device
where the rows of each text are, so it is tied to no place (`models.passes.static_joined`).

There is one graph per size, and there are few sizes (`static_sizes.most_sizes`): a target whose trees have
up to 64 nodes captures at most 7 graphs, plus one for every further 64 nodes.
"""

import logging
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from attention_masks import topology
from treespec.errors import UnsupportedModel, in_words
from treespec.features import Features
from treespec.models.cache import LayerShape, TreeCache
from treespec.models.passes.compiled_layers import CompiledLayers
from treespec.models.passes.static_joined import StaticJoinedPass, StaticTogether
from treespec.models.passes.static_pass import Kind, StaticPass, StaticRunner, Work, WorkKind
from treespec.models.passes.static_trial import require_joined
from treespec.models.routes import Route
from treespec.models.waiting import Nodes
from treespec.step import Scores

log = logging.getLogger("treespec")

WARM_UPS = 2
"""Passes before a capture. They compile kernels, choose algorithms and allocate scratch memory, which
during a capture would fail or be captured too."""


@dataclass(eq=False)
class Place:
    """A cache, the passes over it and their graphs.

    Args:
        cache: the cache whose rows the graphs write and read.
        passes: passes in fixed memory, by size and features.
        graphs: for each pass, its graph and the memory that it writes scores to.
        works: several passes as one, by what they are made for, and their graphs in `graphs`.
        memory: addresses of the cache (`TreeCache.memory`) that passes and graphs are tied to.
        side: the stream of warm-ups and captures.
        pool: memory pool of the graphs. Graphs run one at a time, and the scores of each are held, so that
            no other graph is given their memory.
        lent: scores of the last pass that must be revoked when they are overwritten.
    """

    cache: TreeCache
    side: Any
    pool: Any
    passes: dict[Kind, StaticPass] = field(default_factory=dict)
    graphs: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    works: dict[WorkKind, Any] = field(default_factory=dict)
    memory: tuple[int, ...] = ()
    lent: list[Any] = field(default_factory=list)


class CapturedTogether(StaticTogether):
    """Runs nodes of several texts by replaying captured graphs, which all runners of a model share.

    A size is captured when a batch first needs it.
    """

    def __init__(self, model: PreTrainedModel, layout: Sequence[LayerShape | None]) -> None:
        super().__init__(model, layout)
        self._side = torch.cuda.Stream(model.device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[StaticJoinedPass, tuple[Any, Scores]] = {}
        self._lent: defaultdict[StaticJoinedPass, list[Any]] = defaultdict(list)
        self.lent: list[Any] = []
        """Scores of the last pass that must be revoked when they are overwritten. Each graph has memory of
        its own: in one round, texts whose drafters read different features are run by different graphs."""

    def _launch(self, static: StaticJoinedPass) -> Scores:
        self.lent = self._lent[static]
        take_back(self.lent)
        if static not in self._graphs:
            self._graphs[static] = capture(static, self._side, self._pool)
        graph, scores = self._graphs[static]
        graph.replay()
        return scores


class Places:
    """Makes the captured runners of a model, and reuses the places of runners that no longer exist.

    Args:
        layers: the layers of the model as compiled code; by default they are captured operation by
        operation.
            Passes over several texts are not compiled.
    """

    def __init__(self, layers: CompiledLayers | None = None) -> None:
        self.layers = layers
        self._idle: list[Place] = []
        self.needed: defaultdict[int, set[Kind]] = defaultdict(set)
        """The passes that runners of the model have needed so far, by the rows that were reserved for their
        texts (`TransformersModel.reserve`)."""
        self.works_needed: defaultdict[int, set[WorkKind]] = defaultdict(set)
        """As `needed`, for several passes as one."""
        self.uncaptured: set[WorkKind] = set()
        """Those whose capture failed; they run operation by operation."""
        self._together: CapturedTogether | None = None
        self._tested = False

    def together(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None]
    ) -> CapturedTogether | None:
        """What runs nodes of several texts; tested when it is first asked for.

        None, with the reason in the log, if such passes cannot be captured.
        """
        if not self._tested:
            try:
                require_joined(model, route, layout)
                self._together = CapturedTogether(model, layout)
            except UnsupportedModel as why:
                model_type = model.config.model_type
                log.warning("each text of a batch of %s models runs alone: %s", model_type, why)
            self._tested = True
        return self._together

    def runner(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> "CapturedRunner":
        """A runner at an idle place, or a new place; its scores are valid until its next pass."""
        return self._give(CapturedRunner, model, route, layout)

    def copying_runner(
        self, model: PreTrainedModel, route: Route, layout: Sequence[LayerShape | None] = ()
    ) -> "CapturedRunner":
        """A runner that returns copies of scores, for callers that keep them over several passes."""
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
        runner = kind(model, route, place, self)
        reuse: Any = weakref.finalize(runner, self._idle.append, place)
        reuse.atexit = False
        return runner


class CapturedRunner(StaticRunner):
    """Runs static passes by replaying captured graphs.

    Args:
        model: the model.
        route: how the model learns what each row may attend to.
        place: its cache and graphs.
        places: what it shares with other runners of the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        route: Route,
        place: Place,
        places: Places,
    ) -> None:
        super().__init__(model, route, layers=places.layers)
        self._places, self._needed = places, places.needed
        self.place, self.cache = place, place.cache
        self.lent = place.lent
        """What else was lent of the memory that the last pass wrote its scores to."""
        self._passes, self._works, self._memory = place.passes, place.works, place.memory

    @property
    def together(self) -> CapturedTogether | None:
        """What runs nodes of several texts."""
        return self._places.together(self.model, self.route, self.cache.layout)

    def run(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> Scores:
        """Logits after nodes first .. first + T - 1; see `StaticRunner.run`."""
        self.lent = self.place.lent
        take_back(self.lent)
        return super().run(tokens, parents, first, states)

    def run_together(self, parts: Sequence[tuple[Any, Nodes]]) -> list[Scores]:
        """One pass over the nodes of several texts; see `StaticRunner.run_together`."""
        scores = super().run_together(parts)
        if len(parts) > 1 and (together := self.together) is not None:
            for runner, _ in parts:
                runner.lent = together.lent
        return scores

    def lend(self, reads: Features) -> None:
        """From the next prefill on, return these features; captures the sizes that texts needed with them.

        Raises:
            InvalidArgument: if the model does not have such a boundary.
            UnsupportedModel: if the features of this model cannot be had.
        """
        if reads.states != self._states.states:
            super().lend(reads)
            self.prepare()

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture the sizes that texts with the same reservation and the same features have needed.

        Without a reservation the cache will grow, which drops graphs; and a model that is in use as a plain
        one (`as_transformers`) would capture the wrong attention. Then sizes are captured when needed.
        """
        least = self.cache.least
        if not least or not self._routed:
            return
        states = self._states.states
        needed = {kind.size for kind in self._needed[least] if kind.states == states}
        for size in sorted(size for size in needed if max(size) <= least):
            static = self._static(0, size)  # drops what is tied to old memory
            if static.kind not in self.place.graphs:
                # Any token does: the next pass overwrites its row.
                static.load(static.input_ids.new_zeros(1), topology((-1,)), 0)
                self.place.graphs[static.kind] = capture(static, self.place.side, self.place.pool)
        for kind in self._places.works_needed[least]:
            if kind.rows <= least and kind not in self.place.graphs:
                self.place.graphs[kind] = capture(self.work(kind), self.place.side, self.place.pool)
        self.cache.reset()

    def _launch(self, static: StaticPass) -> Scores:
        graphs, kind = self.place.graphs, static.kind
        self._needed[self.cache.least].add(kind)
        if kind not in graphs:
            graphs[kind] = capture(static, self.place.side, self.place.pool)
        graph, scores = graphs[kind]
        graph.replay()
        return scores

    def _do(self, kind: WorkKind, work: Work) -> Any:
        self.lent = self.place.lent
        take_back(self.lent)
        graphs = self.place.graphs
        if kind in self._places.uncaptured:
            return work.run()
        if kind not in graphs:
            try:
                graphs[kind] = capture(work, self.place.side, self.place.pool)
            except RuntimeError as problem:
                self._places.uncaptured.add(kind)
                why = in_words(problem, "the capture")
                log.warning(
                    "a tree is drafted operation by operation, since its graph failed: %s", why
                )
                return work.run()
        self._places.works_needed[self.cache.least].add(kind)
        graph, result = graphs[kind]
        graph.replay()
        return result

    def _forget_memory(self) -> None:
        super()._forget_memory()
        self.place.graphs.clear()
        self.place.memory = self.cache.memory
        # A pool whose graphs are gone must not be used again.
        self.place.pool = torch.cuda.graph_pool_handle()


class _CopyingRunner(CapturedRunner):
    """Returns copies of scores."""

    def run(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> Scores:
        return _copied(super().run(tokens, parents, first, states))

    def run_together(self, parts: Sequence[tuple[Any, Nodes]]) -> list[Scores]:
        return [*map(_copied, super().run_together(parts))]


def capture(static: StaticPass | StaticJoinedPass | Work, side: Any, pool: Any) -> tuple[Any, Any]:
    """Capture `static.run`; return the graph and the memory that it writes scores to.

    Warm-up and capture share a stream, so that the cuBLAS workspace of the stream is allocated before the
    capture.

    Args:
        static: a loaded pass, or several as one.
        side: the stream of warm-ups and captures.
        pool: memory pool of the graph.
    """
    side.wait_stream(torch.cuda.current_stream(static.model.device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            static.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        scores = static.run()
    return graph, scores


def take_back(lent: list[Any]) -> None:
    """Revoke scores whose memory is overwritten, and forget them."""
    for scores in lent:
        scores.revoke()
    lent.clear()


def _copied(scores: Scores) -> Scores:
    features = None if scores.features is None else scores.features.clone()
    return Scores(scores.logits.clone(), features)


def _new_place(model: PreTrainedModel, layout: Sequence[LayerShape | None]) -> Place:
    return Place(TreeCache(layout), torch.cuda.Stream(model.device), torch.cuda.graph_pool_handle())
