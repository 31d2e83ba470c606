"""Whether a verdict depends on the neighbours: identical methods, and one that is 5 % dearer, beside them.

    python -m treespec.experiments.benchmarks.interleaving [--runs 40] [--by-prompts 10]

Every run decodes the same prompts by plain decoding, two identical chains of 4, and a third that spins for
5 % of the time of each of its own steps. The ratio of the first two is 1, that of the third to the first
1 / 1.05 by construction. Counted over runs, on the quiet machine and beside three neighbours
(`neighbours`): how often the 95 % interval of the first holds 1, its half-width, how often the third is
found slower, and the mean of what is found; by adjusted times, by totals of the same runs, and where each
prompt is decoded by one method after the other. How much slower the machine became within a run, which is
what `drift` is to do, is printed and saved too. Figures are saved after every run.

Beside the steady neighbours a run takes one and a half to two and a half minutes: a thread that has done
its part waits for the other one by spinning, on a core that the other one needs. `OMP_WAIT_POLICY=PASSIVE`,
set before the command, has threads sleep instead: a run then takes three quarters of a minute, on the quiet
machine half as long again as with spinning threads. Which it was is saved with the figures, in a file of
its own (`interleaving_steady_passive`).
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from rich.console import Console

from treespec import Step, TokenTree, plugins
from treespec.draft import make_drafter
from treespec.experiments.benchmarks.brief_run import brief_run
from treespec.experiments.benchmarks.neighbours import Neighbour, beside
from treespec.experiments.benchmarks.results_file import save
from treespec.experiments.config.schema import Config, refresh
from treespec.experiments.report.measurements import CLOCK, Measurements
from treespec.experiments.report.run import load_run
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Table
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.report.times import times
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.plugins import Wanted
from treespec.protocols import Coins, Drafter
from treespec.search.intervals import Interval
from treespec.tree import Law

WAITING = "OMP_WAIT_POLICY"
SPUN_SHARE = 0.05
"""Share of each of its steps that the third chain spins."""

RISING_RUNS = 2.0
"""`drift` reaches a whole core after so many times the first run: half a core at the end of a run."""

LONGEST_STAY_S = 3600.0
"""For which the others stay at most: longer than any run."""


class Spinning:
    """A drafter that makes each step longer by a share of its own time.

    Args:
        inner: what drafts.
    """

    def __init__(self, inner: Drafter) -> None:
        self._inner, self._start = inner, 0.0
        self.max_depth, self.max_length = inner.max_depth, inner.max_length
        self.prefill = inner.prefill

    def propose(self, coins: Coins) -> TokenTree:
        """A tree; the step begins."""
        self._start = time.perf_counter()
        return self._inner.propose(coins)

    def commit(self, step: Step) -> None:
        """The step ends, and then lasts longer."""
        self._inner.commit(step)
        now = time.perf_counter()
        end = now + SPUN_SHARE * (now - self._start)
        while time.perf_counter() < end:
            pass


def dearer(wanted: Wanted, settings: plugins.Settings) -> Drafter:
    """The pair's draft model, in steps that are made 5 % longer."""
    return Spinning(
        make_drafter(wanted.pair.draft, wanted.tree, wanted.law, wanted.sampling)  # type: ignore[arg-type]
    )


def config_of(seed: int, together: int | None, enlarge: str | None) -> Config:
    """The run of a seed; its draft source `dearer` is registered with the first."""
    if "dearer" not in plugins.parts("source"):
        plugins.drafter("dearer", laws=tuple(Law))(dearer)
    refresh()
    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 4}}
    return Config.model_validate(
        {
            "name": "interleaving",
            "models": {"target": "embedded", "dtype": "bfloat16", "enlarge": enlarge},
            "prompts": {"kind": "embedded", "count": 12, "tokens": 64},
            "max_new_tokens": 48,
            "samplings": [{"temperature": 0}],
            "methods": [
                {"kind": "plain"},
                chain | {"name": "one"},
                chain | {"name": "other"},
                chain | {"name": "dearer", "draft": {"source": "dearer"}},
            ],
            "seed": seed,
            "together": together,
            "trees": 0,
            "meters": [],
            "alone": 1,
        }
    )


@dataclass(frozen=True)
class Measurement:
    """What one run found.

    Args:
        same: speed of one identical chain over the other.
        dearer: speed of the dearer chain over the first.
        same_totals: as `same`, by totals.
        dearer_totals: as `dearer`, by totals.
        adjusted: whether times were adjusted.
        alone: time alone over time in turns, by method.
        slowed: how much slower the machine became, see `slowed_in`; 1.3 for 30 %.
    """

    same: Interval
    dearer: Interval
    same_totals: Interval
    dearer_totals: Interval
    adjusted: bool
    alone: Mapping[str, float]
    slowed: float


def slowed_in(steps: pl.DataFrame) -> float:
    """Median step of the identical chains in the last quarter of a run over that in its first quarter.

    Args:
        steps: rows of a run, whose prompts are about equally long.
    """
    equal = steps.filter(pl.col("method").is_in(["one", "other"])).sort("at_s")
    quarter = max(1, len(equal) // 4)
    seconds = equal["step_s"].to_numpy()
    return float(np.median(seconds[-quarter:]) / np.median(seconds[:quarter]))


def found_in(folder: Path) -> Measurement:
    """The ratios of a run."""
    loaded = load_run(folder)
    data: Measurements = loaded.measurements["T=0"]

    def ratio(method: str, column: str) -> Interval:
        return speed_ratio(data.totals, method, "one", column)

    alone = {row.method.name: row.alone for row in times(loaded, data)}
    return Measurement(
        ratio("other", "decode_s"),
        ratio("dearer", "decode_s"),
        ratio("other", CLOCK),
        ratio("dearer", CLOCK),
        data.totals_because is None,
        {name: value.estimate for name, value in alone.items() if value is not None},
        slowed_in(loaded.all_steps),
    )


@dataclass(frozen=True)
class Counted:
    """What several runs beside one neighbour found, by one way of measuring.

    Args:
        neighbour: beside which.
        way: of measuring.
        same: ratios of the identical chains.
        dearer: ratios of the dearer chain.
        adjusted: in how many runs times were adjusted.
    """

    neighbour: str
    way: str
    same: Sequence[Interval]
    dearer: Sequence[Interval]
    adjusted: int

    @property
    def figures(self) -> dict[str, float]:
        """For the file."""
        return {
            "runs": len(self.same),
            "adjusted": self.adjusted,
            "holds_one": sum(ratio.contains(1.0) for ratio in self.same),
            "half_width": statistics.median(ratio.half_width for ratio in self.same),
            "mean_same": statistics.fmean(ratio.estimate for ratio in self.same),
            "found_slower": sum(ratio.high < 1 for ratio in self.dearer),
            "mean_dearer": statistics.fmean(ratio.estimate for ratio in self.dearer),
        }


COLUMNS = (
    Column[Counted]("beside", lambda row: row.neighbour, left=True),
    Column[Counted]("measured", lambda row: row.way, left=True),
    Column[Counted]("runs", lambda row: str(len(row.same))),
    Column[Counted]("A/A holds 1", lambda row: f"{row.figures['holds_one']}"),
    Column[Counted]("half-width", lambda row: f"{100 * row.figures['half_width']:.2f} %"),
    Column[Counted]("mean", lambda row: f"{row.figures['mean_same']:.4f}"),
    Column[Counted]("5 % found", lambda row: f"{row.figures['found_slower']}"),
    Column[Counted](
        "over the truth", lambda row: f"{row.figures['mean_dearer'] * (1 + SPUN_SHARE):.4f}"
    ),
)


def counted(
    neighbour: str, runs: Sequence[Measurement], by_prompts: Sequence[Measurement]
) -> list[Counted]:
    """All ways of measuring, beside one neighbour."""
    adjusted = sum(run.adjusted for run in runs)
    rows = [
        Counted(neighbour, "in turns", [f.same for f in runs], [f.dearer for f in runs], adjusted),
        Counted(
            neighbour, "totals", [f.same_totals for f in runs], [f.dearer_totals for f in runs], 0
        ),
    ]
    if by_prompts:
        same, dearer_ = ([getattr(f, n) for f in by_prompts] for n in ("same", "dearer"))
        rows.append(Counted(neighbour, "by prompts", same, dearer_, 0))
    return rows


def measured(
    kind: Neighbour | None,
    seeds: Sequence[int],
    one: Callable[[int], Measurement],
    begin: Callable[[str], None],
    seconds: float,
) -> Iterator[Measurement]:
    """A run for each seed, beside a neighbour that stays for so long."""
    for seed in seeds:
        begin(f"beside {kind or 'nobody'}: run {seed + 1}/{len(seeds)}")
        with nullcontext() if kind is None else beside(kind, seconds):
            yield one(seed)


def _suffix() -> str:
    """Of the file's name, where threads wait otherwise than they do by themselves."""
    return f"_{os.environ[WAITING].lower()}" if WAITING in os.environ else ""


def main(
    runs: Annotated[int, typer.Option(min=1, help="in turns, beside each neighbour")] = 40,
    by_prompts: Annotated[int, typer.Option(min=0, help="runs by prompts beside each")] = 10,
    enlarge: Annotated[str | None, typer.Option(help="size of the target, such as 50M")] = None,
    neighbour: Annotated[
        list[str] | None, typer.Option(help="quiet, bursts, steady, drift")
    ] = None,
) -> None:
    """Count over runs, print the table and save it."""
    console = Console(width=110)
    chosen = neighbour or ["quiet", *map(str, Neighbour)]
    kinds = {name: None if name == "quiet" else Neighbour(name) for name in chosen}
    pair = load_models(config_of(0, None, enlarge).models)
    figures: dict[str, Any] = {}
    rows: list[Counted] = []

    def one(seed: int, together: int | None) -> Measurement:
        with brief_run(config_of(seed, together, enlarge), load=lambda models: pair) as loaded:
            return found_in(loaded.folder)

    with Reporter(Console(stderr=True)).units(1 + len(kinds) * (runs + by_prompts)) as begin:
        begin("a run that does not count")
        start = time.perf_counter()
        one(0, None)
        rises = RISING_RUNS * (time.perf_counter() - start)
        for name, kind in kinds.items():
            stays = rises if kind is Neighbour.DRIFT else LONGEST_STAY_S
            turns: list[Measurement] = []
            prompts: list[Measurement] = []
            for mine, seeds, together in (
                (turns, range(runs), None),
                (prompts, range(by_prompts), 1),
            ):
                for measurement in measured(
                    kind, seeds, partial(one, together=together), begin, stays
                ):
                    mine.append(measurement)
                    these = counted(name, turns, prompts)
                    ways = {row.way: row.figures for row in these}
                    figures[name] = ways | {
                        "slowed": statistics.median(turn.slowed for turn in turns),
                        "runs": turns,
                        "by prompts runs": prompts,
                        "waiting": os.environ.get(WAITING),
                    }
                    save(f"interleaving_{name}{_suffix()}", {name: figures[name]})
            rows += these
    print_table(Table("A/A and A/B beside neighbours", COLUMNS, rows), console, 110)
    for name in figures:
        say(
            console,
            f"{name}: the last quarter of a run over the first, median: {figures[name]['slowed']:.2f}",
        )
    alone = [f.alone for f in figures.get("quiet", {}).get("runs", ())]
    for method in alone[0] if alone else ():
        ratio = statistics.median(entry[method] for entry in alone)
        say(console, f"{method}: alone / in turns, quiet, median of {len(alone)}: {ratio:.3f}")


if __name__ == "__main__":
    typer.run(main)
