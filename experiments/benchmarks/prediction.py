"""Predicted against measured: tokens per step, tokens per second, and the tree that is ranked first.

    python -m experiments.benchmarks.prediction [RUN] [KEY=VALUE ...]

Runs `experiments/configs/search_then_run.yaml` (about ten minutes; half an hour where half precision is
slow), or reads a finished run of it. Medians are of absolute relative errors over all trees and settings.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.benchmarks.results_file import path_of
from experiments.config_file import load_config
from experiments.loading import Run, load_run
from experiments.prediction import chosen, first_ranked, median_errors, predictions
from experiments.prediction_text import print_predictions
from experiments.runner import run

GOAL_TOKENS, GOAL_SPEED, GOAL_FIRST = 0.05, 0.10, 0.95


def figures_of(loaded: Run) -> dict[str, Any]:
    """Everything that is printed, as data."""
    rows = predictions(loaded)
    tokens, speed = median_errors(rows)
    found: dict[str, Any] = {"trees": len(rows), "tokens_error": tokens, "speed_error": speed}
    for sampling in dict.fromkeys(row.sampling for row in rows):
        own = [row for row in rows if row.sampling == sampling]
        tokens, speed = median_errors(own)
        first, best = first_ranked(own)
        choice = chosen(loaded, sampling)
        found[sampling] = {
            "tokens_error": tokens,
            "speed_error": speed,
            "first_ranked": first.method,
            "fastest": best.method,
            "first_over_fastest": first.speed_measured / best.speed_measured,
            "chosen": choice and choice[0],
            "chosen_over_fastest": choice and [choice[2].estimate, choice[2].low, choice[2].high],
            "rows": [
                {
                    "tree": row.method,
                    "tokens": row.tokens.estimate,
                    "tokens_measured": row.tokens_measured.estimate,
                    "step_ms": 1e3 * row.step_s,
                    "step_measured_ms": 1e3 * row.step_measured_s,
                }
                for row in own
            ],
        }
    return found


def main() -> None:
    """Run or read, print, save."""
    console = Console(width=140)
    words = sys.argv[1:]
    if words and Path(words[0]).is_dir():
        _report(load_run(Path(words[0])), console)
        return
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("search_then_run", words)
        result = run(config, folder=Path(folder) / "run", console=Console(stderr=True))
        _report(load_run(result.folder), console)


def _report(loaded: Run, console: Console) -> None:
    print_predictions(loaded, console)
    figures = figures_of(loaded)
    settings = [value for value in figures.values() if isinstance(value, dict)]
    met = (
        figures["tokens_error"] <= GOAL_TOKENS
        and figures["speed_error"] <= GOAL_SPEED
        and all((s["chosen_over_fastest"] or [0])[0] >= GOAL_FIRST for s in settings)
    )
    console.print("all goals are met" if met else "A GOAL IS NOT MET")
    keys = ("treespec_version", "git_hash", "versions", "hardware", "config", "models")
    data = {"benchmark": "prediction", "measured": loaded.manifest["created"]}
    data |= {key: loaded.manifest[key] for key in keys} | {"figures": figures}
    path = path_of("prediction")
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    console.print(f"written: {path}")


if __name__ == "__main__":
    main()
