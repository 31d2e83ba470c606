"""Intervals that figures show and the table does not print: of times, and of steps that brought nothing."""

from dataclasses import dataclass

import numpy as np

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import Interval, bootstrap

__all__ = ["StepIntervals", "step_intervals"]


@dataclass(frozen=True)
class StepIntervals:
    """Of one method under one sampling setting, with 95 % intervals over the compared prompts.

    Args:
        step_ms: milliseconds of a step.
        verify_ms: milliseconds of the target's pass; None where stages are not recorded.
        nothing: share of the steps that brought one token only; None where steps are not recorded.
    """

    step_ms: Interval
    verify_ms: Interval | None
    nothing: Interval | None


def step_intervals(run: RunRecords, data: Measurements) -> dict[str, StepIntervals]:
    """The intervals of every method that finished a prompt, under one sampling setting."""
    import polars as pl

    if not data.prompts:
        return {}
    order = {prompt: place for place, prompt in enumerate(data.prompts)}
    idle = {method.name: np.zeros(len(order)) for method in data.methods}
    rows = run.steps.filter(pl.col("sampling") == data.sampling, pl.col("kept") == 1)
    for method, prompt, count in rows.group_by("method", "prompt").len().iter_rows():
        if method in idle and prompt in order:
            idle[method][order[prompt]] = count
    totals = bootstrap(data.values | {(name, "idle"): values for name, values in idle.items()})
    recorded = set(run.steps["method"].unique())

    def ratio(method: str, column: str, scale: float) -> Interval | None:
        if (method, column) not in totals.observed:
            return None
        each = totals.ratio([(method, column)], [(method, "steps")])
        return Interval(scale * each.estimate, scale * each.low, scale * each.high)

    return {
        method.name: StepIntervals(
            ratio(method.name, "decode_s", 1e3) or Interval(np.nan, np.nan, np.nan),
            ratio(method.name, "verify_s", 1e3),
            ratio(method.name, "idle", 1.0) if method.name in recorded else None,
        )
        for method in data.methods
    }
