"""Test whether the advice of a search holds on texts that it has not seen.

    python -m treespec.experiments.studies.search_advice [TRACE ... --latency l.json] [--only PART ...]

Traces come from `treespec trace`, times from `treespec profile` of the same pair with the law of each
trace, so the search is that of `treespec search TRACE --latency l.json`. Each part replaces only its own
figures in the result file. Without `--only`, all parts except live runs are done; without traces, only the
simulations.

- *unseen*: each trace is split into halves of its texts many times, and the advised shape is searched in
  each half. Its prediction is compared with its replay on the other half. The speed of the choice there is
  compared with the best of all shapes *chosen on that half* (which flatters that best), and with the choice
  by rates alone, as searches made it before. 20 other shapes (including chains of up to 31) are replayed in
  many more splits, one way each, which needs no search. Halves agree if they differ by at most the root of
  the sum of squares of both half-widths, since each half has an error of its own.
- *live*: predictions compared with live runs of each shape, on the trace's own texts and on the texts that
  follow them in their files.
- *exhaustive*: the choice compared with the best of all trees of up to eight nodes by replay, on long
  simulated traces; and with the choice by rates alone at 16 to 64 nodes, evaluated by replay.
- *runs*: the choice of `search_then_run` compared with the fastest shape of its run, by the run's adjusted
  times, for the named targets (`--pair`) or all targets. Needs a quiet machine, unlike `live`.
- *stretches*: texts in which easy and hard stretches alternate. Predictions from the trace, and from rates
  by depth over all its positions, compared with thousands of other texts.
- *equals*: a tree and a chain of the same true speed; how often either is advised (`false_advice`).
- *noisy*: the same for many shapes of equal speed and times measured with noise, with as many rounds as
  `treespec profile` has by default, and with more.
- *sources*: chains of several drafts that are equally fast, and faster than plain decoding: how often one
  of them is advised, in a quarter of the searches.
- *time*: duration of the command on each trace, and on a made-up trace of a million positions. Needs a
  quiet machine.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import track

from treespec.experiments.benchmarks.results_file import described, path_of, write
from treespec.experiments.studies.advice_live import PAIRS, chosen_among, live
from treespec.experiments.studies.advice_sections import advice, advice_live, advice_runs
from treespec.experiments.studies.advice_time import search_times
from treespec.experiments.studies.advice_unseen import (
    OTHERS,
    by_rates,
    first_drafted,
    known_shapes,
    speed_on,
    unseen,
)
from treespec.experiments.studies.false_advice import drawn, equal_sources, many_equals, two_equals
from treespec.search import LatencyModel, NotMeasured, Trace, best_tree
from treespec.search.rates.replay import replay
from treespec.search.rates.totals import TextTotals
from treespec.testing import plane_trees

__all__ = ["EASY", "HARD", "exhaustive", "stretches"]

EASY = (0.97, 0.01, 0.005)
HARD = (0.15, 0.12, 0.1)
"""Acceptance rates by rank in the two kinds of stretches."""

SPLITS, MANY, SEARCHES = 30, 1000, 1000
ROUNDS = (5, 9)
"""Rounds of times with noise: the default of `treespec profile`, and more."""
SOURCES, FASTER = (2, 4), (0.8, 0.1, 0.05)
"""Numbers of drafts that are ranked together, and the acceptance rates of each draft."""
NAME = "search_advice"
PARTS = {
    "unseen": "traces", "live": "live", "exhaustive": "exhaustive", "runs": "runs",
    "stretches": "stretches", "equals": "equals", "noisy": "noisy", "sources": "sources",
    "time": "time",
}  # fmt: skip
"""The parts of this study, and their keys in the result file."""
LIVE, SEVERAL, TRACED = ("live", "runs"), ("unseen", "live", "runs"), ("unseen", "live")
"""Parts with live runs and files of their own; parts with several entries; parts that need traces."""
SECTIONS = {"live": advice_live, "runs": advice_runs}
"""The sections of the results page for parts with files of their own."""
UNIT = LatencyModel.from_tables(
    verify={1: 20.0, 8: 22.0, 16: 25.0, 32: 33.0, 64: 50.0}, draft={1: 1.0, 32: 1.6}
)
"""Times of a made-up machine, for simulations."""


def stretches(
    rng: np.random.Generator, texts: int, positions: int, stay: float = 0.9, beyond: int = 16
) -> Trace:
    """A trace of easy and hard stretches; a stretch ends at each position with probability `1 - stay`."""
    change = rng.random((texts, positions + beyond)) >= stay
    change[:, 0] = rng.random(texts) < 0.5
    hard = change.cumsum(axis=1) % 2 == 1
    accepted = np.where(hard[..., None], HARD, EASY).reshape(-1, 3)
    return drawn(rng, accepted, texts, positions, {"temperature": 1.0})


def random_times(rng: np.random.Generator, largest: int) -> LatencyModel:
    """Random times of a made-up machine."""
    sizes = sorted({1, 2, 4, 8, largest})
    verify = 20 * (1 + np.cumsum(rng.exponential(0.04, len(sizes))))
    levels = rng.uniform(0.3, 3) * (1 + np.cumsum(rng.exponential(0.05, len(sizes))))
    return LatencyModel.from_tables(
        verify=dict(zip(sizes, verify.tolist(), strict=True)),
        draft=dict(zip(sizes, levels.tolist(), strict=True)),
    )


def exhaustive(
    cases: int, texts: int, nodes: Sequence[int] = (16, 24, 32, 48, 64)
) -> dict[str, Any]:
    """Compare the choice with the best of all trees of up to eight nodes, and with the choice by rates."""
    rng = np.random.default_rng(1)
    narrow = [
        tree
        for size in range(2, 9)
        for tree in plane_trees(size)
        if max(map(len, tree.children)) <= 3
    ]
    small, large = [], {size: [] for size in nodes}
    for _ in track(range(cases), description="exhaustive"):
        trace, latency = stretches(rng, texts, 64, rng.uniform(0.8, 0.97)), random_times(rng, 8)
        emitted, steps = (part.sum(axis=1) for part in TextTotals(trace).of(narrow))
        speeds = [
            float(e / s / latency.step_s(tree))
            for e, s, tree in zip(emitted, steps, narrow, strict=True)
        ]
        chosen = best_tree(trace, latency, draws=40).best
        best = max(1 / latency.plain_s(), *speeds)
        small.append(speed_on(trace, chosen.shape, chosen.law, latency) / best)
        latency = random_times(rng, max(nodes))
        for size in nodes:
            by_replay, by_rate = (
                speed_on(trace, ranking.best.shape, ranking.best.law, latency)
                for ranking in (
                    best_tree(trace, latency, max_size=size, draws=40),
                    by_rates(trace, latency, max_size=size),
                )
            )
            large[size].append(by_replay / by_rate)
    return {
        "cases": cases,
        "texts": texts,
        "of the best": _spread(small),
        "over rates": {str(size): _spread(quotients) for size, quotients in large.items()},
    }


def _spread(quotients: Sequence[float]) -> dict[str, float]:
    """Median and minimum of quotients of speeds, and how many are below 1."""
    return {
        "median": median(quotients),
        "worst": min(quotients),
        "slower": sum(quotient < 1 - 1e-9 for quotient in quotients),
    }


def turns(repeats: int) -> dict[str, Any]:
    """Mean over traces of predictions over the true values, in texts of easy and hard stretches."""
    rng = np.random.default_rng(2)
    shapes = {
        name: OTHERS[name] for name in ("chain 2", "chain 4", "chain 8", "chain 12", "2-ary 3")
    }
    truth = stretches(rng, 10_000, 256)
    values = {name: replay(truth, tree).tokens_per_step for name, tree in shapes.items()}
    from_trace, from_rates = list[dict[str, float]](), list[dict[str, float]]()
    for _ in track(range(repeats), description="stretches"):
        trace = stretches(rng, 240, 256)
        ranking = best_tree(trace, UNIT, max_size=32, draws=40)
        rate_ranking = by_rates(trace, UNIT, max_size=32)
        first = first_drafted(ranking)
        value = replay(truth, first.shape).tokens_per_step
        by_trace, by_rate = (
            {
                name: one.speed(tree, trace.law).tokens / values[name]
                for name, tree in shapes.items()
            }
            for one in (ranking, rate_ranking)
        )
        from_trace.append({"advised": first.tokens_per_step.estimate / value, **by_trace})
        from_rates.append(by_rate)
    return {
        "repeats": repeats,
        "from the trace": {
            name: mean(row[name] for row in from_trace) for name in ("advised", *shapes)
        },
        "from rates": {name: mean(row[name] for row in from_rates) for name in shapes},
    }


def durations(
    traces: Mapping[str, Path], latency: Path | None, positions: int
) -> dict[str, dict[str, Any]]:
    """Time `treespec search` on each trace, and on a made-up trace with this many positions."""
    with TemporaryDirectory() as folder:
        times = UNIT.save(Path(folder) / "latency.json") if latency is None else latency
        large = stretches(np.random.default_rng(4), positions // 80, 64)
        path = large.save(Path(folder) / "large.npz")
        return search_times({**traces, "made-up, T=1": path}, times)


def read_traces(
    paths: Sequence[Path], latency: Path | None
) -> tuple[dict[str, tuple[Path, Trace]], LatencyModel, dict[str, Any]]:
    """Read traces and times; return files and traces by name, the times, and a description of the times.

    Raises:
        typer.BadParameter: if there are no times, or none for the law of a trace, or two traces have the
        same
            name.
    """
    if latency is None:
        raise typer.BadParameter(
            "traces need times of the same pair: give --latency (`treespec profile`)"
        )
    times, traces = LatencyModel.load(latency), dict[str, tuple[Path, Trace]]()
    for path in paths:
        trace = Trace.load(path)
        try:
            times.law_times(trace.law)
        except NotMeasured as error:
            raise typer.BadParameter(f"{path} with {latency}: {error}") from error
        name = (
            f"{trace.about.get('name', path.stem)}, {trace.about.get('sampling', trace.law)}"
            f"{'' if trace.draft_rows is None else ', beam'}"
        )
        if name in traces:
            raise typer.BadParameter(f"{path} and {traces[name][0]} are both called {name!r}")
        traces[name] = path, trace
    return (
        traces,
        times,
        {
            "file": latency.name,
            "measured": times.about.get("measured"),
            "rounds": times.round_count,
            "disturbed": times.disturbed,
            "sha256": sha256(latency.read_bytes()).hexdigest(),
        },
    )


def main(
    traces: Annotated[list[Path] | None, typer.Argument(help="Files of `treespec trace`.")] = None,
    latency: Annotated[Path | None, typer.Option(help="File of `treespec profile`.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Parts to do: {', '.join(PARTS)}.")
    ] = None,
    pair: Annotated[
        list[str] | None, typer.Option(help=f"Pairs of the part runs: {', '.join(PAIRS)}.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs"),
    prompts: Annotated[
        int | None,
        typer.Option(min=2, help="Prompts of live runs, for a trial: figures are not saved."),
    ] = None,
    splits: Annotated[int, typer.Option(min=2, help="Searched splits of each trace.")] = SPLITS,
    many: Annotated[int, typer.Option(min=2, help="Replayed splits of each trace.")] = MANY,
    searches: Annotated[
        int, typer.Option(min=1, help="Searches among equally fast shapes.")
    ] = SEARCHES,
    cases: Annotated[int, typer.Option(min=1, help="Searches compared with all trees.")] = 20,
    positions: Annotated[int, typer.Option(min=800, help="Positions of the timed search.")] = 10**6,
) -> None:
    """Test advice on texts that it has not seen; print and save the findings."""
    parts = only or [part for part in PARTS if part not in LIVE and (traces or part != "unseen")]
    unknown = [*(set(parts) - {*PARTS}), *(set(pair or ()) - {*PAIRS})]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]} is not a part or a pair: parts are {', '.join(PARTS)}; pairs are "
            f"{', '.join(PAIRS)}"
        )
    if {*TRACED} & {*parts} and not traces:
        raise typer.BadParameter(f"{' and '.join(TRACED)} need traces of `treespec trace`")
    named, times, about_times = (
        read_traces(traces or (), latency) if traces or latency else ({}, UNIT, None)
    )
    make: dict[str, Callable[[], dict[str, Any]]] = {
        "unseen": lambda: {
            name: unseen(trace, times, splits, many) | {"times": about_times}
            for name, (_, trace) in named.items()
        },
        "live": lambda: {
            name: {
                where: result | {"times": about_times}
                for where, result in live(trace, times, known_shapes(trace, times), prompts).items()
            }
            for name, (_, trace) in named.items()
        },
        "exhaustive": lambda: exhaustive(cases, 60),
        "runs": lambda: {name: chosen_among(name, runs, prompts) for name in pair or PAIRS},
        "stretches": lambda: turns(splits),
        "equals": lambda: two_equals(searches),
        "sources": lambda: {
            str(number): equal_sources(max(1, searches // 4), number, rates=FASTER, branching=1)
            for number in SOURCES
        },
        "noisy": lambda: {str(rounds): many_equals(searches, rounds=rounds) for rounds in ROUNDS},
        "time": lambda: {
            "files": durations(
                {name: path for name, (path, _) in named.items()}, latency, positions
            ),
            "times": about_times,
        },
    }
    for part in parts:
        figures, write_texts = make[part](), SECTIONS.get(part, advice)
        for texts in write_texts({"figures": {PARTS[part]: figures}}).values():
            typer.echo("\n\n".join(texts) + "\n")
        if prompts is None or part not in LIVE:
            typer.echo(f"written: {kept(part, figures)}")


def kept(part: str, figures: Mapping[str, Any]) -> Path:
    """Add a part's figures to its file, next to those of other parts, and of other traces or runs.

    Args:
        part: name of the part.
        figures: figures of the part.
    """
    name = f"advice_{part}" if part in LIVE else NAME
    path, head = path_of(name), described(name)
    saved = json.loads(path.read_text())["figures"] if path.is_file() else {}
    of_part = saved.get(PARTS[part], {}) | figures if part in SEVERAL else figures
    origin = {part: {key: head[key] for key in ("measured", "git_hash")}}
    new = {PARTS[part]: of_part, "parts": saved.get("parts", {}) | origin}
    return write(name, head | {"figures": saved | new})


if __name__ == "__main__":
    typer.run(main)
