"""Compare predicted with measured tokens per step and speedups, and evaluate the tree ranked first.

    python -m treespec.experiments.research.studies.predicted_and_measured [RUN] [KEY=VALUE ...]

Run `experiments/configs/search_then_run.yaml` (about ten minutes; half an hour where half precision is
slow), or read a finished run of it. Medians are medians of absolute relative errors over all trees and
settings.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from treespec.experiments.config.file import load_config
from treespec.experiments.measure.searched_run import brief_run
from treespec.experiments.report.prediction import (
    MISSING,
    first_ranked,
    median_errors,
    prediction_finding,
)
from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.terminal import print_finding, say
from treespec.experiments.research.benchmarks.results_file import of_manifest, write

GOAL_TOKENS, GOAL_SPEEDUP, GOAL_FIRST = 0.05, 0.10, 0.97


def figures_of(loaded: Run) -> dict[str, Any]:
    """The printed results as data."""
    rows = loaded.predictions
    tokens_error, speedup_error = median_errors(rows)
    figures: dict[str, Any] = {
        "trees": sum(row.size > 1 for row in rows),
        "tokens_error": tokens_error,
        "speedup_error": speedup_error,
        "settings": {},
    }
    for sampling in dict.fromkeys(row.sampling for row in rows):
        trees = [row for row in rows if row.sampling == sampling]
        tokens_error, speedup_error = median_errors(trees)
        first, best = first_ranked(trees)
        choice = loaded.choices[sampling]
        figures["settings"][sampling] = {
            "tokens_error": tokens_error,
            "speedup_error": speedup_error,
            "first_ranked": first.method,
            "fastest": best.method,
            "first_over_fastest": (
                first.speedup_measured.estimate / best.speedup_measured.estimate
            ),
            "chosen": choice and choice.method,
            "chosen_over_fastest": choice and list(choice.over),
            "rows": [
                {
                    "tree": row.method,
                    "tokens": row.tokens.estimate,
                    "tokens_measured": row.tokens_measured.estimate,
                    "speedup": row.speedup.estimate,
                    "speedup_measured": row.speedup_measured.estimate,
                    "tokens_per_second": row.speed,
                    "sure": row.sure,
                    "untimed": row.untimed,
                }
                for row in trees
            ],
        }
    return figures


def goals(figures: dict[str, Any]) -> dict[str, bool]:
    """By goal, whether it is met."""
    settings = figures["settings"].values()
    return {
        f"tokens per step within {GOAL_TOKENS:.0%}": figures["tokens_error"] <= GOAL_TOKENS,
        f"speedup over plain decoding within {GOAL_SPEEDUP:.0%}": (
            figures["speedup_error"] <= GOAL_SPEEDUP
        ),
        f"the choice of the search at {GOAL_FIRST:.0%} of the fastest or more": all(
            (setting["chosen_over_fastest"] or [0])[0] >= GOAL_FIRST for setting in settings
        ),
    }


def main(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [KEY=VALUE ...]", help="A finished run, or overrides of the config."
        ),
    ] = None,
) -> None:
    """Run the config `search_then_run`, or read a finished run of it; print and save the errors."""
    console, arguments = Console(width=140), words or []
    if arguments and Path(arguments[0]).is_dir():
        _report(load_run(Path(arguments[0])), console)
        return
    config = load_config("search_then_run", arguments)
    with brief_run(config, console=Console(stderr=True)) as loaded:
        _report(loaded, console)


def _report(loaded: Run, console: Console) -> None:
    if not loaded.predictions:
        raise typer.BadParameter(MISSING)
    print_finding(
        prediction_finding(loaded.predictions, loaded.choices, loaded.unpredicted), console
    )
    figures = figures_of(loaded)
    for goal, met in goals(figures).items():
        say(console, f"{goal}: {'met' if met else 'NOT MET'}")
    path = write("prediction", of_manifest(loaded.manifest) | {"figures": figures})
    say(console, f"written: {path}")


if __name__ == "__main__":
    typer.run(main)
