"""Test whether a verdict depends on neighbours: two identical methods and one that takes 5 % longer.

    python -m treespec.experiments.benchmarks.interleaving [--runs 40] [--by-prompts 10] [--device cuda]

Every run decodes the same prompts with plain decoding, two identical chains of 4, and a third chain that
spins for 5 % of the time of each of its steps. By construction the ratio of the first two chains is 1, and
that of the third to the first is 1 / 1.05. Over many runs, on the quiet machine and beside three kinds of
neighbours (`neighbours`), the benchmark counts how often the 95 % interval of the first ratio contains 1
and how often the third chain is found slower. It also reports the half-width of the interval and the mean
ratios. All of this is done with adjusted times, with totals of the same runs, and for runs in which one
method after the other decodes each prompt. How much slower the machine became within a run, which is the
purpose of `drift`, is printed and saved too. Figures are saved after every run.

Beside the steady neighbours a run takes minutes: a thread that has finished its part spins while it waits
for the other one, on a core that the other one needs. `OMP_WAIT_POLICY=PASSIVE`, set before the command,
makes threads sleep instead: a run is then shorter there, but longer on the quiet machine. The policy is
saved with the figures, in a separate file (`interleaving_steady_passive`).
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from rich.console import Console

from treespec.experiments.benchmarks.brief_run import brief_run
from treespec.experiments.benchmarks.neighbours import LONGEST_STAY_S, Neighbour, beside
from treespec.experiments.benchmarks.results_file import print_parts, save
from treespec.experiments.benchmarks.spinning import add_source
from treespec.experiments.benchmarks.timing import seconds_of
from treespec.experiments.config.schema import Config
from treespec.experiments.report.measurements import CLOCK
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Table, keyed
from treespec.experiments.report.times import times
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.models.load import Pair
from treespec.search.intervals import Interval

WAITING = "OMP_WAIT_POLICY"
SPUN_SHARE = 0.05
"""The third chain spins for this share of the time of each of its steps."""

RISING_RUNS = 2.0
"""`drift` reaches a whole core after this many durations of a run, so half a core at the end of a run."""


def config_of(seed: int, together: int | None, enlarge: str | None, device: str = "cpu") -> Config:
    """The config of the run with this seed; the first call registers the draft source `dearer`."""
    add_source("dearer", lambda kept: SPUN_SHARE)
    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 4}}
    return Config.model_validate(
        {
            "name": "interleaving",
            "models": {
                "target": "embedded",
                "dtype": "bfloat16",
                "enlarge": enlarge,
                "device": device,
            },
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
    """The findings of one run.

    Args:
        same: speed of one identical chain over the other.
        dearer: speed of the dearer chain over the first chain.
        same_totals: `same` by totals.
        dearer_totals: `dearer` by totals.
        adjusted: whether times were adjusted.
        alone: by method, time alone over time in turns.
        slowed: slowdown of the machine within the run, see `slowed_in`; 1.3 for 30 %.
    """

    same: Interval
    dearer: Interval
    same_totals: Interval
    dearer_totals: Interval
    adjusted: bool
    alone: Mapping[str, float]
    slowed: float


def slowed_in(steps: pl.DataFrame) -> float:
    """Median step time of the identical chains in the last quarter of a run over that in its first quarter.

    Args:
        steps: step rows of a run with prompts of about equal length.
    """
    equal = steps.filter(pl.col("method").is_in(["one", "other"])).sort("at_s")
    quarter = max(1, len(equal) // 4)
    seconds = equal["step_s"].to_numpy()
    return float(np.median(seconds[-quarter:]) / np.median(seconds[:quarter]))


def one(config: Config, pair: Pair) -> Measurement:
    """Run the methods once, and read their ratios."""
    with brief_run(config, load=lambda models: pair) as loaded:
        data = loaded.measurements["T=0"]

        def ratio(method: str, column: str) -> Interval:
            return speed_ratio(data.totals, method, "one", column)

        return Measurement(
            ratio("other", "decode_s"),
            ratio("dearer", "decode_s"),
            ratio("other", CLOCK),
            ratio("dearer", CLOCK),
            data.totals_because is None,
            {
                row.method.name: row.alone.estimate
                for row in times(loaded, data)
                if row.alone is not None
            },
            slowed_in(loaded.all_steps),
        )


COLUMNS = (
    keyed("beside", "beside", left=True),
    keyed("measured", "measured", left=True),
    keyed("runs", "runs"),
    keyed("A/A holds 1", "holds_one"),
    Column[Mapping[str, Any]]("half-width", lambda row: f"{100 * row['half_width']:.2f} %"),
    keyed("mean", "mean_same", ".4f"),
    keyed("5 % found", "found_slower"),
    Column[Mapping[str, Any]](
        "over the truth", lambda row: f"{row['mean_dearer'] * (1 + SPUN_SHARE):.4f}"
    ),
)


def counted(
    runs: Sequence[Measurement], by_prompts: Sequence[Measurement]
) -> dict[str, dict[str, float]]:
    """The figures of several runs beside one neighbour, by way of measuring.

    `adjusted` is the number of runs whose times were adjusted; `same` are ratios of the identical chains,
    `dearer` those of the dearer chain.
    """
    ways = {
        "in turns": ([(run.same, run.dearer) for run in runs], sum(run.adjusted for run in runs)),
        "totals": ([(run.same_totals, run.dearer_totals) for run in runs], 0),
        "by prompts": ([(run.same, run.dearer) for run in by_prompts], 0),
    }
    return {
        way: {
            "runs": len(ratios),
            "adjusted": adjusted,
            "holds_one": sum(same.contains(1.0) for same, _ in ratios),
            "half_width": statistics.median(same.half_width for same, _ in ratios),
            "mean_same": statistics.fmean(same.estimate for same, _ in ratios),
            "found_slower": sum(dearer.high < 1 for _, dearer in ratios),
            "mean_dearer": statistics.fmean(dearer.estimate for _, dearer in ratios),
        }
        for way, (ratios, adjusted) in ways.items()
        if ratios
    }


def main(
    runs: Annotated[int, typer.Option(min=1, help="Runs in turns beside each neighbour.")] = 40,
    by_prompts: Annotated[
        int, typer.Option(min=0, help="Runs by prompts beside each neighbour.")
    ] = 10,
    enlarge: Annotated[str | None, typer.Option(help="Size of the target, such as 50M.")] = None,
    device: Annotated[str, typer.Option(help="Device of the models.")] = "cpu",
    neighbour: Annotated[
        list[str] | None, typer.Option(help="One of quiet, bursts, steady, drift; may be repeated.")
    ] = None,
) -> None:
    """Measure runs, print the table and save it."""
    kinds = {
        name: None if name == "quiet" else Neighbour(name)
        for name in neighbour or ["quiet", *map(str, Neighbour)]
    }
    suffix = f"_{os.environ[WAITING].lower()}" if WAITING in os.environ else ""
    of_seed = partial(config_of, enlarge=enlarge, device=device)
    pair = load_models(of_seed(0, None).models)
    figures: dict[str, Any] = {}
    rows: list[Mapping[str, Any]] = []
    with Reporter(Console(stderr=True)).units(1 + len(kinds) * (runs + by_prompts)) as begin:
        begin("a run that does not count")
        rises = RISING_RUNS * seconds_of(lambda: one(of_seed(0, None), pair))
        for name, kind in kinds.items():
            stays = rises if kind is Neighbour.DRIFT else LONGEST_STAY_S
            turns: list[Measurement] = []
            prompts: list[Measurement] = []
            for measurements, count, together in ((turns, runs, None), (prompts, by_prompts, 1)):
                for seed in range(count):
                    begin(f"beside {kind or 'nobody'}: run {seed + 1}/{count}")
                    with beside(kind, stays):
                        measurements.append(one(of_seed(seed, together), pair))
                    ways = counted(turns, prompts)
                    figures[name] = ways | {
                        "slowed": statistics.median(turn.slowed for turn in turns),
                        "runs": turns,
                        "by prompts runs": prompts,
                        "waiting": os.environ.get(WAITING),
                        "enlarge": enlarge,
                        "device": device,
                    }
                    save(f"interleaving_{name}{suffix}", {name: figures[name]})
            rows += [{"beside": name, "measured": way, **row} for way, row in ways.items()]
    said = [
        f"{name}: steps in the last quarter of a run over the first, median: {figure['slowed']:.2f}"
        for name, figure in figures.items()
    ]
    alone = [run.alone for run in figures.get("quiet", {}).get("runs", ())]
    said += [
        f"{method}: alone / in turns, quiet, median of {len(alone)}: "
        f"{statistics.median(entry[method] for entry in alone):.3f}"
        for method in (alone[0] if alone else ())
    ]
    print_parts(Table("A/A and A/B beside neighbours", COLUMNS, rows), *said, width=110)


if __name__ == "__main__":
    typer.run(main)
