"""`treespec estimate`: acceptance rates with intervals, from a trace or from the steps of a run."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from experiments.errors import ConfigError
from experiments.run_records import counts_from_run
from experiments.trace_commands import read_shapes
from search import AcceptanceEstimate, SmallSample, Trace, estimate_acceptance
from search.counts import Records

__all__ = ["estimate", "estimate_table"]


def estimate(
    source: Path,
    *,
    method: str | None = None,
    sampling: str | None = None,
    tree: str | None = None,
    **options: Any,
) -> AcceptanceEstimate:
    """The estimate of a trace's or a run's steps, its warnings kept in it.

    Args:
        source: a trace (`.npz`), or the folder of a run.
        method: of a run: the tree method whose steps count.
        sampling: of a run: under this setting.
        tree: what the rates are for, as `experiments.trace_commands.read_shapes` reads it: one tree.
        options: see `search.estimate_acceptance`.

    Raises:
        ConfigError, RunFolderError, InvalidTrace, InvalidLimit: naming the option or the file.
    """
    shapes = list(read_shapes(tree).values()) if tree else [None]
    if len(shapes) > 1:
        raise ConfigError(f"--for {tree}: name one tree")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", SmallSample
        )  # they are in the estimate, and printed from there
        return estimate_acceptance(_read(source, method, sampling), tree=shapes[0], **options)


def estimate_table(found: AcceptanceEstimate) -> Table:
    """Rates with intervals and counts: a row for each child, or for each level and child."""
    table = Table(
        "depth", "child", "rate", f"{found.level:.0%} interval", "accepted", "of", box=None
    )
    for column in table.columns:
        column.justify = "right"
    rates, low, high, hits, trials = (
        np.atleast_2d(part)
        for part in (found.rates, found.low, found.high, found.hits, found.trials)
    )
    for depth, row in enumerate(rates):
        for rank, rate in enumerate(row):
            cell = depth, rank
            level = "all" if found.by == "rank" else str(depth + 1)
            bounds = f"{low[cell]:.3f}-{high[cell]:.3f}"
            table.add_row(
                level, str(rank + 1), f"{rate:.3f}", bounds, str(hits[cell]), str(trials[cell])
            )
    choices = [found.source, f"{found.interval} intervals"]
    choices += ["isotonic over ranks"] if found.monotone else []
    choices += (
        [f"levels drawn to their mean by {found.shrinkage:g} counts"] if found.shrinkage else []
    )
    table.title = f"law {found.law}, rule {found.rule}; {', '.join(choices)}"
    return table


def _read(source: Path, method: str | None, sampling: str | None) -> Trace | Records:
    if source.is_dir():
        if method is None or sampling is None:
            raise ConfigError(
                f"{source} is a folder: name a tree and a setting of the run with --method and --sampling"
            )
        return counts_from_run(source, method, sampling)
    if method is not None or sampling is not None:
        raise ConfigError(
            "--method and --sampling choose among the steps of a run: leave them out for a trace"
        )
    return Trace.load(source)
