"""How exactly a comparison can be made on this device: a method against itself, in turns, 20 times over.

A run decodes one text by two equal copies of a method, in turns, clocks as they are, and gives the interval
of their ratio of times. The true ratio is 1, so an interval should contain it in 19 of 20 runs; its
half-width says which differences a comparison of this length can see. Energy is that of a whole run.
"""

import math
import time
from collections.abc import Callable
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch

from treespec import Sampling, load_pair
from treespec.errors import in_words
from treespec.experiments.measure.timing import in_turns, seconds_of, usual_steps
from treespec.experiments.research.benchmarks.gpu.decode_times import DRY, LLAMA, SHAPES
from treespec.experiments.research.benchmarks.gpu.gpu_session import Session, clocks
from treespec.experiments.run.observers import synchronizer
from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.passes.choosing_passes import choose_passes

RUNS, ROUNDS, NEW, PROMPT = 20, 24, 96, 512
DRY_RUNS, DRY_ROUNDS, DRY_NEW, DRY_PROMPT = 2, 2, 3, 12
METHOD = "chain 4"
LARGEST_HALF_WIDTH = 0.015
"""The goal: in 18 of 20 runs the interval is at most this wide to each side."""


class Case(NamedTuple):
    """One run."""

    run: int

    @property
    def key(self) -> str:
        """A readable key for files and messages."""
        return f"run {self.run}"


def cases(dry: bool) -> list[Case]:
    """All runs."""
    return [*map(Case, range(1, 1 + (DRY_RUNS if dry else RUNS)))]


def run(session: Session, deadline: float) -> None:
    """Measure the runs until all exist or the time is over."""
    todo, (size, *_) = cases(session.dry), DRY if session.dry else LLAMA
    store = session.store("aa", dtype="bfloat16", cells=len(todo), method=METHOD, size="1B")
    ways: dict[str, Callable[[], float]] = {}
    for case in session.each("aa", todo, deadline, store):
        try:
            ways = ways or _ways(session, size if session.dry else "1B")
            cell = _cell(ways, case, session)
        except Exception as error:
            cell = {"error": in_words(error, "the comparison")}
            session.fail("aa", case.key, cell["error"])
        store.add(case.key, case._asdict() | cell)
        if "error" in cell:
            return


def _cell(ways: dict[str, Callable[[], float]], case: Case, session: Session) -> dict[str, Any]:
    rounds, new = (DRY_ROUNDS, DRY_NEW) if session.dry else (ROUNDS, NEW)
    if session.energy is not None:
        session.energy.begin()
    start = time.perf_counter()
    samples = in_turns(ways, rounds, seed=case.run)
    seconds = time.perf_counter() - start
    joules = None if session.energy is None else session.energy.end(seconds)
    ratios = [math.log(a / b) for a, b in zip(*samples.values(), strict=True)]
    middle, half = mean(ratios), _half_width(ratios)
    return {
        "rounds": rounds,
        "ratio": round(math.exp(middle), 5),
        "half_width": round(half, 5),
        "contains_1": abs(middle) <= half,
        "joules_per_token": None if joules is None else round(joules / (2 * (rounds + 1) * new), 4),
        "clocks": clocks() if session.device.type == "cuda" else {},
    }


def _half_width(ratios: list[float]) -> float:
    """Half of the 95 % interval of the mean, by Student's t."""
    from scipy.stats import t

    return float(t.ppf(0.975, len(ratios) - 1)) * stdev(ratios) / len(ratios) ** 0.5


def _ways(session: Session, size: str) -> dict[str, Callable[[], float]]:
    shape = (DRY if session.dry else LLAMA)[size]
    pair = load_pair("embedded", dtype="bfloat16", device=session.device, enlarge=shape)
    if not session.dry:
        choose_passes(pair.draft, "captured", draft=True)
    length, new = (DRY_PROMPT, DRY_NEW) if session.dry else (PROMPT, NEW)
    (given,) = embedded_prompts(pair.tokenizer, 1, length)
    prompt = torch.tensor(given.ids, device=session.device)
    for part in (pair.target, pair.draft):
        part.reserve(length + new + SHAPES[METHOD].size)
    wait = synchronizer(session.device)

    def decoded() -> None:
        for _ in usual_steps(pair, SHAPES[METHOD], Sampling(temperature=0.0), prompt, new):
            pass

    def way() -> float:
        return seconds_of(decoded, wait)

    return {"A": way, "B": lambda: way()}
