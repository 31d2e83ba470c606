"""Simulate how often the sentences of a verdict are false, and how often they find what is there.

    python -m treespec.experiments.research.studies.coverage [--runs 1000]

Trees and chains decode simulated prompts. Prompts differ in length and difficulty, for all methods alike;
on top of that a method deviates on a prompt by 5, 15 or 30 % (log-normal), or is half as long again on
one prompt in ten (`skewed`, with 5 %). Three worlds: all methods are *equal*; *near ties*, in which one
method a side is as fast as the best of the other side and the others are 1 to 7 % slower; and *one faster*,
in which one tree is 8 % faster than all else. Beside them, the same with the records of real runs
(`recorded`): prompts are drawn with replacement from a run's table, and every method's seconds are scaled
so that all are equally fast, or one tree is 8 % faster.

Counted are false sentences, in percent of runs: `verdict`, that trees beat chains or chains beat trees
where the truth, the ratio of the methods that half of the prompts would choose, says otherwise or is 1;
`joint`, that a method is faster than every one of the other side although it is not; and in the last world
the power of both. `one halving` is the verdict by a single halving of the prompts in their given order, as
before commit f43fa50.

**Result** (1,000 runs of most cells, 400 or 6,000 of the others; `coverage-amd-epyc-avx2-2-cores.json`):
false sentences in percent, the mean over the families and the worst of them (of `joint` the worst only),
and how often the tree that is 8 % faster is found.

    world        noise      prompts   verdict      one halving   joint    found: verdict, one, joint
    equal        5 %         12     2.2   3.5      6.5   8.2      3.5
    equal        5 %         24     2.9   4.6      6.9   9.1      4.5
    equal        5 %         48     3.1   4.8      7.2  10.0      4.7
    equal        15 %        12     2.8   4.7      7.0   8.7      4.7
    equal        15 %        24     3.1   5.1      7.5   9.3      5.3
    equal        15 %        48     3.1   4.0      8.2  10.8      3.9
    equal        30 %        12     3.1   4.7      7.2  10.4      4.2
    equal        30 %        24     3.1   4.3      7.7  10.4      4.1
    equal        30 %        48     3.0   5.5      8.0  10.2      5.5
    equal        skewed      12     1.9   5.3      6.3   7.9      5.4
    equal        skewed      24     2.8   5.9      8.5  10.1      5.9
    equal        skewed      48     3.6   5.0      8.2  11.1      5.0
    equal        recorded    12     1.8   3.0      4.6   5.8      4.2
    equal        recorded    24     1.7   2.5      4.9   6.5      2.5
    equal        recorded    48     2.7   4.5      6.4   9.2      4.5
    near ties    5 %         12     3.2   5.4      6.6  13.9      3.5
    near ties    5 %         24     3.8   5.2      7.5  14.5      4.5
    near ties    5 %         48     4.8   8.5      8.3  15.8      4.7
    near ties    15 %        12     2.4   4.7      6.3  10.2      4.7
    near ties    15 %        24     3.3   5.1      7.3  12.1      5.3
    near ties    15 %        48     3.2   5.9      7.6  14.1      3.9
    near ties    30 %        12     2.6   4.5      6.2  10.7      4.1
    near ties    30 %        24     2.8   4.6      6.6  10.9      4.1
    near ties    30 %        48     2.8   5.5      6.9  12.8      5.5
    near ties    skewed      12     2.9   5.3      6.0  10.7      5.4
    near ties    skewed      24     4.3   7.5      8.1  16.0      5.9
    near ties    skewed      48     4.5   6.9      8.4  14.8      5.0
    near ties    recorded    12     1.9   3.0      6.5  13.8      3.0
    near ties    recorded    24     2.0   4.0      5.6  13.0      2.5
    near ties    recorded    48     3.0   4.5      7.8  19.8      4.5
    one faster   5 %         12     0.0   0.0      0.0   0.0      0.5       82.0       80.5       35.9
    one faster   5 %         24     0.0   0.0      0.0   0.0      0.0       99.4       99.1       80.3
    one faster   5 %         48     0.0   0.0      0.0   0.0      0.0      100.0      100.0       99.8
    one faster   15 %        12     0.1   0.2      0.9   2.3      2.2       10.9       15.4        3.9
    one faster   15 %        24     0.1   0.1      0.8   2.0      1.3       24.6       29.9        9.7
    one faster   15 %        48     0.0   0.0      0.1   0.2      1.2       55.1       57.4       22.8
    one faster   30 %        12     0.7   1.2      2.3   4.3      3.4        4.0        7.3        1.6
    one faster   30 %        24     0.5   0.9      1.8   3.0      3.1        6.7       10.5        2.7
    one faster   30 %        48     0.2   0.8      1.1   2.5      2.0       12.4       17.7        4.5
    one faster   skewed      12     0.0   0.0      0.5   1.3      0.4       26.9       30.0        9.6
    one faster   skewed      24     0.0   0.1      0.6   1.4      0.9       27.7       34.3       14.8
    one faster   skewed      48     0.0   0.0      0.2   0.8      0.5       49.8       56.7       26.3
    one faster   recorded    12     0.1   0.2      0.6   1.5      3.5        8.2       14.0        3.5
    one faster   recorded    24     0.2   0.5      0.2   0.5      1.2       22.5       27.1        9.1
    one faster   recorded    48     0.0   0.0      0.1   0.5      1.5       48.5       50.0       21.7

No sentence is false in more than 6 % of runs where all are equal (6.8 of 1,000 runs of one tree and one
chain, skewed, 24 prompts; 5.9 of 6,000), and in near ties the verdict is false about half as often as that
of one halving. Where a tree is 8 % faster, both find it alike with little noise; with much noise the
verdict finds it less often, as it also names fewer false winners. With boundaries that make both false in
5 % of runs it finds it in 90 instead of 77 % (4 and 4 methods, 5 %, 12 prompts), 90 instead of 82 % (8 and
1) and 34 instead of 24 % (4 and 4, 15 %, 24 prompts).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import log
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from numpy.typing import NDArray
from rich.console import Console

from treespec.experiments.report.halvings import fit
from treespec.experiments.report.joint import over_all
from treespec.experiments.report.statistics import LogRatio
from treespec.experiments.report.table import Column, Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.progress import Reporter

SIZES = (12, 24, 48)
FAMILIES = ((1, 1), (2, 2), (4, 4), (8, 8), (8, 1), (1, 8))
NOISES = ("5 %", "15 %", "30 %", "skewed", "recorded")
WORLDS = ("equal", "near ties", "one faster")
FASTER = 0.08
SLOWER = 0.01, 0.07
STALLS, STALL = 0.1, 0.5
NO_DIFFERENCE = 1e-3
"""A truth nearer to 1 than this is 1: it is estimated by simulation."""

RECORDS = Path(__file__).parents[1] / "results"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One simulated setting."""

    prompts: int
    trees: int
    chains: int
    noise: str
    world: str

    @property
    def effects(self) -> tuple[Floats, Floats]:
        """Logarithms of the methods' true speeds, trees and chains."""
        sides = [np.zeros(self.trees), np.zeros(self.chains)]
        if self.world == "near ties":
            for side in sides:
                side[1:] = -np.linspace(*SLOWER, max(1, len(side) - 1))[: len(side) - 1]
        if self.world == "one faster":
            sides[0][0] = log(1 + FASTER)
        return sides[0], sides[1]

    @property
    def symmetric(self) -> bool:
        """Whether both sides are alike, so that the truth is 1."""
        return self.world == "equal" or (self.world == "near ties" and self.trees == self.chains)

    def run(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Tokens and seconds of trees and of chains, `[methods, 2, prompts]` each."""
        effects = np.concatenate(self.effects)
        if self.noise == "recorded":
            table = recorded()[int(rng.integers(len(recorded())))]
            rows = rng.choice(len(table), len(effects), replace=len(table) < len(effects))
            values = table[rows][..., rng.integers(table.shape[-1], size=self.prompts)]
            tokens, seconds = values[:, 0], values[:, 1]
        else:
            early = rng.random(self.prompts) < 0.3
            tokens = np.where(early, rng.integers(8, 64, self.prompts), 64).astype(float)
            tokens = np.broadcast_to(tokens, (len(effects), self.prompts))
            hard = np.exp(rng.normal(0, 0.15, self.prompts))
            size = {"skewed": 0.05}.get(self.noise) or float(self.noise.split()[0]) / 100
            seconds = tokens * hard * np.exp(rng.normal(0, size, tokens.shape))
            if self.noise == "skewed":
                seconds = seconds * (1 + STALL * (rng.random(tokens.shape) < STALLS))
        values = np.stack([tokens, seconds / np.exp(effects)[:, None]], axis=1)
        return values[: self.trees], values[self.trees :]


@cache
def recorded() -> list[Floats]:
    """Tables of real runs, `[methods, 2, prompts]`, scaled so that all methods are equally fast."""
    tables = []
    for path in sorted(RECORDS.glob("records-*.parquet")):
        frame = pl.read_parquet(path)
        for (_,), rows in frame.group_by("sampling", maintain_order=True):
            wide = [
                rows.pivot("method", index="prompt", values=column).drop("prompt").drop_nulls()
                for column in ("tokens", "seconds")
            ]
            values = np.stack([frame.to_numpy().T.astype(float) for frame in wide], axis=1)
            scale = values[:, 0].sum(-1) / values[:, 1].sum(-1)
            values[:, 1] *= scale[:, None]
            tables.append(values)
    return tables


def one_halving(left: Floats, right: Floats) -> LogRatio:
    """The comparison by one halving of the prompts in their order: even ones against odd ones."""
    n, value, parts = left.shape[-1], 0.0, np.zeros(left.shape[-1])
    for side, sign in ((left, 1), (right, -1)):
        taken = np.zeros((2, n))
        for chose in (0, 1):
            totals = side[..., chose::2].sum(-1)
            best = (totals[:, 0] / totals[:, 1]).argmax()
            taken[:, 1 - chose :: 2] = side[best][:, 1 - chose :: 2]
        sums = taken.sum(-1)
        value += sign * log(sums[0] / sums[1])
        parts += sign * (taken[0] / sums[0] - taken[1] / sums[1])
    return LogRatio.of(value, parts)


def truth(cell: Cell, left: Floats, right: Floats, rng: np.random.Generator) -> float:
    """Log ratio of the true speeds of the methods that a random half of these prompts chooses."""
    half = rng.permutation(cell.prompts)[: cell.prompts // 2]
    chosen = []
    for side, effects in zip((left, right), cell.effects, strict=True):
        totals = side[..., half].sum(-1)
        chosen.append(effects[(totals[:, 0] / totals[:, 1]).argmax()])
    return chosen[0] - chosen[1]


def counted(cell: Cell, runs: int) -> dict[str, float]:
    """Shares of runs with each sentence: `verdict`, `one halving` and `joint`, false or true."""
    rng = np.random.default_rng([cell.prompts, cell.trees, cell.chains, *cell.noise.encode()])
    said: dict[str, list[int]] = {"verdict": [], "one halving": []}
    joint = {"joint false": 0, "joint power": 0}
    chosen = []
    for _ in range(runs):
        left, right = cell.run(rng)
        chosen.append(truth(cell, left, right, rng))
        for way, ratio in (
            ("verdict", fit(left, right).ratio),
            ("one halving", one_halving(left, right)),
        ):
            interval = ratio.interval()
            said[way].append(0 if interval.contains(1.0) else 1 if interval.estimate > 1 else -1)
        for false, true in _joint(cell, left, right):
            joint["joint false"] += false
            joint["joint power"] += true
    right_way = float(np.mean(chosen))
    unclear = cell.symmetric or abs(right_way) < NO_DIFFERENCE
    sign = 0 if unclear else 1 if right_way > 0 else -1
    shares = {name: count / runs for name, count in joint.items()}
    for way, named in said.items():
        shares[f"{way} false"] = sum(word not in (0, sign) for word in named) / runs
        shares[f"{way} power"] = sum(word == sign != 0 for word in named) / runs
    return shares


def _joint(cell: Cell, left: Floats, right: Floats) -> Iterator[tuple[bool, bool]]:
    """For each side said to hold a method faster than all of the other: whether it is false, or true."""
    names = [f"t{i}" for i in range(cell.trees)], [f"c{i}" for i in range(cell.chains)]
    tables = dict(zip([*names[0], *names[1]], [*left, *right], strict=True))
    effects = dict(zip([*names[0], *names[1]], np.concatenate(cell.effects), strict=True))
    for found, others in zip(over_all(tables, *names), names[::-1], strict=True):
        if found is not None:
            holds = effects[found.method] > max(effects[name] for name in others)
            yield not holds, holds


def cells() -> list[Cell]:
    noises = [noise for noise in NOISES if noise != "recorded" or recorded()]
    return [
        Cell(n, *family, noise, world)
        for n, family, noise, world in product(SIZES, FAMILIES, noises, WORLDS)
    ]


def summed_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per world, noise and number of prompts: means over the families, and the worst of them."""
    table = []
    for world, noise, n in product(WORLDS, NOISES, SIZES):
        group = [r for r in rows if (r["world"], r["noise"], r["prompts"]) == (world, noise, n)]
        if group:
            means = {
                key: float(np.mean([row[key] for row in group]))
                for key in group[0]
                if key.endswith(("false", "power"))
            }
            worst = {
                f"worst {way}": max(row[f"{way} false"] for row in group)
                for way in ("verdict", "one halving", "joint")
            }
            table.append({"world": world, "noise": noise, "prompts": n, **means, **worst})
    return table


def _percent(head: str, key: str) -> Column[Mapping[str, Any]]:
    return Column(head, lambda row: f"{100 * row[key]:.1f}")


COLUMNS = (
    keyed("world", "world", left=True),
    keyed("noise", "noise", left=True),
    keyed("prompts", "prompts"),
    _percent("false:\nverdict", "verdict false"),
    _percent("worst", "worst verdict"),
    _percent("one\nhalving", "one halving false"),
    _percent("worst", "worst one halving"),
    _percent("joint", "joint false"),
    _percent("worst", "worst joint"),
    _percent("found:\nverdict", "verdict power"),
    _percent("one\nhalving", "one halving power"),
    _percent("joint", "joint power"),
)


def main(
    runs: Annotated[int, typer.Option(min=1, help="Simulated runs of each cell.")] = 1000,
) -> None:
    """Simulate all cells, print their table and save it."""
    rows: list[dict[str, Any]] = []
    every = cells()
    with Reporter(Console(stderr=True)).units(len(every)) as begin:
        for cell in every:
            begin(
                f"{cell.world}, {cell.noise}, {cell.trees} and {cell.chains}, {cell.prompts} prompts"
            )
            rows.append({**vars(cell), **counted(cell, runs)})
    print_and_save(
        "coverage",
        {"runs": runs, "cells": rows},
        Table("sentences in percent of runs, means over the families", COLUMNS, summed_up(rows)),
        f"{runs} runs of each cell; families of trees and chains: "
        + ", ".join(f"{a} and {b}" for a, b in FAMILIES),
    )


if __name__ == "__main__":
    typer.run(main)
