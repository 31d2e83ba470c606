"""Time the drafting of a tree: as one graph, and level by level with a graph for each pass.

`ms` is the time from the call to the ids on the host, as a step pays for it; `graph_ms` the time of the
graph alone, replayed.

Predictions for an H100, to be confirmed or refuted: level by level takes 1.3 ms for 3x2x1x1 at T=0
(measured with an older version); one graph 0.35 ms with compiled layers, of which some 0.05 ms are the
host's. The second model is an EAGLE-3 head of one layer with random weights, 4.5M numbers with the
embedding, which is its target's and its matrix too: with 32,000 words that matrix adds 4 times 8 MB,
10 us in all, and at T=1 the sums over rows some 20 us a level.
"""

import statistics
import time
from typing import Any, NamedTuple

import torch

from treespec import Sampling, TorchCoins, load_pair, verify
from treespec.decoding import NullObserver
from treespec.draft import ModelDrafter
from treespec.draft.trained.eagle3 import Eagle3
from treespec.errors import Unavailable, UnsupportedModel, in_words
from treespec.experiments.research.benchmarks.gpu.decode_times import SHAPES
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.research.benchmarks.gpu.timer import time_each
from treespec.experiments.run.observers import synchronizer
from treespec.experiments.training.fresh_heads import LayerSizes, fresh_eagle3
from treespec.models.pass_kinds import Passes
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.transformers_model import TransformersModel

MODELS = ("0.9M, 4k words", "EAGLE-3, 32k words")
WORDS, DRY_WORDS = 32_000, 512
WIDTH, BOUNDARIES = 128, (1, 2, 3)
WAYS = ("one graph", "by levels")
DRAFTS, DRY_DRAFTS = 200, 1
WARM_UP = 5
PROMPT = 512


class Case(NamedTuple):
    """One way to draft."""

    model: str
    method: str
    temperature: float
    way: str

    @property
    def key(self) -> str:
        """A readable key for files and messages."""
        return f"{self.model} {self.method} T={self.temperature:g} {self.way}"


def cases(dry: bool) -> list[Case]:
    """All cells, grouped by model."""
    methods = [method for method, shape in SHAPES.items() if shape.size > 1]
    return [
        Case(model, method, temperature, way)
        for model in MODELS
        for method in (methods[:1] if dry else methods)
        for temperature in ((1.0,) if dry else (0.0, 1.0))
        for way in WAYS
    ]


def run(session: Session, deadline: float) -> None:
    """Measure the cells until all exist or the time is over."""
    todo = cases(session.dry)
    store = session.store("draft", dtype="bfloat16", cells=len(todo), prompt_tokens=PROMPT)
    models: dict[str, TransformersModel] = {}
    for case in session.each("draft", todo, deadline, store):
        try:
            if case.model not in models:
                models[case.model] = _model(case.model, session)
            cell = _cell(models[case.model], case, session)
        except (Unavailable, UnsupportedModel) as error:
            cell = {"unavailable": in_words(error, "the drafting")}
        except Exception as error:
            cell = {"error": in_words(error, "the drafting")}
            session.fail("draft", case.key, cell["error"])
        store.add(case.key, case._asdict() | cell)
        if "error" in cell:
            session.recover(case.key)


def _model(name: str, session: Session) -> TransformersModel:
    """The model, its passes captured; in a rehearsal in fixed memory without a graph."""
    if name == MODELS[0]:
        model = load_pair("embedded", dtype="bfloat16", device=session.device).draft
    else:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=DRY_WORDS if session.dry else WORDS, hidden_size=WIDTH, intermediate_size=384,
            num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            tie_word_embeddings=True, max_position_embeddings=4096,
        )  # fmt: skip
        torch.manual_seed(0)
        weights: Any = LlamaForCausalLM(config).bfloat16()
        weights.to(session.device)
        target = TransformersModel(weights.eval().requires_grad_(False))
        model = fresh_eagle3(target, LayerSizes(384), 0, boundaries=BOUNDARIES)
    assert isinstance(model, TransformersModel)
    if session.dry:
        from treespec.models.passes.static_pass import StaticRunner

        model.run_by(StaticRunner, Passes("captured"))
    else:
        choose_passes(model, "captured", draft=True)
    model.reserve(PROMPT + 256)
    return model


def _cell(model: TransformersModel, case: Case, session: Session) -> dict[str, Any]:
    shape, sampling = SHAPES[case.method], Sampling(case.temperature)
    # An observer is told of each level, so the drafter goes level by level.
    observer = NullObserver() if case.way == "by levels" else None
    is_head = case.model != MODELS[0]
    drafter: Any = (Eagle3 if is_head else ModelDrafter)(
        model, shape, verify.usual_law(sampling), sampling, observer
    )
    coins, wait = TorchCoins(0), synchronizer(session.device)
    prompt = torch.arange(12 if session.dry else PROMPT, device=session.device)
    features = torch.zeros(len(prompt) - 1, len(BOUNDARIES), WIDTH, device=session.device)
    drafter.prefill(prompt, *([features] if is_head else []))
    seconds = []
    for _ in range(DRY_DRAFTS if session.dry else DRAFTS):
        wait()
        start = time.perf_counter()
        tree = drafter.propose(coins)
        _ = tree.token_ids
        seconds.append(time.perf_counter() - start)
        drafter.model.keep(())  # nothing is accepted: the next tree is drafted from the same text
    kept = seconds[min(WARM_UP, len(seconds) - 1) :]
    return {
        "parameters": sum({w.data_ptr(): w.numel() for w in model.model.parameters()}.values()),
        "nodes": shape.size,
        "ms": round(1e3 * statistics.median(kept), 4),
        "graph_ms": _graph_ms(drafter, session),
    }


def _graph_ms(drafter: ModelDrafter, session: Session) -> float | None:
    """The time of the graph alone; None for a draft that is none."""
    place = getattr(drafter.model.runner, "place", None)
    if place is None or drafter._at_once is None:
        return None
    graph, _ = place.graphs[drafter._at_once[1]]
    return round(time_each([graph.replay], session.device, 0.05).median_us / 1e3, 4)
