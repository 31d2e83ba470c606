"""Test whether a verdict depends on neighbours: two identical methods and one that takes 5 % longer.

    python -m treespec.experiments.research.benchmarks.interleaving [--runs 20] [--neighbour bursts] \\
        [--device cuda]

Every run decodes the same prompts with plain decoding, two identical chains of 4, and a third chain that
spins for 5 % of the time of each of its steps. By construction the ratio of the first two chains is 1, and
that of the third to the first is 1 / 1.05. Over many runs, on the quiet machine and beside three kinds of
neighbours (`neighbours`), the benchmark counts how often the 95 % interval of the first ratio contains 1
and how often the third chain is found slower; adjusted by the slowdowns that methods share
(`report.slowdown`), and by totals of the same runs. Figures are saved after every run.

Beside the steady neighbours a run takes minutes: a thread that has finished its part spins while it waits
for the other one, on a core that the other one needs. `OMP_WAIT_POLICY=PASSIVE`, set before the command,
makes threads sleep instead. The policy is saved with the figures, in a separate file.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from treespec import Step, TokenTree, plugins
from treespec.draft import make_drafter
from treespec.experiments.config.schema import Config, refresh
from treespec.experiments.measure.searched_run import brief_run
from treespec.experiments.measure.timing import seconds_of
from treespec.experiments.report.measurements import CLOCK
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Table, keyed
from treespec.experiments.research.benchmarks.neighbours import LONGEST_STAY_S, Neighbour, beside
from treespec.experiments.research.benchmarks.results_file import print_parts, save
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.models.load import Pair
from treespec.protocols import Coins, Drafter
from treespec.search.intervals import Interval
from treespec.tree import Law

WAITING = "OMP_WAIT_POLICY"
SPUN_SHARE = 0.05
"""The third chain spins for this share of the time of each of its steps."""

RISING_RUNS = 2.0
"""`drift` reaches a whole core after this many durations of a run, so half a core at the end of a run."""


class Dearer:
    """A drafter that spins at the end of each step, for a share of the step's own time."""

    def __init__(self, inner: Drafter) -> None:
        self._inner, self._start = inner, 0.0
        self.max_depth, self.max_length = inner.max_depth, inner.max_length
        self.prefill = inner.prefill

    def propose(self, coins: Coins) -> TokenTree:
        """Draft a tree; the step begins here."""
        self._start = time.perf_counter()
        return self._inner.propose(coins)

    def commit(self, step: Step) -> None:
        """End the step, then spin."""
        self._inner.commit(step)
        now = time.perf_counter()
        end = now + SPUN_SHARE * (now - self._start)
        while time.perf_counter() < end:
            pass


def config_of(seed: int, enlarge: str | None, device: str = "cpu") -> Config:
    """The config of the run with this seed; the first call registers the draft source `dearer`."""
    if "dearer" not in plugins.parts("source"):
        plugins.drafter("dearer", laws=tuple(Law))(
            lambda wanted, settings: Dearer(
                make_drafter(wanted.pair.draft, wanted.tree, wanted.law, wanted.sampling)
            )
        )
        refresh()
    chain = {"kind": "tree", "shape": {"kind": "chain", "depth": 4}}
    return Config.model_validate(
        {
            "name": "interleaving",
            "models": {
                "target": "embedded",
                "dtype": "float32",
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
            "trees": 0,
            "meters": [],
            "alone": 0,
        }
    )


@dataclass(frozen=True)
class Measurement:
    """The findings of one run: the speed of the other two chains over the first, in two ways."""

    same: Interval
    dearer: Interval
    same_totals: Interval
    dearer_totals: Interval


def one(config: Config, pair: Pair) -> Measurement:
    """Run the methods once, and read their ratios."""
    with brief_run(config, load=lambda models: pair) as loaded:
        totals = loaded.measurements["T=0"].totals
        ratios = [
            speed_ratio(totals, method, "one", column)
            for column in ("decode_s", CLOCK)
            for method in ("other", "dearer")
        ]
        return Measurement(*ratios)


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


def counted(runs: Sequence[Measurement]) -> dict[str, dict[str, float]]:
    """The figures of several runs beside one neighbour, by way of measuring."""
    ways = {
        "in turns": [(run.same, run.dearer) for run in runs],
        "totals": [(run.same_totals, run.dearer_totals) for run in runs],
    }
    return {
        way: {
            "runs": len(ratios),
            "holds_one": sum(same.contains(1.0) for same, _ in ratios),
            "half_width": statistics.median(same.half_width for same, _ in ratios),
            "mean_same": statistics.fmean(same.estimate for same, _ in ratios),
            "found_slower": sum(dearer.high < 1 for _, dearer in ratios),
            "mean_dearer": statistics.fmean(dearer.estimate for _, dearer in ratios),
        }
        for way, ratios in ways.items()
    }


def main(
    runs: Annotated[int, typer.Option(min=1, help="Runs beside each neighbour.")] = 20,
    enlarge: Annotated[str | None, typer.Option(help="Size of the target, such as 50M.")] = None,
    device: Annotated[str, typer.Option(help="Device of the models.")] = "cpu",
    neighbour: Annotated[
        list[str] | None, typer.Option(help="One of quiet, bursts, steady, drift; may be repeated.")
    ] = None,
) -> None:
    """Measure runs, print the table and save it."""
    names = neighbour or ["quiet", *map(str, Neighbour)]
    suffix = f"_{os.environ[WAITING].lower()}" if WAITING in os.environ else ""
    pair = load_models(config_of(0, enlarge, device).models)
    rows: list[Mapping[str, Any]] = []
    with Reporter(Console(stderr=True)).units(1 + len(names) * runs) as begin:
        begin("a run that does not count")
        rises = RISING_RUNS * seconds_of(lambda: one(config_of(0, enlarge, device), pair))
        for name in names:
            kind = None if name == "quiet" else Neighbour(name)
            found: list[Measurement] = []
            ways: dict[str, dict[str, float]] = {}
            for seed in range(runs):
                begin(f"beside {kind or 'nobody'}: run {seed + 1}/{runs}")
                with beside(kind, rises if kind is Neighbour.DRIFT else LONGEST_STAY_S):
                    found.append(one(config_of(seed, enlarge, device), pair))
                ways = counted(found)
                about = {
                    "waiting": os.environ.get(WAITING), "enlarge": enlarge, "device": device,
                }  # fmt: skip
                figures = {**ways, "measurements": found, **about}
                save(f"interleaving_{name}{suffix}", {name: figures})
            rows += [{"beside": name, "measured": way, **row} for way, row in ways.items()]
    print_parts(Table("A/A and A/B beside neighbours", COLUMNS, rows), width=110)


if __name__ == "__main__":
    typer.run(main)
