"""Speedups and tokens per step by prompt category (as in Spec-Bench)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.search.intervals import Interval

NOTE = (
    "Tokens per second over those of the faster plain baseline on the same prompts, and kept tokens per "
    "pass of the target, with 95 % intervals, paired over the prompts of the category. A category with one "
    "prompt has no interval."
)


@dataclass(frozen=True)
class Category:
    """One category of prompts under one sampling setting.

    Speedups are over plain decoding; tokens are kept tokens per step; both by name of the method.
    """

    sampling: str
    name: str
    prompts: int
    speedups: dict[str, Interval]
    tokens: dict[str, Interval]


def by_category(run: RunRecords, data: Measurements) -> dict[str, Measurements]:
    """The measurements restricted to the prompts of each category; prompts without one are left out."""
    names = dict(run.prompts.select("prompt", "category").unique().iter_rows())
    groups = sorted({names[prompt] for prompt in data.prompts} - {None})
    return {
        group: _only(data, np.array([names[prompt] == group for prompt in data.prompts]))
        for group in groups
    }


def categories(run: RunRecords, data: Measurements) -> list[Category]:
    groups = by_category(run, data)
    if data.baseline is None or len(groups) < 2:
        return []
    drafting = [m.name for m in data.methods if m.group != "plain"]
    return [
        Category(
            data.sampling,
            group,
            len(subset.prompts),
            {n: speed_ratio(subset.totals, n, data.baseline) for n in drafting},
            {n: subset.totals.ratio([(n, "new_tokens")], [(n, "steps")]) for n in drafting},
        )
        for group, subset in groups.items()
    ]


def category_finding(rows: Sequence[Category]) -> Finding | None:
    tables = [
        table
        for sampling in dict.fromkeys(row.sampling for row in rows)
        for table in _tables(sampling, [row for row in rows if row.sampling == sampling])
    ]
    return Finding("By category of prompt", tables, (NOTE,)) if tables else None


def _tables(sampling: str, rows: Sequence[Category]) -> list[Table]:
    def table(quantity: str, values: Callable[[Category], dict[str, Interval]]) -> Table:
        def column(row: Category) -> Column[str]:
            return Column(f"{row.name} ({row.prompts})", lambda name: interval(values(row)[name]))

        method = Column[str]("method", lambda name: name, left=True)
        return Table(f"{sampling}, {quantity}", [method, *map(column, rows)], list(values(rows[0])))

    return [
        table("speedup over plain decoding", lambda row: row.speedups),
        table("tokens per step", lambda row: row.tokens),
    ]


def _only(data: Measurements, mask: np.ndarray) -> Measurements:
    return replace(
        data,
        prompts=tuple(p for p, selected in zip(data.prompts, mask, strict=True) if selected),
        files=None if data.files is None else tuple(np.array(data.files)[mask].tolist()),
        values={column: values[mask] for column, values in data.values.items()},
    )
