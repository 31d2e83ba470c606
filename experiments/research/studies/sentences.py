"""Compute the verdicts of the committed records anew, by one halving of the prompts and by all of them.

    python -m treespec.experiments.research.studies.sentences

For every `results/records-*.parquet` and sampling setting: trees against chains and speculation against
plain decoding, as said by a single halving in the order of the prompts (before commit f43fa50) and now.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
import typer
from numpy.typing import NDArray
from rich.console import Console

from treespec.experiments.report.halvings import fit
from treespec.experiments.report.joint import over_all
from treespec.experiments.report.statistics import (
    FEWEST_FOR_INTERVAL,
    FEWEST_FOR_WINNER,
    LogRatio,
    by_file,
)
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.report.terminal import print_table
from treespec.experiments.research.benchmarks.results_file import RESULTS
from treespec.experiments.research.studies.coverage import one_halving

SIDES = {
    "trees and chains": (("tree",), ("chain", "assisted")),
    "speculation and plain": (("tree", "chain", "assisted"), ("plain",)),
}


def verdicts() -> Iterator[dict[str, Any]]:
    """One row per study, sampling setting and question."""
    for path in sorted(RESULTS.glob("records-*.parquet")):
        for (sampling,), rows in pl.read_parquet(path).group_by("sampling", maintain_order=True):
            for question, groups in SIDES.items():
                sides = [_tables(rows, group) for group in groups]
                if all(sides):
                    yield {
                        "study": path.stem.removeprefix("records-"),
                        "sampling": sampling,
                        "question": question,
                        **_said(*sides),
                    }


def _tables(rows: pl.DataFrame, groups: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Tokens and seconds of every lossless method of these groups, by independent sample."""
    found = {}
    for (name,), of in rows.filter("lossless", pl.col("group").is_in(groups)).group_by("method"):
        of = of.sort("prompt")
        columns = of.select("tokens", "seconds").to_numpy().T
        found[str(name)] = (
            columns if of["file"].null_count() else by_file(columns, of["file"].to_numpy())
        )
    return found


def _said(
    left: Mapping[str, NDArray[np.float64]], right: Mapping[str, NDArray[np.float64]]
) -> dict[str, Any]:
    tables = [np.stack(list(side.values())) for side in (left, right)]
    before, now = one_halving(tables[0], tables[1]), fit(*tables).ratio
    joint = over_all({**left, **right}, list(left), list(right))
    words = _outcome(before, FEWEST_FOR_INTERVAL), _outcome(now, FEWEST_FOR_WINNER)
    return {
        "samples": now.samples,
        "one halving": before.interval().text(),
        "before": words[0],
        "all halvings": now.interval().text(),
        "now": words[1],
        "over all": next((one.method for one in joint if one), "–"),
        "changes": "changes" if words[0] != words[1] else "",
    }


def _outcome(ratio: LogRatio, fewest: int) -> str:
    interval = ratio.interval()
    if ratio.samples < fewest:
        return "too few"
    if interval.contains(1.0):
        return "not decided"
    return "faster" if interval.estimate > 1 else "slower"


COLUMNS = tuple(
    keyed(head, head, left=True)
    for head in (
        *("study", "sampling", "question", "samples", "one halving", "before", "all halvings"),
        *("now", "over all", "changes"),
    )
)


def main() -> None:
    """Print the sentences of all studies with records."""
    print_table(Table("the verdicts of the records", COLUMNS, list(verdicts())), Console(width=170))


if __name__ == "__main__":
    typer.run(main)
