"""Speedups by category of prompt (Spec-Bench and the like), as data and as a section of the report."""

from dataclasses import dataclass, replace
from html import escape

import numpy as np

from treespec.experiments.report.html import interval_html, section, table
from treespec.experiments.report.measurements import Measurements, measure, samplings_of
from treespec.experiments.report.run import Run
from treespec.experiments.report.statistics import Interval
from treespec.experiments.report.summary import speed_ratio

__all__ = ["Category", "categories", "category_section"]

NOTE = (
    "Tokens per second over those of the faster plain baseline on the same prompts; 95 % intervals, paired "
    "over the prompts of the category. A category of one prompt has no interval."
)


@dataclass(frozen=True)
class Category:
    """One category under one sampling setting.

    Args:
        sampling: name of the setting.
        name: of the category.
        prompts: compared in it.
        speedups: over plain decoding, by method.
    """

    sampling: str
    name: str
    prompts: int
    speedups: dict[str, Interval]


def categories(run: Run) -> list[Category]:
    """Every category of a run with at least two; none without a plain baseline."""
    found = []
    for sampling in samplings_of(run):
        data = measure(run, sampling)
        baseline = data.fastest(data.named("plain")) if data.prompts else None
        names = dict(run.prompts.select("prompt", "category").unique().iter_rows())
        groups = sorted({names[prompt] for prompt in data.prompts} - {None})
        if baseline is None or len(groups) < 2:
            continue
        for group in groups:
            own = _only(data, np.array([names[prompt] == group for prompt in data.prompts]))
            totals = own.bootstrap()
            speedups = {
                m.name: speed_ratio(totals, m.name, baseline)
                for m in own.methods
                if m.group != "plain"
            }
            found.append(Category(sampling, group, len(own.prompts), speedups))
    return found


def category_section(run: Run) -> str:
    """A table for each sampling setting, a column for each category; empty with fewer than two."""
    rows, parts = categories(run), []
    for sampling in dict.fromkeys(row.sampling for row in rows):
        own = [row for row in rows if row.sampling == sampling]
        heads = ["method", *(f"{row.name} ({row.prompts})" for row in own)]
        cells = [
            [escape(name), *(interval_html(row.speedups[name]) for row in own)]
            for name in own[0].speedups
        ]
        parts.append(table(heads, cells, sampling))
    note = f'<p class="muted">{escape(NOTE)}</p>'
    return section("By category of prompt", "".join(parts) + note) if parts else ""


def _only(data: Measurements, mask: np.ndarray) -> Measurements:
    return replace(
        data,
        prompts=tuple(p for p, kept in zip(data.prompts, mask, strict=True) if kept),
        values={column: values[mask] for column, values in data.values.items()},
    )
