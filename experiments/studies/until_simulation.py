"""Simulate how often a run with `until` names a winner among equals, and how many prompts it needs.

    python -m treespec.experiments.studies.until_simulation [RUNS]

Every simulated run has prompts of its own. A chain and a tree decode each prompt in times that vary by
prompt: log-normally with a standard deviation of 0.1 or 0.2, or skewed, with most prompts alike and a few
that take the tree much longer. A run looks at its results, and ends, as `treespec run` does, with the
functions of `report.sequential`. For comparison, the same runs use fixed 95 % intervals at every look
(`naive`), or one look at the end.

Percentage of 2,000 runs that name a winner among equals (standard error 0.5). *By t alone* means until
decided by Student's t, which does not account for skew; *until narrow* means until half the interval is
narrower than 0.05:

    prompts               at most  looks  until decided  by t alone  fixed intervals  one look  until narrow
    log-normal, sd 0.1         24      4            3.7         4.2             11.8       4.1           3.0
    log-normal, sd 0.2         24      4            3.9         4.6             12.2       4.5           3.2
    skewed, sd 0.1             24      4            4.5         6.5             14.6       5.3           3.7
    skewed, sd 0.2             24      4            4.7         7.1             17.1       5.9           3.4
    exponential, sd 0.2        24      4            5.4         9.4             19.4       7.6           3.8
    log-normal, sd 0.1         60      6            4.9         5.0             18.1       4.7           1.7
    log-normal, sd 0.2         60      6            4.2         4.9             18.3       4.6           3.7
    skewed, sd 0.1             60      6            5.1         5.9             19.5       5.7           1.8
    skewed, sd 0.2             60      6            4.3         5.8             19.3       5.4           3.8
    exponential, sd 0.2        60      6            4.8         7.5             24.2       5.5           3.8
    log-normal, sd 0.1        200      9            4.3         4.5             23.1       4.4           0.1
    log-normal, sd 0.2        200      9            4.5         4.7             24.1       4.8           1.6
    skewed, sd 0.1            200      9            5.4         6.8             24.8       6.0           0.1
    skewed, sd 0.2            200      9            4.7         5.8             26.7       5.8           1.5
    exponential, sd 0.2       200      9            3.7         5.1             30.3       4.7           1.6

Where only the tree's times are skewed (a gamma law of shape 2, or an exponential one), few prompts give
more than 5 % even with one look, and repeated looks add up to two points. The bounds of runs until decided
allow for this (`report.sequential`), and no row exceeds 5.4 %.

Mean number of prompts until decided where the tree is faster, and percentage of runs that are decided at
all:

                          at ratio 1.05      at ratio 1.1      at ratio 1.2
    log-normal, sd 0.1
        at most 24         22   52.1         18   96.7         13  100.0
        at most 60         48   90.9         30  100.0         21  100.0
        at most 200        94  100.0         55  100.0         38  100.0
    log-normal, sd 0.2
        at most 24         24   17.9         22   52.3         18   95.0
        at most 60         57   39.8         48   90.2         31  100.0
        at most 200       160   88.7         94  100.0         58  100.0
    skewed, sd 0.2
        at most 24         23   18.9         22   45.6         19   86.5
        at most 60         57   37.5         50   84.4         35   99.9
        at most 200       163   86.8        103  100.0         68  100.0
    exponential, sd 0.2
        at most 24         23   19.1         22   44.2         20   79.1
        at most 60         57   36.4         51   81.0         39   99.4
        at most 200       167   84.4        110  100.0         77  100.0

Bounds that allow for skew cost up to 8 points of the decided runs where times are log-normal, and up to 21
where the cost of a few prompts is exponential: there Student's t finds the tree faster too easily, as the
first table shows. The more prompts are planned, the later a look can end the run, so plan no more prompts
than you would wait for. Estimates that end a run lie too far from 1: the median is 1.116 for a true ratio
of 1.05 at a standard deviation of 0.2 and 24 prompts. The interval at the end misses the true ratio in at
most 5.4 % of runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from treespec.experiments.benchmarks.results_file import print_and_save
from treespec.experiments.report.sequential import (
    Floats,
    boundary_at,
    log_ratio,
    looks,
    reach,
    student,
)
from treespec.experiments.report.table import Column, Table, keyed

__all__ = ["MOST_FALSE_VERDICTS", "WORLDS", "World", "simulate"]

MOST_FALSE_VERDICTS = 0.06
"""Maximum share of false verdicts of runs until decided."""

RUNS = 2000
MOST_PROMPTS = (24, 60, 200)
RATIOS = (1.05, 1.1, 1.2)
HALF_WIDTH = 0.05
TOKENS = 64.0


@dataclass(frozen=True)
class World:
    """How prompts differ.

    Args:
        name: name of the world.
        cost: draws the tree's relative cost of prompts, with mean 1, as an array of the given shape.
        share: standard deviation of the independent noise in each side's time on a prompt.
    """

    name: str
    cost: Callable[[np.random.Generator, tuple[int, int]], Floats]
    share: float = 0.03

    def runs(
        self, rng: np.random.Generator, runs: int, prompts: int, ratio: float
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Tokens and seconds of the tree, then of the chain; each `[runs, prompts]`."""
        shape = runs, prompts
        difficulty = np.exp(rng.normal(0, 0.1, shape))
        tree, chain = (difficulty * np.exp(rng.normal(0, self.share, shape)) for _ in range(2))
        tokens = np.full(shape, TOKENS)
        return tokens, tree * self.cost(rng, shape) / ratio, tokens, chain


def _log_normal(deviation: float) -> Callable[[np.random.Generator, tuple[int, int]], Floats]:
    return lambda rng, shape: np.exp(rng.normal(-(deviation**2) / 2, deviation, shape))


def _skewed(
    deviation: float, shape: float
) -> Callable[[np.random.Generator, tuple[int, int]], Floats]:
    root = float(np.sqrt(shape))
    return lambda rng, size: 1 + deviation * (rng.gamma(shape, 1.0, size) - shape) / root


WORLDS = (
    World("log-normal, sd 0.1", _log_normal(0.1)),
    World("log-normal, sd 0.2", _log_normal(0.2)),
    World("skewed, sd 0.1", _skewed(0.1, 2.0)),
    World("skewed, sd 0.2", _skewed(0.2, 2.0)),
    World("exponential, sd 0.2", _skewed(0.2, 1.0)),
)


def simulate(world: World, most: int, ratio: float, runs: int, seed: int = 0) -> dict[str, float]:
    """Simulate runs of at most `most` prompts.

    Args:
        world: how prompts differ.
        most: number of planned prompts.
        ratio: true speed of the tree over that of the chain.
        runs: number of runs.
        seed: seed of all random draws.

    Returns:
        Shares of all runs that name a winner: `decided` (until decided), `wrong` (until decided, naming the
        slower side), `symmetric` (until decided by Student's t alone, which does not account for skew),
        `naive` (fixed intervals at every look), `once` (one look at the end), `width` (until half the
        interval is narrower than `HALF_WIDTH`). Prompts decoded until decided: `prompts` (mean), `median`
        and `nine_in_ten` (90th percentile); `width_prompts`: mean prompts until narrow. `missed` and
        `width_missed`: share of the intervals at the end of a run until decided, or until narrow, that do
        not contain the true ratio. `estimate`: median estimate of the decided runs.
    """
    rng = np.random.default_rng([seed, most, round(1000 * ratio), *world.name.encode()])
    columns = world.runs(rng, runs, most, ratio)
    ends = looks(most)
    truth = float(np.log(ratio))
    seen = []
    for place, n in enumerate(ends):
        tokens, spent, b_tokens, b_spent = (column[:, :n] for column in columns)
        middle, error = log_ratio(tokens, spent, b_tokens, b_spent)
        boundary = boundary_at(n, most, ends[:place], last=n == most)
        below, above = reach(tokens, spent, b_tokens, b_spent, boundary)
        fixed, symmetric = student(1.959964, n) * error, boundary * error
        seen.append((middle, middle - below, middle + above, fixed, symmetric))
    middle, low, high, fixed, symmetric = np.stack(seen, axis=1)  # [looks, runs] each
    out, away = (low > 0) | (high < 0), (low > truth) | (high < truth)
    naive = np.abs(middle) > fixed
    half = (np.exp(np.minimum(high, 50.0)) - np.exp(low)) / 2

    def at_end(ends_run: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[Any]:
        """The value of each run at its last look: the first one that ends it, or the last of all."""
        last = np.where(ends_run.any(0), ends_run.argmax(0), len(ends) - 1)
        return values[last, np.arange(runs)]

    prompts = np.broadcast_to(np.array(ends)[:, None], out.shape)
    narrow = half < HALF_WIDTH
    won, middle_at_end, until_decided = (at_end(out, values) for values in (out, middle, prompts))
    return {
        "decided": float(won.mean()),
        "wrong": float((won & (np.sign(middle_at_end) != np.sign(truth or 1.0))).mean()),
        "symmetric": float((np.abs(middle) > symmetric).any(0).mean()),
        "naive": float(naive.any(0).mean()),
        "once": float(naive[-1].mean()),
        "missed": float(at_end(out, away).mean()),
        "prompts": float(until_decided.mean()),
        "median": float(np.median(until_decided)),
        "nine_in_ten": float(np.quantile(until_decided, 0.9)),
        "estimate": float(np.median(np.exp(middle_at_end[won]))) if won.any() else float("nan"),
        "width": float(at_end(narrow, out).mean()),
        "width_missed": float(at_end(narrow, away).mean()),
        "width_prompts": float(at_end(narrow, prompts).mean()),
    }


def main(
    runs: Annotated[int, typer.Argument(help="Simulated runs per row.")] = RUNS,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Simulate every row, print the tables and save them."""
    rows: list[dict[str, Any]] = [
        {"world": world.name, "at_most": most, "ratio": ratio, "looks": len(looks(most))}
        | simulate(world, most, ratio, runs, seed)
        for ratio in (1.0, *RATIOS)
        for most in MOST_PROMPTS
        for world in WORLDS
    ]
    equal = [row for row in rows if row["ratio"] == 1.0]
    unequal = [row for row in rows if row["ratio"] != 1.0]
    print_and_save(
        "until_simulation",
        {"runs": runs, "rows": rows},
        Table("a winner among equals, percent of runs", EQUAL, equal),
        Table("until decided, where the tree is faster", UNEQUAL, unequal),
        f"largest share of false verdicts: {100 * max(row['decided'] for row in equal):.1f} %, "
        f"goal: at most {100 * MOST_FALSE_VERDICTS:g} %",
        width=110,
    )


def _percent(head: str, key: str) -> Column[Mapping[str, Any]]:
    return Column(head, lambda row: f"{100 * row[key]:.1f}")


EQUAL = (
    keyed("prompts", "world", left=True),
    keyed("at most", "at_most"),
    keyed("looks", "looks"),
    _percent("until decided", "decided"),
    _percent("by t alone", "symmetric"),
    _percent("fixed intervals", "naive"),
    _percent("one look", "once"),
    _percent("until narrow", "width"),
    keyed("prompts until narrow", "width_prompts", ".0f"),
)
UNEQUAL = (
    keyed("prompts", "world", left=True),
    keyed("at most", "at_most"),
    keyed("ratio", "ratio"),
    _percent("decided", "decided"),
    _percent("by t alone", "symmetric"),
    _percent("one look", "once"),
    keyed("mean prompts", "prompts", ".0f"),
    keyed("median", "median", ".0f"),
    keyed("nine in ten", "nine_in_ten", ".0f"),
    _percent("interval misses", "missed"),
    keyed("estimate", "estimate", ".3f"),
)


if __name__ == "__main__":
    typer.run(main)
