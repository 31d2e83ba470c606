"""Compare one budget of nodes over a batch with equal shares, on the embedded pair and on a real model.

    python -m treespec.experiments.research.studies.shared_budget [KEY=VALUE ...]

Runs the config `shared_budget` with the shared budget by calibrated probabilities too (fitted on what
follows in the same files), and on the real model `smollm2` on requests, drafted by its own first layers.
Every round of every method verifies 64 nodes, so the study compares tokens per step. Intervals are 95 %,
paired over batches.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from treespec.experiments.config.file import load_config
from treespec.experiments.config.schema import Config, TreeMethod
from treespec.experiments.measure.searched_run import brief_run
from treespec.experiments.measure.traces import trace
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Table, interval, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.experiments.run.prompts import following
from treespec.search import calibration_data, fit_calibration
from treespec.tree import Law

EQUAL, SHARED = "equal shares of 64", "shared 64"
CALIBRATED = f"{SHARED}, calibrated for"
FILES = 24
"""Texts that the calibration is fitted on, one of each file."""

REAL = (
    "models={target: smollm2, dtype: bfloat16}",
    "prompts={kind: chat, count: 96}",
    *(f"methods.{i}.draft={{source: early_exit, layers: 15}}" for i in (1, 2)),
    f"methods.1.name={EQUAL}",
    f"methods.2.name={SHARED}",
)
"""What makes the config one of the real model."""

Row = Mapping[str, Any]


def calibrated(config: Config, folder: Path) -> Config:
    """The config with a method more for each sampling setting, calibrated on what follows in its texts."""
    (shared,) = (
        m for m in config.methods if isinstance(m, TreeMethod) and m.shape.kind == "shared_budget"
    )
    following_texts = following(config.prompts, config.max_new_tokens)
    prompts = following_texts.model_copy(update={"excerpts": None, "count": FILES})
    tuning = config.model_copy(update={"prompts": prompts, "batch": 1})
    methods = list(config.methods)
    for i, setting in enumerate(config.samplings):
        recorded = trace(
            tuning, sampling=setting.name, law=str(Law.DETERMINISTIC), console=Console(stderr=True)
        )
        data, path = calibration_data(recorded), folder / f"calibration-{i}.json"
        path.write_text(fit_calibration(data.predicted, data.exact).to_json())
        shape = shared.shape.model_copy(update={"calibration": str(path)})
        name = f"{CALIBRATED} {setting.name}"
        methods.append(shared.model_copy(update={"shape": shape, "name": name}))
    return config.model_copy(update={"methods": tuple(methods)})


def rows_of(pair: str, data: Measurements) -> Iterator[Row]:
    """Tokens per step of each method, and over equal shares."""
    names = (EQUAL, SHARED, f"{CALIBRATED} {data.sampling}")
    for name in (name for name in names if name in {m.name for m in data.methods}):
        yield {
            "pair": pair,
            "sampling": data.sampling,
            "method": name,
            "tokens": data.totals.ratio([(name, "new_tokens")], [(name, "steps")]),
            "over_equal": speed_ratio(data.totals, name, EQUAL, "steps"),
        }


COLUMNS = (
    keyed("models", "pair", left=True),
    keyed("setting", "sampling", left=True),
    keyed("64 nodes of 8 texts", "method", left=True),
    Column[Row]("tokens/step", lambda row: interval(row["tokens"], 3)),
    Column[Row]("over equal\nshares", lambda row: interval(row["over_equal"], 3)),
)


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE")] = None,
) -> None:
    """Run the config on both pairs; print and save tokens per step."""
    given, rows = overrides or [], []
    with tempfile.TemporaryDirectory() as folder:
        configs = {
            "embedded": calibrated(load_config("shared_budget", given), Path(folder)),
            "smollm2": load_config("shared_budget", [*REAL, *given]),
        }
        for pair, config in configs.items():
            with brief_run(config, console=Console(stderr=True)) as loaded:
                for data in loaded.measurements.values():
                    rows += rows_of(pair, data)
    print_and_save(
        "shared_budget", {"rows": rows}, Table("one budget over a batch", COLUMNS, rows), width=120
    )


if __name__ == "__main__":
    typer.run(main)
