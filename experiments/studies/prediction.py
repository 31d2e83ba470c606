"""Predicted against measured: tokens per step, tokens per second, and the tree that is ranked first.

    python -m treespec.experiments.studies.prediction [RUN] [KEY=VALUE ...]

Runs `experiments/configs/search_then_run.yaml` (about ten minutes; half an hour where half precision is
slow), or reads a finished run of it. Medians are of absolute relative errors over all trees and settings.
Tokens per second are predicted twice: by the times from before the run, and at the pace that the same
parts had on average when they were timed again between its prompts. The latter leaves the error of the
prediction; the former has the drift of the machine in it, which nobody can predict. Both are held against
the goal.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from treespec.experiments.benchmarks.results_file import of_manifest, write
from treespec.experiments.config.file import load_config
from treespec.experiments.report.prediction import (
    Prediction,
    first_ranked,
    median_errors,
    prediction_finding,
)
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.terminal import print_finding, say
from treespec.experiments.search_then_run.run import run

GOAL_TOKENS, GOAL_SPEED, GOAL_FIRST = 0.05, 0.10, 0.95


def figures_of(loaded: Run) -> dict[str, Any]:
    """Everything that is printed, as data."""
    rows = loaded.predictions
    rounds, paces = loaded.pace or (0, None)
    figures: dict[str, Any] = {"trees": len(rows), **_errors(rows)}
    figures |= {"rounds_between": rounds, "pace": paces, "settings": {}}
    for sampling in dict.fromkeys(row.sampling for row in rows):
        trees = [row for row in rows if row.sampling == sampling]
        first, best = first_ranked(trees)
        choice = loaded.choices[sampling]
        figures["settings"][sampling] = {
            **_errors(trees),
            "first_ranked": first.method,
            "fastest": best.method,
            "first_over_fastest": first.speed_measured / best.speed_measured,
            "chosen": choice and choice[0],
            "chosen_over_fastest": choice and list(astuple(choice[2])),
            "rows": [
                {
                    "tree": row.method,
                    "tokens": row.tokens.estimate,
                    "tokens_measured": row.tokens_measured.estimate,
                    "step_ms": 1e3 * row.step_s,
                    "step_at_pace_ms": row.step_at_pace_s and 1e3 * row.step_at_pace_s,
                    "step_measured_ms": 1e3 * row.step_measured_s,
                }
                for row in trees
            ],
        }
    return figures


def goals(figures: dict[str, Any]) -> dict[str, bool]:
    """Which goals are met, by what they are for."""
    at_pace = figures["speed_error_at_pace"]
    settings = figures["settings"].values()
    return {
        f"tokens per step within {GOAL_TOKENS:.0%}": figures["tokens_error"] <= GOAL_TOKENS,
        f"tokens per second at the pace of the run within {GOAL_SPEED:.0%}": (
            at_pace is not None and at_pace <= GOAL_SPEED
        ),
        f"tokens per second by the times from before within {GOAL_SPEED:.0%}": (
            figures["speed_error"] <= GOAL_SPEED
        ),
        f"what search chose at {GOAL_FIRST:.0%} of the fastest": all(
            (one["chosen_over_fastest"] or [0])[0] >= GOAL_FIRST for one in settings
        ),
    }


def _errors(rows: Sequence[Prediction]) -> dict[str, float | None]:
    tokens, speed, at_pace = median_errors(rows)
    return {"tokens_error": tokens, "speed_error": speed, "speed_error_at_pace": at_pace}


def main(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN] [KEY=VALUE ...]", help="a finished run")
    ] = None,
) -> None:
    """Run the config `search_then_run`, or read a finished run of it, print and save."""
    console, given = Console(width=140), words or []
    if given and Path(given[0]).is_dir():
        _report(load_run(Path(given[0])), console)
        return
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("search_then_run", given)
        result = run(config, folder=Path(folder) / "run", console=Console(stderr=True))
        _report(load_run(result.folder), console)


def _report(loaded: Run, console: Console) -> None:
    finding = prediction_finding(loaded.predictions, loaded.choices, loaded.pace)
    print_finding(finding, console)
    figures = figures_of(loaded)
    for goal, met in goals(figures).items():
        say(console, f"{goal}: {'met' if met else 'NOT MET'}")
    path = write("prediction", of_manifest(loaded.manifest) | {"figures": figures})
    say(console, f"written: {path}")


if __name__ == "__main__":
    typer.run(main)
