"""Test whether adjusted times charge methods their real cost on a quiet machine, where totals are right.

    python -m treespec.experiments.benchmarks.honest_cost [--runs 10] [--enlarge SIZE] [--device cuda]

Every run decodes the same prompts with plain decoding, chains of 2 and 4, and methods whose steps really
differ in cost: EAGLE-2 and cost-aware trees, whose sizes follow the draft's confidence, assisted
generation, which stops drafting where it is unsure, a chain whose steps take up to 30 % longer as the text
grows, and a chain of which one step in 50 takes five times as long. The estimator must not mistake their
expensive steps for slowdowns of the machine.

The study divides the speed over plain decoding by adjusted times by that by totals of the same run. Nothing
else may use the machine meanwhile. Runs whose totals decide are left out. Figures are saved after every
run.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console

from treespec.experiments.benchmarks.brief_run import brief_run
from treespec.experiments.benchmarks.results_file import print_parts, save
from treespec.experiments.benchmarks.spinning import add_source
from treespec.experiments.config.schema import Config
from treespec.experiments.report.measurements import CLOCK
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.models.load import Pair

__all__ = ["FARTHEST_MEDIAN", "Charged", "config_of", "counted", "one"]

FARTHEST_MEDIAN = 0.02
"""Goal: largest distance of the median from 1."""

BASE = "plain"

TOKENS = 48
"""Tokens decoded per text."""

RISE = 0.3
"""A step at the end of a text takes longer than one at its start by this share, for the growing chain."""

RARE, EXTRA = 0.02, 4.0
"""Share of the steps of the chain with rare expensive steps, and what they take beyond their own time."""

_luck = random.Random(0)


def config_of(seed: int, enlarge: str, device: str = "cpu") -> Config:
    """The config of the run with this seed; the first call registers two draft sources."""
    add_source("growing", lambda kept: RISE * kept / TOKENS)
    add_source("rare", lambda kept: EXTRA if _luck.random() < RARE else 0.0)

    def tree(name: str, **shape: Any) -> dict[str, Any]:
        return {"kind": "tree", "name": name, "shape": shape}

    chain = tree("chain", kind="chain", depth=4)
    limits = {"size": 12, "depth": 6}
    return Config.model_validate(
        {
            "name": "honest_cost",
            "models": {
                "target": "embedded",
                "dtype": "bfloat16",
                "enlarge": enlarge,
                "device": device,
            },
            "prompts": {"kind": "embedded", "count": 12, "tokens": 48},
            "max_new_tokens": TOKENS,
            "samplings": [{"temperature": 0}],
            "search": {"max_new_tokens": 32, "sizes": [1, 2, 4, 8, 16], "repeats": 5},
            "methods": [
                {"kind": "plain", "name": BASE},
                tree("short chain", kind="chain", depth=2),
                chain,
                chain | {"name": "growing", "draft": {"source": "growing"}},
                chain | {"name": "rare", "draft": {"source": "rare"}},
                tree("EAGLE-2", kind="eagle2", k=3, **limits),
                tree("cost-aware", kind="cost_aware", branching=3, **limits),
                {"kind": "assisted", "name": "assisted", "lengths": [6], "thresholds": [0.4]},
            ],
            "seed": seed,
            "trees": 0,
            "meters": [],
            "alone": 0,
        }
    )


@dataclass(frozen=True)
class Charged:
    """The result of one run.

    Args:
        over_totals: by method, speed over plain decoding by adjusted times over that by totals.
        reason: why totals decided; None if times were adjusted.
        remark: remark of the estimator.
    """

    over_totals: Mapping[str, float]
    reason: str | None
    remark: str | None


def one(config: Config, pair: Pair) -> Charged:
    """Run the methods once, and read their ratios."""
    with brief_run(config, load=lambda models: pair) as loaded:
        data = loaded.measurements["T=0"]

    def speed(method: str, column: str) -> float:
        return speed_ratio(data.totals, method, BASE, column).estimate

    names = [method.name for method in data.methods if method.name != BASE]
    return Charged(
        {name: speed(name, "decode_s") / speed(name, CLOCK) for name in names},
        data.totals_because,
        data.remark,
    )


def counted(runs: Sequence[Charged]) -> list[dict[str, Any]]:
    """For each method, the median and range of its ratios over runs whose times were adjusted."""
    ratios = pl.DataFrame(
        [
            {"method": method, "ratio": ratio}
            for charged in runs
            if charged.reason is None
            for method, ratio in charged.over_totals.items()
        ],
        schema={"method": pl.String, "ratio": pl.Float64},
    )
    ratio = pl.col("ratio")
    return (
        ratios.group_by("method", maintain_order=True)
        .agg(runs=pl.len(), median=ratio.median(), low=ratio.min(), high=ratio.max())
        .to_dicts()
    )


COLUMNS = (
    keyed("method", "method", left=True),
    keyed("runs adjusted", "runs"),
    keyed("adjusted / totals", "median", ".4f"),
    keyed("least", "low", ".4f"),
    keyed("most", "high", ".4f"),
)


def main(
    runs: Annotated[int, typer.Option(min=1, help="Number of runs.")] = 10,
    enlarge: Annotated[str, typer.Option(help="Size of the target.")] = "50M",
    device: Annotated[str, typer.Option(help="Device of the models.")] = "cpu",
) -> None:
    """Run, print the table and save it."""
    pair = load_models(config_of(0, enlarge, device).models)
    charges: list[Charged] = []
    with Reporter(Console(stderr=True)).units(runs, doing="running", finished="run") as begin:
        for seed in range(runs):
            begin(f"run {seed + 1}/{runs}")
            charges.append(one(config_of(seed, enlarge, device), pair))
            rows = counted(charges)
            save(
                "honest_cost",
                {"enlarge": enlarge, "device": device, "methods": rows, "runs": charges},
            )
    off = max((abs(row["median"] - 1) for row in rows), default=float("nan"))
    left = sum(charged.reason is not None for charged in charges)
    print_parts(
        Table("speed over plain decoding, quiet", COLUMNS, rows),
        f"{len(charges)} runs, {left} of them left to totals",
        f"largest distance of a median from 1: {off:.2%}, goal: at most {FARTHEST_MEDIAN:.0%}",
        width=110,
    )


if __name__ == "__main__":
    typer.run(main)
