"""What a step consists of: the time of each kernel, and what is left, beside the bytes that it must read.

`ms_per_step` is measured without the profiler; `kernels_ms` is the sum over the kernels that it sees; the
difference is the time in which the device waits: for the host, and between kernels. A kernel that reads
weights should take its bytes over the bandwidth; the others are what a step costs beyond them. Models have
their own words, and as many as Llama 3 (`wide_words`); there a chain also replays what was accepted in real
texts (`real_text`), by which the host decides: copies of rows to it are among the kernels.
"""

import gc
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from treespec import Sampling
from treespec.errors import in_words
from treespec.experiments.measure.roofline import pass_bytes
from treespec.experiments.measure.timing import usual_steps
from treespec.experiments.research.benchmarks.gpu.decode_times import DRY, DRY_WORDS, LLAMA, SHAPES
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session
from treespec.experiments.research.benchmarks.gpu.real_text import origin, replayed
from treespec.experiments.research.benchmarks.gpu.wide_words import LLAMA_WORDS, enlarged_pair
from treespec.experiments.run.observers import synchronizer
from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.load import Pair
from treespec.models.passes.choosing_passes import choose_passes
from treespec.step import Step

PROMPT, WARM_UP, STEPS = 512, 6, 10
DRY_PROMPT, DRY_STEPS = 12, 1
MOST_KERNELS = 16
"""Kernels that are listed; the others are added up."""


class Case(NamedTuple):
    """A size of model and a method."""

    size: str
    method: str
    words: int | None = None
    real_text: bool = False
    """Whether the acceptance of a real text is replayed (`real_text`)."""

    @property
    def key(self) -> str:
        """A readable key for files and messages."""
        words = "" if self.words is None else f" {self.words} words"
        text = " real text" if self.real_text else ""
        return f"{self.size}{words}{text} {self.method}"


def cases(dry: bool) -> list[Case]:
    """All cells, grouped by model, the largest first."""
    if dry:
        (size,) = DRY
        return [Case(size, "chain 4"), Case(size, "chain 4", DRY_WORDS, real_text=True)]
    every = []
    for size in ("8B", "1B"):
        every += [Case(size, method) for method in ("chain 4", "plain")]
        every += [Case(size, method, LLAMA_WORDS) for method in ("chain 4", "plain")]
        every.append(Case(size, "chain 4", LLAMA_WORDS, real_text=True))
    return every


def run(session: Session, deadline: float) -> None:
    """Measure the cells until all exist or the time is over."""
    todo = cases(session.dry)
    store = session.store("profile", dtype="bfloat16", cells=len(todo), steps=STEPS, trace=origin())
    pair, facts, made = None, {}, None
    for case in session.each("profile", todo, deadline, store):
        try:
            if pair is None or made != (case.size, case.words):
                pair, made = None, (case.size, case.words)
                gc.collect()
                session.recover("the last model")
                shape = (DRY if session.dry else LLAMA)[case.size]
                length = DRY_PROMPT if session.dry else PROMPT
                pair, facts = enlarged_pair(shape, case.words, session.device, length)
                if not session.dry:
                    choose_passes(pair.draft, "captured", draft=True)
            cell = facts | _cell(pair, case, session)
        except Exception as error:
            cell = {"error": in_words(error, "the profile")}
        session.keep("profile", store, case.key, case._asdict() | cell)


def _cell(pair: Pair, case: Case, session: Session) -> dict[str, Any]:
    length, count = (DRY_PROMPT, DRY_STEPS) if session.dry else (PROMPT, STEPS)
    (given,) = embedded_prompts(pair.tokenizer, 1, length)
    prompt = torch.tensor(given.ids, device=session.device)
    wait, steps = synchronizer(session.device), _steps(pair, case, prompt)
    for _ in islice(steps, 1 if session.dry else WARM_UP):
        pass
    wait()
    start = time.perf_counter()
    for _ in islice(steps, count):
        pass
    wait()
    ms = 1e3 * (time.perf_counter() - start) / count
    on_gpu = session.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in islice(steps, count):
            pass
        wait()
    kernels = _kernels(seen, count, on_gpu)
    total = sum(kernel["us"] for kernel in kernels) / 1e3
    moved = pass_bytes(pair.target.model, len(prompt) + SHAPES[case.method].size)
    floor = 1e3 * moved / session.peak.bandwidth
    return {
        "ms_per_step": round(ms, 4),
        "kernels_ms": round(total, 4),
        "launches": round(sum(kernel["calls"] for kernel in kernels), 1),
        "waiting_ms": round(ms - total, 4),
        "floor_ms": round(floor, 4),
        "over_sheet": round(ms / floor, 3),
        "over_measured": round(ms / (1e3 * moved / session.measured.bandwidth), 3),
        "kernels": kernels[:MOST_KERNELS],
        "others_us": round(sum(kernel["us"] for kernel in kernels[MOST_KERNELS:]), 2),
    }


def _steps(pair: Pair, case: Case, prompt: torch.Tensor) -> Iterator[Step]:
    """Steps without an end: greedy, as many as the context holds."""
    shape = SHAPES[case.method]
    room = 40 * shape.size
    for part in (pair.target, pair.draft):
        part.reserve(len(prompt) + room + shape.size)
    rule = replayed(case.method, 0) if case.real_text else None
    return usual_steps(pair, shape, Sampling(temperature=0.0), prompt, room, rule=rule)


def _kernels(seen: Any, steps: int, on_gpu: bool) -> list[dict[str, Any]]:
    """Name, calls and microseconds of each kernel, per step, the longest first."""
    time_of = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = [
        {
            "name": event.key,
            "calls": round(event.count / steps, 2),
            "us": round(getattr(event, time_of) / steps, 2),
        }
        for event in seen.key_averages()
    ]
    rows = [row for row in rows if row["us"] > 0]
    return sorted(rows, key=lambda row: -row["us"])
