"""Simulate how often the interval of the paired bootstrap contains the true ratio.

    python -m treespec.experiments.research.studies.bootstrap_coverage [EXPERIMENTS]

Every simulated experiment has its own prompts, tokens and times, and computes the interval of the speedup
with `statistics.bootstrap`, as the table of a run does. The true speedup is known exactly. A hundred
experiments share their resamples, which does not change the coverage. The goal is a coverage of 93 to 97 %
at a nominal 95 %; all cells are printed, including those outside this range.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import exp, sqrt
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from treespec.experiments.report.statistics import RESAMPLES, bootstrap
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save

COVERAGE_GOAL = (0.93, 0.97)
SIZES = (6, 12, 24, 48)
EXPERIMENTS = 1000
BUDGET = 64
BATCH = 100

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


@dataclass(frozen=True)
class World:
    """How prompts differ.

    Args:
        name: name of the world.
        cost: draws, for each prompt, the method's time per token over that of the baseline.
        mean_cost: expectation of `cost`; the true speedup is 1 / mean_cost.
        stops: share of prompts whose text ends early, anywhere from 8 tokens on, with both methods.
        stalls: share of prompts on which a method takes half as long again, independently for each method.
    """

    name: str
    cost: Draw
    mean_cost: float
    stops: float = 0.0
    stalls: float = 0.0

    @property
    def truth(self) -> float:
        """The true ratio of tokens per second."""
        return 1 / self.mean_cost

    def experiment(
        self, rng: np.random.Generator, prompts: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Tokens of each prompt, and seconds of the method and of the baseline."""
        early = rng.random(prompts) < self.stops
        tokens = np.where(early, rng.integers(8, BUDGET, prompts), BUDGET).astype(np.float64)
        difficulty = tokens * np.exp(rng.normal(0, 0.08, prompts))
        method, baseline = (
            difficulty
            * np.exp(rng.normal(0, 0.03, prompts))
            * (1 + (rng.random(prompts) < self.stalls) / 2)
            for _ in range(2)
        )
        return tokens, method * self.cost(rng, prompts), baseline


WORLDS = (
    World("log-normal", lambda rng, n: np.exp(rng.normal(0, 0.2, n)) / 2, exp(0.02) / 2),
    World(
        "early stops", lambda rng, n: np.exp(rng.normal(0, 0.2, n)) / 2, exp(0.02) / 2, stops=0.4
    ),
    World("skewed", lambda rng, n: 0.3 + rng.gamma(2.0, 0.1, n), 0.5),
    World("skewed, early stops", lambda rng, n: 0.3 + rng.gamma(2.0, 0.1, n), 0.5, stops=0.4),
    World("stalls", lambda rng, n: np.exp(rng.normal(0, 0.2, n)) / 2, exp(0.02) / 2, stalls=0.1),
)


def coverage(world: World, prompts: int, experiments: int, seed: int = 0) -> dict[str, float]:
    """Simulate experiments, and count the intervals that contain the true speedup.

    Args:
        world: how prompts differ.
        prompts: prompts per experiment.
        experiments: number of experiments.
        seed: seed of all random draws.

    Returns:
        `coverage`, its standard `error`, and the shares of intervals `below` and `above` the true speedup.
    """
    rng = np.random.default_rng([seed, prompts, *world.name.encode()])
    below = above = 0
    for first in range(0, experiments, BATCH):
        batch = range(first, min(first + BATCH, experiments))
        columns = {}
        for i in batch:
            tokens, method, baseline = world.experiment(rng, prompts)
            columns |= {(i, "tokens"): tokens, (i, "method"): method, (i, "baseline"): baseline}
        totals = bootstrap(columns, seed=first)
        for i in batch:
            speedup = totals.ratio([(i, "tokens"), (i, "baseline")], [(i, "method"), (i, "tokens")])
            below += speedup.high < world.truth
            above += speedup.low > world.truth
    share = 1 - (below + above) / experiments
    return {
        "coverage": share,
        "error": sqrt(share * (1 - share) / experiments),
        "below": below / experiments,
        "above": above / experiments,
    }


def main(
    experiments: Annotated[int, typer.Argument(min=1, help="Experiments per cell.")] = EXPERIMENTS,
) -> None:
    """Simulate all cells; print and save their coverage."""
    cells: list[dict[str, Any]] = []
    for prompts, world in product(SIZES, WORLDS):
        shares = coverage(world, prompts, experiments)
        inside = COVERAGE_GOAL[0] <= shares["coverage"] <= COVERAGE_GOAL[1]
        cells.append({"world": world.name, "prompts": prompts, "inside": inside, **shares})
    columns = [keyed(name, name) for name in ("prompts", *(world.name for world in WORLDS))]
    rows = [
        {"prompts": prompts}
        | {
            cell["world"]: f"{100 * cell['coverage']:.1f} %{'' if cell['inside'] else ' !'}"
            for cell in cells
            if cell["prompts"] == prompts
        }
        for prompts in SIZES
    ]
    print_and_save(
        "bootstrap_coverage",
        {"experiments": experiments, "resamples": RESAMPLES, "cells": cells},
        Table("coverage of the interval", columns, rows),
        f"{experiments} experiments per cell, {RESAMPLES} resamples, nominal 95 %, standard error about "
        f"{100 * sqrt(0.05 * 0.95 / experiments):.1f} %; {sum(cell['inside'] for cell in cells)} of "
        f"{len(cells)} cells within 93 to 97 %, the others marked !",
    )


if __name__ == "__main__":
    typer.run(main)
