"""Time the captured pass alone, with compiled layers and without, and compare it with what it must read.

The embedded target is enlarged to the shapes of Llama 3's 1B and 8B (`decode_times`), with its own words
and with as many as Llama 3 (`wide_words`). Each cell is a tree of some nodes behind 512 tokens: the time of
a replay, the bytes of weights and cache over the bandwidth of the data sheet, and how long the first pass
took, which compiles. Logits of the largest tree are compared with those in float64 (`true_logits`). Code of
an earlier run is not compiled again (`code_found` in the file): name an empty folder in
TORCHINDUCTOR_CACHE_DIR to measure that.
"""

import gc
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_masks import topology
from treespec.errors import in_words
from treespec.experiments.measure.roofline import pass_bytes
from treespec.experiments.measure.timing import seconds_of
from treespec.experiments.research.benchmarks.gpu.candidates import BRANCHING
from treespec.experiments.research.benchmarks.gpu.decode_times import DRY, DRY_WORDS, LLAMA
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.research.benchmarks.gpu.true_logits import judge
from treespec.experiments.research.benchmarks.gpu.wide_words import LLAMA_WORDS, enlarged_pair
from treespec.experiments.run.observers import synchronizer
from treespec.features import Features
from treespec.models.hidden_states import HiddenStates
from treespec.models.passes.captured_runner import capture
from treespec.models.passes.compiled_layers import CompiledLayers
from treespec.models.passes.layers_trial import compiled_layers
from treespec.models.passes.static_pass import StaticPass, StaticRunner
from treespec.models.passes.static_sizes import size_of
from treespec.models.transformers_model import TransformersModel

NODES, DRY_NODES = (1, 2, 4, 8, 16), (1, 4)
PREFIX, DRY_PREFIX = 512, 16
REPLAYS = 50


class Case(NamedTuple):
    """One model, its layers compiled or not."""

    size: str
    compiled: bool
    words: int | None = None

    @property
    def key(self) -> str:
        """A readable key for files and messages."""
        words = "" if self.words is None else f" {self.words} words"
        return f"{self.size}{words} {'compiled' if self.compiled else 'operations'}"


def cases(dry: bool) -> list[Case]:
    """All cases, compiled ones first, the largest model first; a dry run compiles nothing."""
    return [
        Case(size, compiled, words)
        for compiled in ((False,) if dry else (True, False))
        for size in (DRY if dry else ("8B", "1B"))
        for words in (None, DRY_WORDS if dry else LLAMA_WORDS)
    ]


def run(session: Session, deadline: float) -> None:
    """Measure the cases until all exist or the time is over."""
    todo, prefix = cases(session.dry), DRY_PREFIX if session.dry else PREFIX
    nodes = DRY_NODES if session.dry else NODES
    store = session.store("layers", dtype="bfloat16", cells=len(todo), prefix=prefix, nodes=nodes)
    pair, facts, made = None, {}, None
    for case in session.each("layers", todo, deadline, store):
        try:
            if pair is None or made != (case.size, case.words):
                pair, made = None, (case.size, case.words)
                gc.collect()
                session.recover("the last model")
                shape = (DRY if session.dry else LLAMA)[case.size]
                pair, facts = enlarged_pair(shape, case.words, session.device, prefix)
            cell = facts | _measured(session, pair.target, case.compiled, prefix, nodes)
            if not cell["error_max"] <= cell["bound"]:
                session.fail("layers", case.key, "its logits are not within their bound")
        except Exception as problem:
            cell = {"error": in_words(problem, "the pass")}
            session.fail("layers", case.key, cell["error"])
        store.add(case.key, case._asdict() | cell)


def _measured(
    session: Session, model: TransformersModel, compiled: bool, prefix: int, nodes: Sequence[int]
) -> dict[str, Any]:
    """The passes of a model for each number of nodes."""
    trial = compiled_layers(model) if compiled else None
    layers = None if trial is None else trial.layers
    about = {} if trial is None else {"uncompiled": trial.why, "trial_s": trial.seconds}
    with torch.inference_mode():
        cells = [_cell(session, model, layers, count, prefix) for count in nodes]
        errors = _errors(model, layers, nodes[-1], prefix)
    compilations = layers.compilations if layers else 0
    return about | errors | {"nodes": cells, "compilations": compilations}


def _static(
    model: TransformersModel, layers: CompiledLayers | None, nodes: int, prefix: int
) -> tuple[StaticPass, Tensor, list[int]]:
    """A loaded pass; the tokens of prefix and tree, and the parents of the tree."""
    own = model.fresh(runner=partial(StaticRunner, layers=layers))
    tokens = torch.arange(prefix + nodes, device=model.device) % model.vocab_size
    own.reserve(prefix + 2 * nodes)
    own.prefill(tokens[:prefix])
    cache, size = own.runner.cache, size_of(0, nodes)
    cache.begin(0, size.rows)
    states = HiddenStates(model.model, Features())
    static = StaticPass(model.model, cache, size, states, layers)
    parents = [-1, *(i // BRANCHING for i in range(nodes - 1))]
    static.load(tokens[prefix:], topology(parents), prefix)
    return static, tokens, parents


def _errors(
    model: TransformersModel, layers: CompiledLayers | None, nodes: int, prefix: int
) -> dict[str, float]:
    """The largest error of a logit of a tree, and its bound."""
    static, tokens, parents = _static(model, layers, nodes, prefix)
    truth = judge(model, tokens[:prefix], tokens[prefix:], parents)
    logits = static.run().logits[: len(parents)]
    return {"error_max": truth.error(logits), "bound": truth.bound}


def _cell(
    session: Session,
    model: TransformersModel,
    layers: CompiledLayers | None,
    nodes: int,
    prefix: int,
) -> dict[str, Any]:
    static, _, _ = _static(model, layers, nodes, prefix)
    wait = synchronizer(session.device)
    start = time.perf_counter()
    static.run()
    wait()
    first_s = time.perf_counter() - start
    call = static.run
    if session.device.type == "cuda":
        pool = torch.cuda.graph_pool_handle()
        graph, _ = capture(static, torch.cuda.Stream(session.device), pool)
        call = graph.replay
    times = [seconds_of(call, wait) for _ in range(3 if session.dry else REPLAYS)]
    floor_ms = 1e3 * pass_bytes(model.model, prefix + nodes) / session.peak.bandwidth
    pass_ms = 1e3 * statistics.median(times)
    return {
        "nodes": nodes,
        "first_s": round(first_s, 3),
        "pass_ms": round(pass_ms, 4),
        "floor_ms": round(floor_ms, 4),
        "over_floor": round(pass_ms / floor_ms, 3),
    }
