"""Step times, adjusted or as measured, in turns or alone, and the smallest difference a run can resolve.

A second copy of the plain baseline, its twin, runs in every unit with the same coins and thus does the same
work. Any difference between the two comes from the machine, and the interval of their ratio bounds the
smallest difference between two methods that the run can resolve. Runs without a twin state the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.report.measurements import CLOCK, ROUNDS, Measurements
from treespec.experiments.report.statistics import Totals
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.search.intervals import Interval

NOTE = (
    "Methods took turns step by step. Step: step time without the slowdowns of the machine, which are "
    "estimated from steps of other methods close in time. By totals: total time over number of steps, as "
    "measured. Alone: time of the first prompts, which each method also decoded alone, over their time in "
    "turns."
)


@dataclass(frozen=True)
class Times:
    method: Method
    step_ms: Interval
    total_ms: Interval
    alone: Interval | None


def resolution(data: Measurements) -> Interval | None:
    if data.twin is None or not data.prompts:
        return None
    twin, method = data.twin
    return data.totals.ratio([(method, "decode_s")], [(twin, "decode_s")])


def resolution_sentence(data: Measurements) -> str | None:
    """The smallest difference that the run resolves, or why it is unknown; None if no turns were taken."""
    if data.no_twin is not None:
        return f"{data.no_twin}: how small a difference this run could tell apart is not known."
    ratio = resolution(data)
    if ratio is None or data.twin is None or not ratio.bounded:
        return None
    least = 100 * max(ratio.high - 1, 1 - ratio.low)
    chance = (
        ""
        if ratio.contains(1.0)
        else " (it excludes 1, as one such interval in twenty does by chance)"
    )
    return (
        f"This run could tell apart {least:.1f} %: two identical copies of {data.twin[1]}, in turns with "
        f"the others, differed by a factor of {ratio.estimate:.3f}, 95 % interval "
        f"{ratio.bounds(3, between=' to ')}{chance}."
    )


def noise_caution(data: Measurements, differences: Mapping[str, Interval]) -> str | None:
    """A sentence if a difference is no larger than that of identical methods may be; None otherwise."""
    ratio = resolution(data)
    if ratio is None or not ratio.bounded:
        return None
    most = max(ratio.high, 1 / ratio.low)
    doubtful = [
        sides
        for sides, found_ratio in differences.items()
        if max(found_ratio.estimate, 1 / found_ratio.estimate) <= most
    ]
    if not doubtful:
        return None
    return (
        f"Caution: {', and '.join(doubtful)} differ by no more than two identical methods may have "
        "differed here: repeat the run on a quieter machine before you rely on it."
    )


def times(run: RunRecords, data: Measurements) -> list[Times]:
    if not data.prompts:
        return []
    totals, rows = data.totals, run.prompts.filter(pl.col("sampling") == data.sampling)
    alone = rows.filter(pl.col("alone_s").is_not_null(), pl.col("prompt").is_in(list(data.prompts)))

    def step_ms(name: str, column: str) -> Interval:
        return totals.ratio([(name, column)], [(name, ROUNDS)]).scaled(1e3)

    def alone_over_turns(name: str) -> Interval | None:
        prompts = alone.filter(pl.col("method") == name)
        if not len(prompts):
            return None
        columns = {c: np.asarray(prompts[c], dtype=float) for c in ("alone_s", "decode_s")}
        files = run.files_of(prompts["prompt"])
        return Totals.of(columns, files=files).ratio(["alone_s"], ["decode_s"])

    return [
        Times(m, step_ms(m.name, "decode_s"), step_ms(m.name, CLOCK), alone_over_turns(m.name))
        for m in data.methods
    ]


COLUMNS = (
    Column[Times]("method", lambda row: row.method.name, left=True),
    Column[Times]("step, ms", lambda row: interval(row.step_ms)),
    Column[Times]("by totals, ms", lambda row: interval(row.total_ms)),
    Column[Times]("alone / in turns", lambda row: interval(row.alone)),
)


def times_finding(run: RunRecords, measurements: Mapping[str, Measurements]) -> Finding | None:
    if not any(data.in_turns for data in measurements.values()):
        return None
    tables = [
        Table(sampling, COLUMNS, rows, colour=lambda row: row.method.group)
        for sampling, data in measurements.items()
        if (rows := times(run, data))
    ]
    remarks = [
        f"{sampling}: {line}"
        for sampling, data in measurements.items()
        for line in (resolution_sentence(data), data.totals_because, data.remark)
        if line is not None
    ]
    return Finding("Times of a step", tables, (NOTE,), remarks) if tables else None
