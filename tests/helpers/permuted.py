"""Report runs with their prompts, methods and ids in another order: not a bit may change.

PYTHONPATH=tests/helpers python -m permuted runs/tree_vs_chain ... [--times 200]
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer

from treespec.experiments.report.run import Run, load_run
from treespec.experiments.report.tables import report_tables


def permuted(run: Run, rng: np.random.Generator) -> Run:
    """The same records with other numbers of prompts, other ids, and methods in another order."""
    numbers = sorted(set(run.all_prompts["prompt"]))
    other = dict(zip(numbers, rng.permutation(numbers).tolist(), strict=True))

    def moved(rows: pl.DataFrame) -> pl.DataFrame:
        rows = rows.with_columns(pl.col("prompt").replace_strict(other))
        return rows[rng.permutation(len(rows))]

    prompts = moved(run.all_prompts)
    if run.files is None:  # the ids of excerpts name their files
        ids = sorted(set(prompts["prompt_id"]))
        swapped = dict(zip(ids, rng.permutation(ids).tolist(), strict=True))
        prompts = prompts.with_columns(pl.col("prompt_id").replace_strict(swapped))
    manifest = dict(run.manifest)
    methods, config = manifest["methods"], dict(manifest["config"])
    manifest["methods"] = [methods[i] for i in rng.permutation(len(methods))]
    config["methods"] = [config["methods"][i] for i in rng.permutation(len(config["methods"]))]
    return replace(
        run,
        manifest=manifest | {"config": config},
        all_prompts=prompts,
        all_steps=moved(run.all_steps),
    )


def told(run: Run) -> dict[str, Any]:
    """Everything that a report says in words and tables, whatever the order of its rows."""
    tables = {
        name: sorted(repr((str(cell), cell.value)) for row in table.rows for cell in row)
        for name, table in report_tables(run).items()
        if not name.startswith(("equality", "errors"))  # these list prompts by their ids
    }
    duels = {
        sampling: sorted(
            (d.left.label, d.right.label, repr(d.ratio), repr((d.left_over_all, d.right_over_all)))
            for d in found
        )
        for sampling, found in run.comparisons.items()
    }
    return {"verdicts": run.verdicts, "ratios": duels, **tables}


def differences(run: Run, times: int, seed: int = 0) -> Iterator[str]:
    """What an order changes, by name."""
    before = told(run)
    for number in range(times):
        after = told(permuted(run, np.random.default_rng([seed, number])))
        yield from (name for name in before if repr(before[name]) != repr(after[name]))


def main(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")], times: int = 200
) -> None:
    """Count what other orders change."""
    for folder in runs:
        found = list(differences(load_run(folder), times))
        print(
            f"{folder}: {times} orders, {len(found)} differences {sorted(set(found))}", flush=True
        )


if __name__ == "__main__":
    typer.run(main)
