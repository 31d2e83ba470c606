"""Simulate how well interleaved runs tell methods apart on a machine that others use too.

    python -m treespec.experiments.studies.interleaved_estimator [EXPERIMENTS] [--traces FOLDER]

Every simulated experiment has its own prompts, steps and machine. The methods of a world decode 48 tokens
of each prompt on that machine; the method with the fewest kept tokens runs next. The work of each step is
known, so the true ratio of costs is known. The study evaluates five ways to compare two methods:

- *by prompts*: methods take turns by whole prompts on the same kind of machine, and totals are compared;
- *totals*: totals of the interleaved steps;
- *nearest*: interleaved steps, adjusted by the nearest step of each other method (`studies.nearest_steps`)
  without its rule of when totals decide; *nearest, or totals*: with that rule;
- *adjusted*: interleaved steps, adjusted by `report.slowdown`.

Bias and standard deviation refer to the estimated ratio of costs over the ratio of the true work on the
same texts, that is, to the error that the machine causes. The half-width is the median over the 95 %
intervals of `report.statistics`. Coverage is the share of these intervals that contain the true ratio over
all possible prompts.

The machine is made up or recorded: `--traces` takes a folder of files that `benchmarks.slowdown_traces`
wrote, one for each kind of machine; an experiment starts at a random point of a trace.

The docstring of `report.slowdown` shows part of the results, see `studies.estimator_excerpts`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from treespec.experiments.benchmarks.results_file import print_and_save
from treespec.experiments.records.machine_load import allowed_cores
from treespec.experiments.report.slowdown import adjust
from treespec.experiments.report.statistics import bootstrap
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.report.timed_steps import Steps, totals
from treespec.experiments.studies.nearest_steps import nearest_steps

__all__ = [
    "MACHINES", "WAYS", "WORLDS", "Method", "Simulated", "World", "cell", "recorded", "simulate", "spread",
]  # fmt: skip

EXPERIMENTS, BATCH = 1000, 50
TOKENS = 48
GRID = 1e-3
"""Seconds between the points in time at which the speed of a machine is known."""
NOISE, SWITCH = 0.02, 5e-5
"""Relative spread of the work of equal steps; seconds between two steps."""

Machine = Callable[[np.random.Generator, int], NDArray[np.float64]]
"""Draws the slowdown of the machine relative to its best, at a number of points in time `GRID` apart."""


def _wander(
    rng: np.random.Generator, times: int, memory: float, spread: float
) -> NDArray[np.float64]:
    """An autoregressive process with a memory of `memory` seconds."""
    from scipy.signal import lfilter

    keep = np.exp(-GRID / memory)
    shocks = rng.normal(0, spread * sqrt(1 - keep**2), times)
    shocks[0] = rng.normal(0, spread)
    return np.asarray(lfilter([1], [1, -keep], shocks))


def _slices(rng: np.random.Generator, times: int, low: float, high: float) -> NDArray[np.float64]:
    """A new random slowdown every 4 ms, like the time slices of a scheduler."""
    return np.repeat(rng.uniform(low, high, times // 4 + 1), 4)[:times]


def quiet(rng: np.random.Generator, times: int) -> NDArray[np.float64]:
    """A machine without neighbours, whose clock wanders by 1 %."""
    return np.exp(_wander(rng, times, 0.3, 0.01))


def bursts(rng: np.random.Generator, times: int) -> NDArray[np.float64]:
    """A neighbour on one of two cores for 0.7 s of every 2 s: steps take 1.6 to 3 times as long."""
    second = np.arange(times) * GRID + rng.uniform(0, 2)
    return quiet(rng, times) * np.where(second % 2 < 0.7, _slices(rng, times, 1.6, 3.0), 1.0)


def drift(rng: np.random.Generator, times: int) -> NDArray[np.float64]:
    """A machine that becomes 30 % slower from beginning to end."""
    return quiet(rng, times) * np.linspace(1, 1.3, times)


def stalls(rng: np.random.Generator, times: int) -> NDArray[np.float64]:
    """A machine that stands still for about 50 ms at random times, every two seconds on average."""
    slowdown = quiet(rng, times)
    count = rng.poisson(times * GRID / 2)
    lengths = np.clip(np.exp(rng.normal(np.log(50), 0.7, count)), 10, 300).astype(int)
    for first, length in zip(rng.integers(0, times, count), lengths, strict=True):
        slowdown[first : first + length] *= 50
    return slowdown


def steady(rng: np.random.Generator, times: int) -> NDArray[np.float64]:
    """Neighbours on all cores all the time."""
    return np.exp(_wander(rng, times, 0.1, 0.15)) * _slices(rng, times, 1.2, 3.2)


MACHINES: Mapping[str, Machine] = {
    "quiet": quiet,
    "bursts": bursts,
    "drift": drift,
    "stalls": stalls,
    "steady": steady,
}


def recorded(path: Path) -> Machine:
    """A machine whose slowdown was recorded.

    Args:
        path: path of an `.npz` file with `at` and `seconds` of equal pieces of work, see
            `benchmarks.slowdown_traces`. Their fifth percentile counts as the machine at its best.

    Returns:
        A machine that draws its slowdown from a random point of the trace on; at the end the trace repeats.
    """
    at, slowdown = _trace(path)
    grid = np.arange(at[0], at[-1], GRID)
    on_grid = np.interp(grid, at, slowdown)

    def draw(rng: np.random.Generator, times: int) -> NDArray[np.float64]:
        return on_grid[(int(rng.integers(len(on_grid))) + np.arange(times)) % len(on_grid)]

    return draw


def _trace(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The times of a trace, and how many times as long as at its best the machine took then."""
    with np.load(path) as saved:
        at, seconds = saved["at"].astype(np.float64), saved["seconds"].astype(np.float64)
    return at, seconds / np.quantile(seconds, 0.05)


def spread(path: Path) -> dict[str, float]:
    """The median of the slowdowns of a trace and their 95th percentile, as `usual` and `slow`."""
    usual, slow = np.quantile(_trace(path)[1], [0.5, 0.95]).tolist()
    return {"usual": usual, "slow": slow}


@dataclass(frozen=True)
class Method:
    """A decoding method and the true cost of its steps.

    Args:
        name: name of the method.
        seconds: seconds of a step on the machine at its best.
        depth: draft tokens per step; 0 for plain decoding.
        dearer: factor on the cost of each step.
        dear: share of steps that cost five times as much.
        grows: relative increase of the cost of a step from the beginning to the end of a text.
        first: factor on the first step of a text, which then is a class of its own.
        bonus: added to the acceptance rate, for trees.
        free: draw a new depth for each step, from 2 to 6, at a cost that depends on the depth; such a
            method is not steady.
        feels: exponent of the machine's slowdown that the method is exposed to.
        chills: factor on the time of the two steps after a dear one, which leaves caches cold.
    """

    name: str
    seconds: float
    depth: int
    dearer: float = 1.0
    dear: float = 0.0
    grows: float = 0.0
    first: float = 1.0
    bonus: float = 0.0
    free: bool = False
    feels: float = 1.0
    chills: float = 1.0

    def text(self, rng: np.random.Generator, rate: float) -> list[tuple[int, float, int, float]]:
        """For each step of a text: tokens kept before it, its work, its class within the method, and the
        factor on the time of the steps after it."""
        kept, steps = 0, []
        depths = rng.integers(2, 7, TOKENS).tolist() if self.free else [self.depth] * TOKENS
        # draft tokens in a row that would be accepted
        runs = (rng.geometric(max(1 - rate - self.bonus, 0.02), TOKENS) - 1).tolist()
        lucky = rng.random(TOKENS).tolist()
        while kept < TOKENS:
            depth = depths[len(steps)]
            emitted = 1 + min(depth, runs[len(steps)])
            work = self.seconds * self.dearer * (1 + self.grows * kept / TOKENS)
            work *= 0.55 + 0.11 * depth if self.free else 1.0
            dear, opens = lucky[len(steps)] < self.dear, not kept and self.first != 1
            work *= (5 if dear else 1) * (self.first if opens else 1)
            steps.append((kept, work, -1 if opens else depth, self.chills if dear else 1.0))
            kept += emitted
        return steps


@dataclass(frozen=True)
class World:
    """Methods that run together; the first two are compared.

    Args:
        name: name of the world.
        methods: the methods; those after the first two only help to estimate the slowdown.
        twins: whether the first two keep the same tokens, as at temperature 0.
    """

    name: str
    methods: tuple[Method, ...]
    twins: bool = True


_CHAIN = Method("chain", 14e-3, 4)
_REST = (Method("plain", 8e-3, 0), Method("tree", 20e-3, 5, bonus=0.08), Method("short", 4e-3, 2))

WORLDS = (
    World("A/A", (_CHAIN, _CHAIN, *_REST)),
    World("5 % dearer", (Method("dearer", 14e-3, 4, dearer=1.05), _CHAIN, *_REST)),
    World("several classes", (Method("free", 20e-3, 6, free=True), _CHAIN, *_REST[:2]), False),
    World(
        "rare dear steps",
        (Method("dear", 14e-3, 4, dear=0.02), _CHAIN, *_REST[:2], Method("generate", 7e-3, 0, first=3)),
    ),
    World(
        "rare dear steps chill caches",
        (
            Method("dear", 14e-3, 4, dear=0.02, chills=1.5), _CHAIN, *_REST[:2],
            Method("generate", 7e-3, 0, first=3),
        ),
    ),
    World(
        "caches grow",
        (
            Method("grows", 14e-3, 4, grows=0.3), _CHAIN,
            Method("plain", 8e-3, 0, grows=0.05), Method("tree", 20e-3, 5, grows=0.1, bonus=0.08),
        ),
    ),
)  # fmt: skip

HARD_WORLDS = (
    World("A/A, no other method", (_CHAIN, _CHAIN)),
    World("feels 0.8 of it", (Method("numb", 14e-3, 4, feels=0.8), _CHAIN, *_REST)),
)
"""More worlds: one with as few methods as possible, and one with a method that contention slows less."""


@dataclass(frozen=True)
class Simulated:
    """A simulated run.

    Args:
        steps: the recorded steps.
        true: `[M, P]`, true work of each method on each prompt, in seconds.
    """

    steps: Steps
    true: NDArray[np.float64]


def simulate(
    world: World,
    machine: Machine,
    rng: np.random.Generator,
    prompts: int,
    *,
    by_prompts: bool = False,
) -> Simulated:
    """Run the methods of a world on a machine.

    Args:
        world: the methods.
        machine: the machine that they run on.
        rng: source of all random draws.
        prompts: number of prompts.
        by_prompts: whether methods take turns by prompts instead of by steps.
    """
    rows = []
    for prompt, rate in enumerate(rng.beta(8, 4, prompts)):
        seed = int(rng.integers(1 << 62))
        turns = rng.permutation(len(world.methods))
        for number, method in enumerate(world.methods):
            coins = np.random.default_rng([seed, 0 if world.twins and number < 2 else number])
            rows += [
                (number, prompt, kept, work, size, turns[number], chills)
                for kept, work, size, chills in method.text(coins, rate)
            ]
    table = np.array(rows)
    keys = (table[:, 2], table[:, 5]) if by_prompts else (rng.random(len(table)), table[:, 2])
    table = table[np.lexsort((*keys, table[:, 1]))]
    method, prompt, size = (table[:, i].astype(np.int64) for i in (0, 1, 4))
    behind = np.ones(len(table) + 2)
    for later in (1, 2):
        behind[later : later + len(table)] *= table[:, 6]
    work = table[:, 3] * np.exp(rng.normal(0, NOISE, len(table))) * behind[: len(table)]
    finished = np.cumsum(work + SWITCH)
    times, done = int((1.2 * finished[-1] + 0.1) / GRID), np.zeros(1)
    while done[-1] < finished[-1]:  # a slow machine needs longer
        done = np.concatenate([[0], np.cumsum(GRID / machine(rng, times))])
        times = int(1.3 * times)
    clock = GRID * np.arange(len(done))
    start, end = (np.interp(place, done, clock) for place in (finished - work, finished))
    feels = np.array([m.feels for m in world.methods])[method]
    seconds = work * ((end - start) / work) ** feels
    true = np.zeros((len(world.methods), prompts))
    np.add.at(true, (method, prompt), table[:, 3])
    classes = np.unique(method * 100 + size, return_inverse=True)[1]
    steady = np.array([not m.free for m in world.methods])
    return Simulated(
        Steps(
            method, prompt, classes.astype(np.int64), (start + end) / 2, seconds, steady, prompts
        ),
        true,
    )


@cache
def truth(world: World, prompts: int = 20_000) -> float:
    """True cost of the first method over that of the second, over all possible prompts."""
    rng = np.random.default_rng(1)
    if world.methods[0] == world.methods[1]:
        return 1.0
    cost = np.zeros(2)
    for rate in rng.beta(8, 4, prompts):
        seed = int(rng.integers(1 << 62))
        for number in (0, 1):
            coins = np.random.default_rng([seed, 0 if world.twins else number])
            cost[number] += sum(work for _, work, *_ in world.methods[number].text(coins, rate))
    return float(cost[0] / cost[1])


WAYS = ("by prompts", "totals", "nearest", "nearest, or totals", "adjusted")

COLUMNS = (
    keyed("methods", "world", left=True),
    keyed("machine", "machine", left=True),
    *chain.from_iterable(
        (
            keyed(f"{way}\nbias", f"{way}, bias", "+.2%"),
            keyed("\nsd", f"{way}, sd", ".2%"),
            keyed("half-\nwidth", f"{way}, half-width", ".2%"),
            keyed("cover-\nage", f"{way}, coverage", ".1%"),
        )
        for way in WAYS
    ),
    keyed("re-\nmarks", "remarks", ".0%"),
)


def cell(
    world: World, machine: Machine, experiments: int, prompts: int, seed: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Run experiments of one kind.

    Args:
        world: the methods.
        machine: the machine that they run on.
        experiments: number of experiments.
        prompts: prompts per experiment.
        seed: seed of all random draws.

    Returns:
        For each way, `[experiments, 4]`: estimated over true ratio of costs on the same texts, the estimate
        and the bounds of its interval; and `remarks`, whether the estimator made a remark or left it to
        totals.
    """
    by_way: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    remarks = []
    for first in range(0, experiments, BATCH):
        columns: dict[Any, NDArray[np.float64]] = {}
        true = {}
        for i in range(first, min(first + BATCH, experiments)):
            rng = np.random.default_rng([seed, i, *world.name.encode()])
            separate = simulate(world, machine, rng, prompts, by_prompts=True)
            run = simulate(world, machine, rng, prompts)
            adjusted = adjust(run.steps)
            remarks.append(bool(adjusted.dear or adjusted.restless or adjusted.reason))
            times = {
                "by prompts": (totals(separate.steps, separate.steps.seconds), separate.true),
                "totals": (totals(run.steps, run.steps.seconds), run.true),
                "nearest": (nearest_steps(run.steps, most_apart=1.0), run.true),
                "nearest, or totals": (nearest_steps(run.steps), run.true),
                "adjusted": (adjusted.seconds, run.true),
            }
            for way, (seconds, works) in times.items():
                columns |= {(i, way, 0): seconds[0], (i, way, 1): seconds[1]}
                true[i, way] = works[0].sum() / works[1].sum()
        resampled = bootstrap(columns, seed=first)
        for i, way in true:
            ratio = resampled.ratio([(i, way, 0)], [(i, way, 1)])
            by_way[way].append((ratio.estimate / true[i, way], *ratio))
    return {way: np.array(rows) for way, rows in by_way.items()} | {"remarks": np.array(remarks)}


def summary(world: World, by_way: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Bias, standard deviation, median half-width and coverage of each way, and the share with remarks."""
    true_ratio = truth(world)
    row: dict[str, float] = {"remarks": float(by_way["remarks"].mean())}
    for way in WAYS:
        error, _, low, high = by_way[way].T
        row |= {
            f"{way}, bias": float(error.mean() - 1),
            f"{way}, sd": float(error.std()),
            f"{way}, half-width": float(np.median(high - low) / 2 / true_ratio),
            f"{way}, coverage": float(
                ((low <= true_ratio * (1 + 1e-9)) & (true_ratio <= high * (1 + 1e-9))).mean()
            ),
        }
    return row


def _job(world: World, machine: str, traces: Path | None, experiments: int, prompts: int) -> Any:
    drawn = MACHINES[machine] if traces is None else recorded(traces / f"{machine}.npz")
    return summary(world, cell(world, drawn, experiments, prompts))


def main(
    experiments: Annotated[
        int, typer.Argument(min=1, help="Experiments of each kind.")
    ] = EXPERIMENTS,
    prompts: Annotated[int, typer.Option(min=2, help="Prompts of each experiment.")] = 12,
    traces: Annotated[Path | None, typer.Option(help="Folder of recorded machines.")] = None,
) -> None:
    """Simulate all kinds of experiments; print and save their errors."""
    console = Console(width=150)
    begun = time.perf_counter()
    machines: Sequence[str] = (
        list(MACHINES) if traces is None else sorted(path.stem for path in traces.glob("*.npz"))
    )
    with ProcessPoolExecutor(len(allowed_cores()), mp_context=get_context("spawn")) as pool:
        jobs = [
            (kind, pool.submit(_job, *kind, traces, experiments, prompts))
            for kind in product((*WORLDS, *HARD_WORLDS), machines)
        ]
        rows = [
            {"world": world.name, "machine": machine, **job.result()}
            for (world, machine), job in track(jobs, "simulating", console=console, transient=True)
        ]
    name = "interleaved_estimator" if traces is None else "interleaved_estimator_recorded"
    figures: dict[str, Any] = {"experiments": experiments, "prompts": prompts, "kinds": rows}
    if traces is not None:
        figures["traces"] = {machine: spread(traces / f"{machine}.npz") for machine in machines}
    print_and_save(
        name,
        figures,
        Table("error of the ratio of costs, and its 95 % interval", COLUMNS, rows),
        f"{experiments} experiments of each kind, {prompts} prompts of {TOKENS} tokens; standard error of "
        f"a coverage of 95 %: {sqrt(0.05 * 0.95 / experiments):.1%}; {time.perf_counter() - begun:.0f} s",
        width=150,
    )


if __name__ == "__main__":
    typer.run(main)
