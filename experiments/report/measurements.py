"""The prompts that may be compared under one sampling setting, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.report.statistics import Bootstrap, bootstrap

__all__ = ["COUNTS", "ENERGIES", "METRIC", "ROWS", "TIMES", "Measurements", "measure"]

COUNTS = ("new_tokens", "steps", "drafted")
TIMES = ("decode_s", "total_s", "draft_s", "verify_s", "accept_s", "commit_s")
ENERGIES = ("cpu_energy_j", "cpu_energy_net_j", "gpu_energy_j", "gpu_energy_net_j")

METRIC = "metric "
"""Before the name of a plug-in's metric, as a column."""

ROWS = "rows"
"""Column of how many rows a prompt has: its repeats."""

Column = tuple[str, str]
"""A method's name and a column's name."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """What was measured under one sampling setting, on the prompts that every method finished.

    Several rows of the same prompt and method (repeats) are added up: the prompt stays the unit, since its
    repeats are no new sample of prompts.

    Args:
        sampling: name of the setting.
        methods: those that finished at least one prompt.
        prompts: indices of the compared prompts.
        attempted: prompts that any method was tried on.
        values: by (method, column), one value per compared prompt. A column that does not exist for a
            method (stage times of a baseline) is left out.
        failed: methods that finished no prompt at all.
    """

    sampling: str
    methods: tuple[Method, ...]
    prompts: tuple[int, ...]
    attempted: int
    values: dict[Column, NDArray[np.float64]]
    failed: tuple[Method, ...]

    def total(self, method: str, column: str) -> float | None:
        """Sum over the compared prompts; None if the method has no such column."""
        values = self.values.get((method, column))
        return None if values is None else float(values.sum())

    def rate(self, method: str, time: str = "decode_s") -> float:
        """Tokens per second, totals over the compared prompts."""
        return float(self.values[method, "new_tokens"].sum() / self.values[method, time].sum())

    def fastest(self, names: Sequence[str]) -> str | None:
        """The one of `names` with most tokens per second; None if there are none."""
        return max(names, key=self.rate, default=None)

    def named(self, *groups: str, lossless: bool = True) -> list[str]:
        """Names of the methods of these groups; lossy ones are left out unless asked for."""
        kept = [m for m in self.methods if m.group in groups and (m.lossless or not lossless)]
        return [m.name for m in kept]

    @cached_property
    def baseline(self) -> str | None:
        """The faster plain baseline; None without one, or without a prompt."""
        return self.fastest(self.named("plain")) if self.prompts else None

    @cached_property
    def totals(self) -> Bootstrap:
        """All columns, resampled together over the prompts; there must be one."""
        return bootstrap(self.values)


def measure(run: RunRecords, sampling: str) -> Measurements:
    """Collect the comparable prompts of one sampling setting.

    A method that finished nothing is set aside (`failed`) instead of emptying the comparison; then a
    prompt counts if all other methods finished it.
    """
    rows = run.prompts.filter(pl.col("sampling") == sampling)
    rows, metrics = _with_metrics(rows)
    columns = (*COUNTS, *TIMES, *ENERGIES, *metrics)
    sums = (
        rows.group_by("method", "prompt")
        .agg(
            pl.col("error").is_null().all().alias("finished"),
            pl.len().cast(pl.Float64).alias(ROWS),
            # a sum over nulls would be 0: a column counts only where all its values stand
            *(
                pl.when(pl.col(c).cast(pl.Float64).is_null().any()).then(None).otherwise(
                    pl.col(c).cast(pl.Float64).sum()
                ).alias(c)
                for c in columns
            ),
        )
        .filter("finished")
        .sort("prompt")
    )  # fmt: skip
    by_method = {m.name: sums.filter(pl.col("method") == m.name) for m in run.methods}
    working = tuple(m for m in run.methods if len(by_method[m.name]))
    common = set.intersection(
        *(set(by_method[m.name]["prompt"]) for m in working), set(rows["prompt"])
    )
    values: dict[Column, NDArray[np.float64]] = {}
    for m in working:
        shared = by_method[m.name].filter(pl.col("prompt").is_in(sorted(common)))
        for column in (*columns, *([ROWS] if metrics else [])):
            if shared[column].null_count() == 0:
                values[m.name, column] = shared[column].to_numpy()
    return Measurements(
        sampling=sampling,
        methods=working,
        prompts=tuple(sorted(common)),
        attempted=rows["prompt"].n_unique(),
        values=values,
        failed=tuple(m for m in run.methods if m not in working),
    )


def _with_metrics(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The rows with a column for each metric of a plug-in, null where a row has none, and their names."""
    names = rows["metrics"].explode().struct.field("name").drop_nulls().unique(maintain_order=True)
    for name in names:
        value = (
            pl.col("metrics")
            .list.eval(pl.element().filter(pl.element().struct.field("name") == name))
            .list.first()
            .struct.field("value")
        )
        rows = rows.with_columns(value.alias(METRIC + name))
    return rows, [METRIC + name for name in names]
