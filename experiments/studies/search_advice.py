"""Whether the advice of a search holds on texts that it has not seen.

    python -m treespec.experiments.studies.search_advice [TRACE ... --latency l.json] [--only PART ...]

Traces are those of `treespec trace`, times those of `treespec profile` of the same pair. Each part takes a
few minutes at most, and replaces its own figures in the file alone. Without `--only` all are done but live
runs; without traces the simulations.

- *unseen*: each trace is split in halves of its texts, again and again. From one half: the prediction for
  the advised shape and for 20 others (chains of up to 31 among them), over their replay on the other half,
  and how often both agree within their intervals (the root of the sum of squares of both half-widths, since
  the other half has an error of its own). And the choice: the speed on the other half of what was chosen,
  over that of the best of all shapes *chosen on that half* (which flatters that best), and over the choice
  by rates alone, as it was made before.
- *live*: the same predictions over live runs of each shape, on what follows the trace's texts in their
  files.
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
import warnings
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
from treespec.experiments.studies.false_advice import many_equals, two_equals
from treespec.search import LatencyModel, Ranking, Trace, best_tree, estimate_acceptance
from treespec.search.errors import SearchError
from treespec.search.rates.replay import replay, replay_many
from treespec.search.rates.totals import TextTotals
from treespec.shape import TreeShape
from treespec.testing import plane_trees

__all__ = [
    "EASY",
    "HARD",
    "by_rates",
    "exhaustive",
    "halves",
    "stretches",
    "unseen",
]

EASY = (0.97, 0.01, 0.005)
HARD = (0.15, 0.12, 0.1)
"""Acceptance by rank in the two kinds of stretches."""

OTHERS = {
    **{f"chain {deep}": TreeShape.chain(deep) for deep in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 31)},
    "2-ary 2": TreeShape.kary(2, 2), "2-ary 3": TreeShape.kary(2, 3), "3-ary 2": TreeShape.kary(3, 2),
    "2x1x1": TreeShape.expansion([2, 1, 1]), "3x2x1x1": TreeShape.expansion([3, 2, 1, 1]),
    "4 wide": TreeShape.expansion([4]), "2 chains x 4": TreeShape.independent_chains(2, 4),
    "3 chains x 3": TreeShape.independent_chains(3, 3),
}  # fmt: skip
SPLITS, SEARCHES = 30, 1000
NAME = "search_advice"
PARTS = {
    "unseen": "traces", "live": "live", "exhaustive": "exhaustive", "runs": "runs",
    "stretches": "stretches", "equals": "equals", "noisy": "noisy", "time": "time",
}  # fmt: skip
"""Parts, and their keys in the file."""
LIVE, SEVERAL = ("live", "runs"), ("unseen", "live", "runs")
"""Parts with live runs, and parts of several traces or runs."""
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


def by_rates(trace: Trace, latency: LatencyModel, **limits: Any) -> Ranking:
    """The ranking by rates alone: of trees by depth, and of chains by first children."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rates = estimate_acceptance(trace, by="depth")
        first = estimate_acceptance(trace, by="depth", ranks=1)
    return best_tree(rates, latency, chains=first, draws=40, laws=[trace.law], **limits)


def halves(trace: Trace, rng: np.random.Generator) -> tuple[Trace, Trace]:
    """Half of the texts, and the others."""
    order = rng.permutation(trace.texts)
    return (
        trace.part(np.sort(order[: trace.texts // 2])),
        trace.part(np.sort(order[trace.texts // 2 :])),
    )


def unseen(trace: Trace, latency: LatencyModel, splits: int) -> dict[str, Any]:
    """Predictions from one half of the texts over the other half, and the choice itself there."""
    rng = np.random.default_rng(0)
    shapes = {name: tree for name, tree in OTHERS.items() if _covered(trace, tree)}
    predicted: dict[str, list[float]] = {name: [] for name in ("advised", *shapes)}
    replayed: dict[str, list[float]] = {name: [] for name in ("advised", *shapes)}
    agreed: list[bool] = []
    choice: dict[str, list[float]] = {"of best there": [], "over rates": []}
    for _ in track(range(splits), description=f"{trace.about.get('name', 'trace')}"):
        seen, other = halves(trace, rng)
        ranking = best_tree(seen, latency, laws=[trace.law])
        first = ranking.best if ranking.best.size > 1 else ranking.rows[1]
        old = by_rates(seen, latency)
        asked = [first.shape, *shapes.values()]
        there = replay_many([other], asked)[0]
        for name, tree, found in zip(predicted, asked, there, strict=True):
            speed = ranking.speed(tree, trace.law)
            value = found.interval()
            predicted[name].append(speed.tokens)
            replayed[name].append(value.estimate)
            half = np.ptp(np.quantile(speed.tokens_drawn, (0.025, 0.975))) / 2
            wide = np.hypot(half, (value.high - value.low) / 2)
            agreed.append(bool(abs(speed.tokens - value.estimate) <= wide))
        wide_set = best_tree(other, latency, draws=40, laws=[trace.law])
        best = max(
            _speed(other, shape, latency)
            for shape in {*shapes.values(), *(row.shape for row in wide_set.rows)}
        )
        mine = _speed(other, ranking.best.shape, latency)
        choice["of best there"].append(mine / best)
        choice["over rates"].append(mine / _speed(other, old.best.shape, latency))
    # Means first: the halves of few texts are each other's opposites, which biases a mean of quotients.
    quotients = {name: mean(predicted[name]) / mean(replayed[name]) for name in predicted}
    return {
        "texts": trace.texts,
        "quotients": quotients,
        "worst": max((abs(one - 1), name) for name, one in quotients.items()),
        "agreed": mean(agreed),
        "choice": {name: median(values) for name, values in choice.items()},
    }


def _covered(trace: Trace, shape: TreeShape) -> bool:
    try:
        replay(trace, shape)
    except SearchError:
        return False
    return True


def _speed(trace: Trace, shape: TreeShape, latency: LatencyModel) -> float:
    """Tokens per second by replay."""
    law = trace.law if trace.law in latency.laws else None
    plain = shape.size == 1
    tokens = 1.0 if plain else replay(trace, shape).tokens_per_step
    seconds = latency.plain_s(law=law) if plain else latency.step_s(shape, law=law)
    return tokens / seconds


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
        small.append(_speed(trace, best_tree(trace, latency, draws=40).best.shape, latency) / best)
        latency = random_times(rng, max(nodes))
        for size in nodes:
            mine = best_tree(trace, latency, max_size=size, draws=40).best.shape
            old = by_rates(trace, latency, max_size=size).best.shape
            large[size].append(_speed(trace, mine, latency) / _speed(trace, old, latency))
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
        "live": lambda: {name: _live(*one) for name, one in known.items()},
        "exhaustive": lambda: exhaustive(cases, 60),
        "runs": lambda: {one: chosen_among(one, runs) for one in pair or PAIRS},
        "stretches": lambda: turns(splits),
        "equals": lambda: two_equals(searches),
        "noisy": lambda: many_equals(searches),
        "time": lambda: duration(positions),
    }
    for part in parts:
        figures = make[part]()
        show(console, part, figures)
        say(console, f"written: {kept(PARTS[part], figures, several=part in SEVERAL)}")


def kept(part: str, figures: Mapping[str, Any], *, several: bool) -> Path:
    """Write a part's figures into the file, beside those of other parts.

    Args:
        part: its key in the file.
        figures: what was found.
        several: whether figures of other traces, or runs, stay.
    """
    path, head = path_of(NAME), described(NAME)
    known = json.loads(path.read_text())["figures"] if path.is_file() else {}
    of_part = known.get(part, {}) | figures if several else figures
    measured = known.get("parts", {}) | {part: {key: head[key] for key in ("measured", "git_hash")}}
    return write(NAME, head | {"figures": known | {part: of_part, "parts": measured}})


def _live(trace: Trace, latency: LatencyModel) -> dict[str, Any]:
    shapes = {name: tree for name, tree in OTHERS.items() if _covered(trace, tree)}
    return live(trace, best_tree(trace, latency, draws=40, laws=[trace.law]), shapes)


def show(console: Console, part: str, figures: Mapping[str, Any]) -> None:
    """Print what a part found."""
    if part != "unseen":
        say(console, f"{part}: {figures}")
        return
    rows = [
        {"trace": name, "advised": one["quotients"]["advised"], "off": one["worst"][0]}
        | {"worst": one["worst"][1], "agreed": one["agreed"]}
        | {"best": one["choice"]["of best there"], "rates": one["choice"]["over rates"]}
        for name, one in figures.items()
    ]
    columns = (
        keyed("trace", "trace", left=True),
        keyed("advised: predicted/unseen", "advised", ".3f"),
        keyed("farthest off", "off", ".1%"),
        keyed("which", "worst", left=True),
        keyed("agree", "agreed", ".0%"),
        keyed("speed/best there", "best", ".3f"),
        keyed("speed/choice by rates", "rates", ".3f"),
    )
    print_table(Table("halves of the texts", columns, rows), console)


if __name__ == "__main__":
    typer.run(main)
