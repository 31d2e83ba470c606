"""Plain decoding against what a user would run instead, on the same weights, in turns.

    ours        plain decoding of treespec with captured passes
    generate    transformers' `generate` with a static cache, compiled and captured by transformers
    fast loop   a loop in the style of gpt-fast (`fast_loop`)

Each decodes the same prompt greedily; a sample is the time of a whole text, prompt included. In bfloat16
the three round differently, so their ids may part at a near tie: how many agree is recorded.
"""

import gc
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from treespec import Sampling, TreeShape, load_pair
from treespec.errors import Unavailable, UnsupportedModel, in_words
from treespec.experiments.measure.timing import in_turns, median_ratio, seconds_of, usual_steps
from treespec.experiments.research.benchmarks.gpu.decode_times import DRY, LLAMA
from treespec.experiments.research.benchmarks.gpu.fast_loop import FastLoop, attention_kernel
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.run.observers import synchronizer
from treespec.experiments.run.prompts import embedded_prompts
from treespec.experiments.run.transformers_hooks import plain_twin
from treespec.models.load import Pair

PEERS = ("generate", "fast loop")
OURS = "ours"
PROMPT, NEW, ROUNDS = 512, 128, 5
DRY_PROMPT, DRY_NEW, DRY_ROUNDS = 12, 4, 1


class Case(NamedTuple):
    """A size of model."""

    size: str

    @property
    def key(self) -> str:
        """A readable key for files and messages."""
        return self.size


def cases(dry: bool) -> list[Case]:
    """One cell for each size."""
    return [Case(size) for size in (DRY if dry else ("1B", "8B"))]


def run(session: Session, deadline: float) -> None:
    """Measure the sizes until all exist or the time is over."""
    todo = cases(session.dry)
    prompt, new = (DRY_PROMPT, DRY_NEW) if session.dry else (PROMPT, NEW)
    store = session.store(
        "peers", dtype="bfloat16", cells=len(todo), prompt_tokens=prompt, new_tokens=new
    )
    for case in session.each("peers", todo, deadline, store):
        try:
            cell = _cell(session, case, prompt, new)
        except Exception as error:
            cell = {"error": in_words(error, "the decoding")}
            if "out of memory" not in cell["error"]:
                session.fail("peers", case.key, cell["error"])
        store.add(case.key, case._asdict() | cell)
        gc.collect()
        session.recover(case.key)


def _cell(session: Session, case: Case, prompt_tokens: int, new: int) -> dict[str, Any]:
    shape = (DRY if session.dry else LLAMA)[case.size]
    pair = load_pair("embedded", dtype="bfloat16", device=session.device, enlarge=shape)
    (given,) = embedded_prompts(pair.tokenizer, 1, prompt_tokens)
    prompt = torch.tensor(given.ids, device=session.device)
    texts: dict[str, list[int]] = {}
    problems: dict[str, str] = {}
    wait = synchronizer(session.device)

    def timed(name: str, way: Callable[[], list[int]]) -> Callable[[], float]:
        return lambda: seconds_of(lambda: texts.update({name: way()}), wait)

    ways = {}
    for name, make in _ways(pair, prompt, new, compiled=not session.dry).items():
        try:
            way = timed(name, make())
            way()
        except (Unavailable, UnsupportedModel, RuntimeError) as error:
            problems[name] = in_words(error, name)
            continue
        ways[name] = way
    samples = in_turns(ways, DRY_ROUNDS if session.dry else ROUNDS)
    return {
        "tokens_per_second": {n: round(new / median(s), 2) for n, s in samples.items()},
        "ours_over": {
            n: round(median_ratio(samples[n], samples[OURS]), 4)
            for n in PEERS
            if n in samples and OURS in samples
        },
        "fast_loop_attention": attention_kernel(pair.target.model, prompt_tokens + new),
        "same_ids": {n: _agree(texts[n], texts.get(OURS, [])) for n in samples},
        "unavailable": problems,
    }


def _ways(
    pair: Pair, prompt: Tensor, new: int, *, compiled: bool
) -> dict[str, Callable[[], Callable[[], list[int]]]]:
    """What makes each way to decode the prompt: compiling, capturing and merging are not timed."""

    def ours() -> Callable[[], list[int]]:
        pair.target.reserve(len(prompt) + new)
        given = pair, TreeShape.chain(0), Sampling(temperature=0.0), prompt, new
        return lambda: [token for step in usual_steps(*given) for token in step.tokens]

    def by_generate() -> Callable[[], list[int]]:
        model: Any = plain_twin(pair.target)
        ids = prompt[None]
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False}
        options |= {"max_new_tokens": new, "cache_implementation": "static"}
        return lambda: model.generate(ids, **options)[0, len(prompt) :].tolist()

    def by_loop() -> Callable[[], list[int]]:
        loop = FastLoop(pair.target.model, len(prompt) + new, compiled=compiled)
        return lambda: loop(prompt, new)

    return {OURS: ours, "generate": by_generate, "fast loop": by_loop}


def _agree(ids: list[int], ours: list[int]) -> int:
    """How many tokens two texts have in common from the beginning."""
    count = 0
    for one, other in zip(ids, ours, strict=False):
        if one != other:
            break
        count += 1
    return count
