"""Whether the advice of a search holds on texts that it has not seen.

    python -m treespec.experiments.studies.search_advice [TRACE ... --latency l.json] [--only PART ...]

Traces are those of `treespec trace`, times those of `treespec profile` of the same pair. Each part takes a
few minutes at most, and replaces its own figures in the file alone. Without `--only` all are done but live
runs; without traces the simulations.

- *unseen*: each trace is split in halves of its texts, again and again. From each half: the prediction
  for the advised shape and for 20 others (chains of up to 31 among them), over their replay on the other
  half, and how often both agree within their intervals (the root of the sum of squares of both
  half-widths, since the other half has an error of its own). And the choice: the speed on the other half of
  what was chosen, over that of the best of all shapes *chosen on that half* (which flatters that best), and
  over the choice by rates alone, as it was made before. Over both ways of each split, and over one of them.
- *live*: the same predictions over live runs of each shape, on the trace's own texts and on what follows
  them in their files.
- *exhaustive*: over the best of all trees of up to eight nodes by replay, on long simulated traces; and
  over the choice by rates alone at 16 to 64 nodes, valued by replay.
- *runs*: what `search_then_run` chose over the fastest of its run, by the run's adjusted times, for one of
  three targets (`--pair`). Wants a quiet machine, as `live` does not.
- *stretches*: texts in which easy and hard stretches take turns. Predictions from the trace, and from rates
  by depth of all its positions, over what thousands of other texts give.
- *equals*: a tree and a chain of the same true speed; how often either is advised (`false_advice`).
- *noisy*: the same of many shapes of one speed, with times that were measured with noise.
- *time*: of a search on 24 texts, and on a million positions.
"""

import json
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from treespec.experiments.benchmarks.results_file import described, path_of, write
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.studies.advice_live import PAIRS, chosen_among, live
from treespec.experiments.studies.advice_unseen import (
    OTHERS,
    by_rates,
    covered,
    speed_on,
    unseen,
)
from treespec.experiments.studies.false_advice import many_equals, two_equals
from treespec.search import LatencyModel, Trace, best_tree
from treespec.search.rates.replay import replay
from treespec.search.rates.totals import TextTotals
from treespec.testing import plane_trees

__all__ = ["EASY", "HARD", "exhaustive", "stretches"]

EASY = (0.97, 0.01, 0.005)
HARD = (0.15, 0.12, 0.1)
"""Acceptance by rank in the two kinds of stretches."""

SPLITS, SEARCHES = 30, 1000
NAME = "search_advice"
PARTS = {
    "unseen": "traces", "live": "live", "exhaustive": "exhaustive", "runs": "runs",
    "stretches": "stretches", "equals": "equals", "noisy": "noisy", "time": "time",
}  # fmt: skip
"""Parts, and their keys in the file."""
LIVE, SEVERAL = ("live", "runs"), ("unseen", "live", "runs")
"""Parts with live runs, which have files of their own, and parts of several traces or runs."""
UNIT = LatencyModel.from_tables(
    verify={1: 20.0, 8: 22.0, 16: 25.0, 32: 33.0, 64: 50.0}, draft={1: 1.0, 32: 1.6}
)
"""Times of a made-up machine, for simulations."""


def stretches(
    rng: np.random.Generator, texts: int, positions: int, stay: float = 0.9, beyond: int = 16
) -> Trace:
    """A trace of easy and hard stretches, which end at each position with probability `1 - stay`."""
    length = positions + beyond
    change = rng.random((texts, length)) >= stay
    change[:, 0] = rng.random(texts) < 0.5
    hard = change.cumsum(axis=1) % 2 == 1
    accepted = np.where(hard[..., None], HARD, EASY).reshape(-1, 3)
    ranks = (rng.random((texts * length, 1)) >= accepted.cumsum(axis=1)).sum(axis=1)
    return Trace(
        offsets=np.arange(texts + 1) * length, tokens=np.zeros_like(ranks), ranks=ranks, probs=accepted,
        accepted=accepted, law="iid", rule="rrs", sampling={"temperature": 1.0}, width=3,
        kept=np.full(texts, positions),
    )  # fmt: skip


def random_times(rng: np.random.Generator, largest: int) -> LatencyModel:
    """Times of a machine that is not there."""
    sizes = sorted({1, 2, 4, 8, largest})
    verify = 20 * (1 + np.cumsum(rng.exponential(0.04, len(sizes))))
    levels = rng.uniform(0.3, 3) * (1 + np.cumsum(rng.exponential(0.05, len(sizes))))
    return LatencyModel.from_tables(
        verify=dict(zip(sizes, verify.tolist(), strict=True)),
        draft=dict(zip(sizes, levels.tolist(), strict=True)),
    )


def exhaustive(cases: int, texts: int, nodes: Sequence[int] = (16, 32, 64)) -> dict[str, Any]:
    """The choice over the best of all trees of eight nodes, and over that by rates at more nodes."""
    rng = np.random.default_rng(1)
    every = [tree for size in range(2, 9) for tree in plane_trees(size)]
    narrow = [tree for tree in every if max(map(len, tree.children)) <= 3]
    small, large = [], {size: [] for size in nodes}
    for _ in track(range(cases), description="exhaustive"):
        trace, latency = stretches(rng, texts, 64, rng.uniform(0.8, 0.97)), random_times(rng, 8)
        emitted, steps = (part.sum(axis=1) for part in TextTotals(trace).of(narrow))
        speeds = [
            float(e / s / latency.step_s(tree))
            for e, s, tree in zip(emitted, steps, narrow, strict=True)
        ]
        best = max(1 / latency.plain_s(), *speeds)
        small.append(
            speed_on(trace, best_tree(trace, latency, draws=40).best.shape, latency) / best
        )
        latency = random_times(rng, max(nodes))
        for size in nodes:
            mine = best_tree(trace, latency, max_size=size, draws=40).best.shape
            old = by_rates(trace, latency, max_size=size).best.shape
            large[size].append(speed_on(trace, mine, latency) / speed_on(trace, old, latency))
    return {
        "cases": cases,
        "texts": texts,
        "of the best": {"median": median(small), "worst": min(small)},
        "over rates": {
            str(size): {"median": median(found), "worst": min(found)}
            for size, found in large.items()
        },
    }


def turns(repeats: int) -> dict[str, Any]:
    """Predictions over what many more texts of easy and hard stretches give, in the mean over traces."""
    rng = np.random.default_rng(2)
    shapes = {
        name: OTHERS[name] for name in ("chain 2", "chain 4", "chain 8", "chain 12", "2-ary 3")
    }
    truth = stretches(rng, 10_000, 256)
    values = {name: replay(truth, tree).tokens_per_step for name, tree in shapes.items()}
    from_trace: dict[str, list[float]] = {name: [] for name in ("advised", *shapes)}
    from_rates: dict[str, list[float]] = {name: [] for name in shapes}
    for _ in track(range(repeats), description="stretches"):
        trace = stretches(rng, 240, 256)
        ranking = best_tree(trace, UNIT, max_size=32, draws=40)
        old = by_rates(trace, UNIT, max_size=32)
        first = ranking.best
        value = replay(truth, first.shape).tokens_per_step
        from_trace["advised"].append(first.tokens_per_step.estimate / value)
        for name, tree in shapes.items():
            from_trace[name].append(replay(trace, tree).tokens_per_step / values[name])
            from_rates[name].append(old.speed(tree, "iid").tokens / values[name])
    return {
        "repeats": repeats,
        "from the trace": {name: mean(found) for name, found in from_trace.items()},
        "from rates": {name: mean(found) for name, found in from_rates.items()},
    }


def duration(positions: int) -> dict[str, Any]:
    """Seconds of a search on 24 texts and on so many positions, and the most memory so far."""
    seconds = {}
    for texts in (24, positions // 80):
        trace = stretches(np.random.default_rng(4), texts, 64)
        start = time.perf_counter()
        best_tree(trace, UNIT)
        seconds[len(trace.tokens)] = time.perf_counter() - start
    return {
        "seconds": seconds,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main(
    traces: Annotated[list[Path] | None, typer.Argument(help="of `treespec trace`")] = None,
    latency: Annotated[Path | None, typer.Option(help="of `treespec profile`")] = None,
    only: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(PARTS)}")] = None,
    pair: Annotated[list[str] | None, typer.Option(help=f"of runs: {', '.join(PAIRS)}")] = None,
    runs: Annotated[Path, typer.Option(help="where folders of runs are")] = Path("runs"),
    prompts: Annotated[
        int | None,
        typer.Option(min=2, help="of live runs, for a trial: figures are printed and not saved"),
    ] = None,
    splits: Annotated[int, typer.Option(min=2, help="of each trace in halves")] = SPLITS,
    searches: Annotated[int, typer.Option(min=1, help="of equally fast shapes")] = SEARCHES,
    cases: Annotated[int, typer.Option(min=1, help="searches against all trees")] = 20,
    positions: Annotated[int, typer.Option(min=800, help="of the search that is timed")] = 10**6,
) -> None:
    """Hold advice against texts that it has not seen, print it, and save it."""
    parts = only or [part for part in PARTS if part not in LIVE and (traces or part != "unseen")]
    unknown = [*(set(parts) - {*PARTS}), *(set(pair or ()) - {*PAIRS})]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]}: parts are {', '.join(PARTS)}; pairs {', '.join(PAIRS)}"
        )
    if {"unseen", "live"} & {*parts} and not traces:
        raise typer.BadParameter(f"{parts[0]} needs traces of `treespec trace`")
    console, known = Console(width=120), dict[str, tuple[Trace, LatencyModel]]()
    times = UNIT if latency is None else LatencyModel.load(latency)
    for path in traces or ():
        trace = Trace.load(path)
        name = f"{trace.about.get('name', path.stem)}, {trace.about.get('sampling', trace.law)}"
        known[name] = trace, times if trace.law in times.laws else UNIT
    make: dict[str, Callable[[], dict[str, Any]]] = {
        "unseen": lambda: {name: unseen(*one, splits) for name, one in known.items()},
        "live": lambda: {name: _live(*one, prompts) for name, one in known.items()},
        "exhaustive": lambda: exhaustive(cases, 60),
        "runs": lambda: {one: chosen_among(one, runs, prompts) for one in pair or PAIRS},
        "stretches": lambda: turns(splits),
        "equals": lambda: two_equals(searches),
        "noisy": lambda: many_equals(searches),
        "time": lambda: duration(positions),
    }
    for part in parts:
        figures = make[part]()
        show(console, part, figures)
        if prompts is None or part not in LIVE:
            say(console, f"written: {kept(part, figures)}")


def kept(part: str, figures: Mapping[str, Any]) -> Path:
    """Write a part's figures into its file, beside those of other parts, and of other traces or runs.

    Args:
        part: its name.
        figures: what was found.
    """
    name = f"advice_{part}" if part in LIVE else NAME
    path, head = path_of(name), described(name)
    known = json.loads(path.read_text())["figures"] if path.is_file() else {}
    of_part = known.get(PARTS[part], {}) | figures if part in SEVERAL else figures
    now = {part: {key: head[key] for key in ("measured", "git_hash")}}
    new = {PARTS[part]: of_part, "parts": known.get("parts", {}) | now}
    return write(name, head | {"figures": known | new})


def _live(trace: Trace, latency: LatencyModel, texts: int | None) -> dict[str, Any]:
    shapes = {name: tree for name, tree in OTHERS.items() if covered(trace, tree)}
    return live(trace, best_tree(trace, latency, draws=40, laws=[trace.law]), shapes, texts)


def show(console: Console, part: str, figures: Mapping[str, Any]) -> None:
    """Print what a part found."""
    if part != "unseen":
        say(console, f"{part}: {figures}")
        return
    rows = [
        {"trace": name, "texts": one["texts"], "advised": one["quotients"]["advised"]}
        | {"off": one["worst"][0], "one way": one["one way"]["worst"][0]}
        | {"which": one["one way"]["worst"][1], "agreed": one["agreed"]}
        | {"chance": one["one way"]["chance"][one["one way"]["worst"][1]]}
        | {"best": one["choice"]["of best there"], "rates": one["choice"]["over rates"]}
        | {name: one["choice"]["pooled"][name] for name in ("log", "error")}
        for name, one in figures.items()
    ]
    columns = (
        keyed("trace", "trace", left=True),
        keyed("texts", "texts", "d"),
        keyed("advised: predicted/unseen", "advised", ".3f"),
        keyed("farthest off", "off", ".1%"),
        keyed("one way", "one way", ".1%"),
        keyed("its chance", "chance", ".1%"),
        keyed("which", "which", left=True),
        keyed("agree", "agreed", ".0%"),
        keyed("speed/best there", "best", ".3f"),
        keyed("speed/choice by rates", "rates", ".3f"),
        keyed("pooled", "log", "+.1%"),
        keyed("error", "error", ".1%"),
    )
    print_table(Table("halves of the texts", columns, rows), console)


if __name__ == "__main__":
    typer.run(main)
