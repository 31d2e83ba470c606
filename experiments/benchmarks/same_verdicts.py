"""Test whether runs name the same winners on a quiet machine and beside bursts of other work.

    python -m treespec.experiments.benchmarks.same_verdicts [--runs 5] [--small] [KEY=VALUE ...]

Run the config `speed` at temperature 0, with the given overrides, several times on the quiet machine and as
often beside a neighbour that uses one core for 0.7 s of every 2 s, and list the winner that each verdict
names, if any. Two runs contradict each other if they name different winners; an undecided run contradicts
none. `--small` uses 50M parameters, fewer prompts and texts half as long: less than a minute per run.
Figures are saved after every run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from treespec.experiments.benchmarks.brief_run import brief_run
from treespec.experiments.benchmarks.neighbours import Neighbour, beside
from treespec.experiments.benchmarks.results_file import print_parts, save
from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import Config
from treespec.experiments.report.table import Column, Table, interval
from treespec.experiments.report.verdict import comparisons
from treespec.experiments.run.models import load_models
from treespec.experiments.run.progress import Reporter
from treespec.models.load import Pair
from treespec.search.intervals import Interval

__all__ = ["SMALL", "Named", "agreed", "one"]

SMALL = (
    "models.enlarge=50M",
    "prompts.count=8",
    "max_new_tokens=32",
    "methods.2.lengths=[4, 8]",
    "methods.2.tune_prompts=2",
    "alone=0",
)

SETTING = (
    "samplings=[{temperature: 0}]",
    "models.passes=eager",
    "models.draft_passes=eager",
)
"""One temperature, for one verdict per run; compiling does not pay for runs this short."""


@dataclass(frozen=True)
class Named:
    """The verdict of a run on two families of methods.

    Args:
        sides: the two families.
        winner: the faster family, or None if the run does not decide.
        ratio: speed of the first family over that of the second.
        run: number of the run.
        beside: kind of neighbour during the run, or `quiet`.
    """

    sides: tuple[str, str]
    winner: str | None
    ratio: Interval
    run: int
    beside: str


def one(number: int, kind: Neighbour | None, config: Config, pair: Pair) -> list[Named]:
    """Run once, and read the verdicts.

    Args:
        number: number of the run, used as its seed.
        kind: kind of neighbour during the run, or None.
        config: config of the run.
        pair: the loaded models.
    """
    with (
        beside(kind),
        brief_run(config.model_copy(update={"seed": number}), load=lambda models: pair) as loaded,
    ):
        return [
            Named(
                (duel.left.family, duel.right.family),
                None if duel.winner is None else duel.winner.family,
                duel.ratio,
                number,
                str(kind or "quiet"),
            )
            for data in loaded.measurements.values()
            for duel in comparisons(data)
        ]


def agreed(verdicts: Sequence[Named]) -> dict[tuple[str, str], bool]:
    """For each pair of families, whether no two runs name different winners."""
    winners: dict[tuple[str, str], set[str | None]] = {}
    for named in verdicts:
        winners.setdefault(named.sides, set()).add(named.winner)
    return {sides: len(names - {None}) < 2 for sides, names in winners.items()}


COLUMNS = (
    Column[Named]("beside", lambda row: row.beside, left=True),
    Column[Named]("run", lambda row: str(row.run + 1)),
    Column[Named]("winner", lambda row: row.winner or "nobody", left=True),
    Column[Named]("times as fast", lambda row: interval(row.ratio)),
)


def figures(config: Config, verdicts: Sequence[Named]) -> Mapping[str, Any]:
    """The figures for the result file."""
    return {
        "config": config.model_dump(mode="json"),
        "comparisons": [
            {
                "sides": sides,
                "agreed": same,
                "runs": [
                    {"beside": n.beside, "run": n.run, "winner": n.winner, "ratio": n.ratio}
                    for n in verdicts
                    if n.sides == sides
                ],
            }
            for sides, same in agreed(verdicts).items()
        ],
    }


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Runs on the quiet machine, and as many beside bursts.")
    ] = 5,
    small: Annotated[
        bool, typer.Option("--small", help="Small runs of less than a minute each.")
    ] = False,
) -> None:
    """Run, list the winners and save them."""
    config = load_config("speed", [*SETTING, *(SMALL if small else ()), *(overrides or ())])
    pair = load_models(config.models)
    verdicts: list[Named] = []
    with Reporter(Console(stderr=True)).units(2 * runs, doing="running", finished="run") as begin:
        for kind in (None, Neighbour.BURSTS):
            for number in range(runs):
                begin(f"beside {kind or 'nobody'}: run {number + 1}/{runs}")
                verdicts += one(number, kind, config, pair)
                save("same_verdicts", figures(config, verdicts))
    for sides, same in agreed(verdicts).items():
        print_parts(
            Table(" against ".join(sides), COLUMNS, [n for n in verdicts if n.sides == sides]),
            "the same winner or none" if same else "different winners",
            width=110,
        )


if __name__ == "__main__":
    typer.run(main)
