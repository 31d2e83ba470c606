"""Time decoding end to end, and compare it with what its passes must read.

The embedded target is enlarged to the shapes of Llama 3's 1B, 3B and 8B (with heads of dimension 64 instead
of 128 and its own vocabulary). Its outputs do not change, so drafts are accepted as often as before, and it
costs as much as models of these shapes. Cells of graphs are measured with as many words as Llama 3 too
(`wide_words`): the head of a 1B model is then a fifth of its bytes. The embedded pair agrees on other
shares of tokens than pairs do on real texts, so at T = 0 the acceptance of such a pair is replayed there
too (`real_text`): it was recorded greedily, and says nothing of other temperatures. Plain decoding, a chain
and a tree run with passes launched one kernel after another ("eager"), with captured graphs of the target
("graph"), and with those of the draft as well, of which a whole tree is one ("graphs"). The draft stays
small. Cells of the fastest passes at T = 0 come first, of every model.

Greedy texts are judged by logits in float64 (`true_logits`): each token is the best one but for near ties,
which are listed.

The floor of a step is the sum over its passes of the bytes that each pass must read (weights and cache),
divided by the bandwidth from the data sheet.
"""

import gc
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import product
from typing import Any, NamedTuple

import torch

from treespec import Sampling, TreeShape
from treespec.errors import Unavailable, UnsupportedModel, in_words
from treespec.experiments.measure.roofline import pass_bytes
from treespec.experiments.measure.timing import (
    Spans,
    TimedText,
    timed_forward,
    timed_text,
    usual_steps,
)
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.research.benchmarks.gpu.real_text import origin, replayed
from treespec.experiments.research.benchmarks.gpu.true_logits import judge_text
from treespec.experiments.research.benchmarks.gpu.wide_words import LLAMA_WORDS, enlarged_pair
from treespec.experiments.run.observers import StageTimer
from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.load import Pair
from treespec.models.passes.choosing_passes import choose_passes
from treespec.models.passes.layers_trial import compiled_layers
from treespec.protocols import Target
from treespec.target import ModelTarget

LLAMA: dict[str, dict[str, int]] = {
    name: {
        "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": intermediate,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads,
    }
    for name, hidden, layers, intermediate, heads, kv_heads in (
        ("8B", 4096, 32, 14336, 64, 16),
        ("1B", 2048, 16, 8192, 32, 8),
        ("3B", 3072, 28, 8192, 48, 16),
    )
}  # fmt: skip
"""Shapes in the order of measurement."""

DRY: dict[str, dict[str, int]] = {"tiny": {"num_hidden_layers": 6}}
SHAPES = {
    "plain": TreeShape.chain(0),
    "chain 4": TreeShape.chain(4),
    "tree 3x2x1x1": TreeShape.expansion([3, 2, 1, 1]),
}
TARGETS = ("graphs", "graph", "eager")
"""How passes run. Plain decoding has no draft, so `graphs` does not apply to it."""

SIZES = 2, 512, 48
"""Number of prompts, tokens of each prompt, new tokens of each."""

DRY_SIZES = 1, 16, 5
DRY_WORDS = 5_000
WARM_UP = 6
"""New tokens before the clock starts, while kernels are compiled and graphs captured."""


class Case(NamedTuple):
    """One way to decode."""

    size: str
    temperature: float
    method: str
    target: str
    words: int | None = None
    real_text: bool = False
    """Whether the acceptance of a real text is replayed (`real_text`)."""

    @property
    def key(self) -> str:
        """A readable key for files and messages."""
        words = "" if self.words is None else f" {self.words} words"
        text = " real text" if self.real_text else ""
        return f"{self.size}{words}{text} T={self.temperature:g} {self.method} {self.target}"

    @property
    def is_fastest(self) -> bool:
        """Whether it decodes greedily with all passes captured."""
        fastest = "graphs" if SHAPES[self.method].size > 1 else "graph"
        return self.temperature == 0 and self.target == fastest


def cases(dry: bool) -> list[Case]:
    """All cells: the fastest, then the others, each grouped by model, since enlarging one takes seconds."""
    every: list[Case] = []
    for size, words in product(DRY if dry else LLAMA, (None, DRY_WORDS if dry else LLAMA_WORDS)):
        if words is not None:
            every += [
                Case(size, 0.0, method, way, words, real_text=True)
                for method in SHAPES
                if SHAPES[method].size > 1
                for way in (("eager",) if dry else ("graphs", "graph"))
            ]
        every += [
            Case(size, temperature, method, target, words)
            for temperature in ((0.0,) if dry else (0.0, 1.0))
            for method in SHAPES
            for target in TARGETS
            if target != "graphs" or SHAPES[method].size > 1
            if words is None or target != "eager" or dry
        ]
    return sorted(every, key=lambda case: not case.is_fastest)


def run(session: Session, deadline: float) -> None:
    """Measure the cells until all exist or the time is over."""
    texts, todo = DRY_SIZES if session.dry else SIZES, cases(session.dry)
    store = session.store(
        "decode", dtype="bfloat16", cells=len(todo), trace=origin(),
        **dict(zip(("prompts", "prompt_tokens", "new_tokens"), texts, strict=True)),
    )  # fmt: skip
    pair, enlarged, problem, facts = None, None, "", {}
    judged: dict[str, dict[str, Any]] = {}
    for case in session.each("decode", todo, deadline, store):
        if (case.size, case.words) != enlarged:
            pair, enlarged, problem, facts = None, (case.size, case.words), "", {}
            judged = {}
            gc.collect()
            session.recover("the last model")
            try:
                shape = (DRY if session.dry else LLAMA)[case.size]
                pair, facts = enlarged_pair(shape, case.words, session.device, texts[1])
            except Exception as error:
                problem = f"loading: {in_words(error, 'the loading')}"
        cell = {"error": problem} if pair is None else _cell(pair, case, session, *texts)
        if pair is not None and case.temperature == 0 and (text_of := cell.get("text")):
            if text_of not in judged:
                judged[text_of] = _judged(pair, session, text_of, texts[1])
            cell |= judged[text_of]
            if not cell["greedy"]:
                session.fail("decode", case.key, "a token is not the best one, nor nearly so")
        session.keep("decode", store, case.key, case._asdict() | facts | cell)


@torch.inference_mode()
def _judged(pair: Pair, session: Session, text: str, prompt_tokens: int) -> dict[str, Any]:
    """Whether each token of the first text is the best one in float64, and where it is nearly so."""
    (given,) = embedded_prompts(pair.tokenizer, 1, prompt_tokens)
    prompt, tokens = (
        torch.tensor(ids, device=session.device) for ids in (given.ids, [*map(int, text.split())])
    )
    truth = judge_text(pair.target, prompt, tokens)
    ties = [(place, round(gap, 5)) for place, gap in truth.ties(tokens)]
    return {"greedy": truth.is_greedy(tokens), "ties": ties, "logit_bound": round(truth.bound, 5)}


def _cell(
    pair: Pair, case: Case, session: Session, count: int, prompt_tokens: int, new_tokens: int
) -> dict[str, Any]:
    try:
        make: Callable[[Any], Target] = ModelTarget
        if case.target != "eager":
            from treespec.target.graph import GraphTarget

            make = GraphTarget
        choose_passes(pair.draft, "captured" if case.target == "graphs" else "eager", draft=True)
    except (ImportError, Unavailable, UnsupportedModel) as error:
        return {"unavailable": in_words(error, "the decoding")}
    prompts = [
        torch.tensor(prompt.ids, device=session.device)
        for prompt in embedded_prompts(pair.tokenizer, count, prompt_tokens)
    ]
    shape, stages = SHAPES[case.method], [StageTimer(session.device) for _ in prompts]
    draft_passes = Spans()

    def decoded(
        text: int,
        tokens: int = new_tokens,
        stages: StageTimer | None = None,
        passes: Sequence[AbstractContextManager[None]] = (),
    ) -> TimedText:
        rule = replayed(case.method, text) if case.real_text else None
        steps = usual_steps(
            pair, shape, Sampling(case.temperature), prompts[text], tokens,
            target=make, observer=stages, rule=rule,
        )  # fmt: skip
        return timed_text(steps, session.device, passes)

    try:
        decoded(0, min(new_tokens, WARM_UP))
        if session.energy is not None:
            session.energy.begin()
        texts = [decoded(text) for text in range(count)]
        joules = None if session.energy is None else session.energy.end(0.0)
        # Stages and draft passes are timed in a separate run, since timing them takes time.
        staged = [
            decoded(text, stages=timer, passes=[timed_forward(pair.draft.model, draft_passes)])
            for text, timer in enumerate(stages)
        ]
    except (Unavailable, UnsupportedModel) as error:
        return {"unavailable": in_words(error, "the decoding")}
    except Exception as error:
        return {"error": in_words(error, "the decoding")}
    if not all(text.later for text in texts):
        return {"error": f"a text ended in its first step: {texts}"}
    steps, staged_steps = (sum(len(text.later) for text in runs) for runs in (texts, staged))
    tokens, seconds = sum(text.tokens for text in texts), sum(text.seconds for text in texts)
    medians = {
        name: statistics.median(s for timer in stages for s in timer.seconds[name][1:])
        for name in STAGES
    }
    # A captured pass runs none of the model's Python code: there the shape says how many there are.
    passes = len(draft_passes) / staged_steps or float(shape.depth)
    cached = statistics.mean(len(prompt) for prompt in prompts) + new_tokens / 2
    draft_bytes = pass_bytes(pair.draft.model, cached) if shape.size > 1 else 0.0
    verify_ms = 1e3 * pass_bytes(pair.target.model, cached + shape.size) / session.peak.bandwidth
    draft_ms = 1e3 * passes * draft_bytes / session.peak.bandwidth
    step_ms = 1e3 * seconds / steps
    layers: dict[str, Any] = {}
    if case.target != "eager":
        trial = compiled_layers(pair.target)
        layers = {"uncompiled": trial.why, "trial_s": round(trial.seconds, 1)}
    return layers | {
        "parameters": sum(weight.numel() for weight in pair.target.model.parameters()),
        "nodes": shape.size,
        "steps": steps,
        "tokens_per_step": round(tokens / steps, 3),
        "tokens_per_second": round(tokens / seconds, 2),
        "ms_per_step": round(step_ms, 4),
        "ms_per_token": round(1e3 * seconds / tokens, 4),
        "stage_ms": {stage: round(1e3 * value, 4) for stage, value in medians.items()},
        "draft_passes_per_step": round(passes, 3),
        "verify_floor_ms": verify_ms,
        "draft_floor_ms": draft_ms,
        "step_over_floor": round(step_ms / (verify_ms + draft_ms), 3),
        "step_over_measured": round(
            step_ms * session.measured.bandwidth / session.peak.bandwidth / (verify_ms + draft_ms),
            3,
        ),
        "joules_per_token": None if joules is None else round(joules / (count * new_tokens), 4),
        "verify_over_floor": round(1e3 * medians["verify"] / verify_ms, 3),
        # A replayed text is meaningless.
        **({} if case.real_text else {"text": " ".join(map(str, texts[0].text))}),
    }
