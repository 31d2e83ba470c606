"""The results of each method under each sampling setting: the rows of the table and the report."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.report.equality import Equality, equality
from treespec.experiments.report.joint import joint
from treespec.experiments.report.measurements import METRIC, ROWS, Measurements
from treespec.experiments.report.statistics import FEWEST_FOR_WINNER, Totals
from treespec.search.intervals import Interval


@dataclass(frozen=True)
class MethodSummary:
    """One row of the table. Means and ratios are computed from totals over the compared prompts.

    Only kept tokens count: tokens that the last step emits past the budget count for no method, because
    the baselines do not record them.

    Args:
        tokens_per_step: kept tokens per pass of the target.
        accepted_per_step: `tokens_per_step` minus 1, the token that a pass yields without a draft.
        tokens_per_second: kept tokens per second, prefill excluded.
        speedup: tokens per second over those of the faster plain baseline; None without a baseline.
        speedups: tokens per second over those of each plain baseline, by name.
        speedup_with_prefill: `speedup` with prefill included on both sides.
        step_ms, step_time: milliseconds of decoding per step, and with the interval.
        stage_ms: `step_ms` by stage, with the rest of the loop as `other`; None if stages were not
            recorded.
        wasted: share of verified draft tokens that were not kept; None if nothing was drafted or the
            number is unknown.
        errors: number of prompts on which the method failed; they enter no other number.
        among_fastest: whether no lossless method is shown to be faster, by joint intervals over all pairs
            (`report.joint`); False for all methods if there are too few samples for a winner.
        metrics: means of plug-in metrics over the compared prompts, by name; only those that the method
            has values for.
    """

    method: Method
    tokens_per_step: Interval
    accepted_per_step: float
    tokens_per_second: Interval
    speedup: Interval | None
    speedups: dict[str, Interval]
    speedup_with_prefill: Interval | None
    step_ms: float
    step_time: Interval
    stage_ms: dict[str, float] | None
    wasted: float | None
    equality: Equality
    errors: int
    among_fastest: bool
    metrics: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplingSummary:
    sampling: str
    rows: tuple[MethodSummary, ...]
    baseline: str | None
    prompts: int
    attempted: int
    failed: dict[str, str]

    def row(self, method: str) -> MethodSummary:
        return next(row for row in self.rows if row.method.name == method)


def summarise(run: RunRecords, data: Measurements) -> SamplingSummary:
    totals = data.totals if data.prompts else None
    fastest = among_fastest(data)
    rows = tuple(_row(run, data, totals, m, fastest) for m in data.methods if totals is not None)
    failed = {
        m.name: next(iter(_error_messages(run, data.sampling, m.name)), "not run yet")
        for m in data.failed
    }
    return SamplingSummary(
        data.sampling, rows, data.baseline, len(data.prompts), data.attempted, failed
    )


def among_fastest(data: Measurements) -> set[str]:
    """Names of the lossless methods that no lossless method is shown to be faster than."""
    names = [m.name for m in data.methods if m.lossless]
    if data.samples < FEWEST_FOR_WINNER or len(names) < 2:
        return set()
    pairs = [(a, b) for a in names for b in names if a != b]
    found = joint({name: data.samples_of(name) for name in names}, pairs, data.boundary)
    return set(names) - {slower for (_, slower), ratio in found.items() if ratio.low > 1}


def accepted_shares(run: RunRecords, data: Measurements) -> dict[str, NDArray[np.float64]]:
    """Share of steps that kept 0, 1, 2, ... tokens beyond the first, for every method that drafts a tree.

    As in the table, tokens past the budget do not count, so the mean is `accepted_per_step`.
    """
    steps = run.steps.filter(
        pl.col("sampling") == data.sampling, pl.col("prompt").is_in(list(data.prompts))
    )
    kept = {
        m.name: steps.filter(method=m.name)["kept"].to_numpy()
        for m in run.methods
        if m.kind == "tree"
    }
    return {name: np.bincount(k - 1) / len(k) for name, k in kept.items() if len(k)}


def _row(
    run: RunRecords,
    data: Measurements,
    totals: Totals,
    m: Method,
    fastest: Collection[str],
) -> MethodSummary:
    baseline, steps = data.baseline, data.total(m.name, "steps") or 0.0
    seconds = data.total(m.name, "decode_s") or 0.0
    accepted = (data.total(m.name, "new_tokens") or 0.0) - steps
    drafted = data.total(m.name, "drafted")
    return MethodSummary(
        method=m,
        tokens_per_step=totals.ratio([(m.name, "new_tokens")], [(m.name, "steps")]),
        accepted_per_step=accepted / steps,
        tokens_per_second=totals.ratio([(m.name, "new_tokens")], [(m.name, "decode_s")]),
        speedup=None if baseline is None else speed_ratio(totals, m.name, baseline),
        speedups={b: speed_ratio(totals, m.name, b) for b in data.named("plain")},
        speedup_with_prefill=(
            None if baseline is None else speed_ratio(totals, m.name, baseline, "total_s")
        ),
        step_ms=1e3 * seconds / steps,
        step_time=totals.ratio([(m.name, "decode_s")], [(m.name, "steps")]).scaled(1e3),
        stage_ms=_stages(data, m.name, steps, seconds),
        wasted=(drafted - accepted) / drafted if drafted else None,
        equality=equality(run, data.sampling, m.name),
        errors=len(_error_messages(run, data.sampling, m.name)),
        among_fastest=m.name in fastest,
        metrics={
            column.removeprefix(METRIC): totals.ratio([(m.name, column)], [(m.name, ROWS)])
            for name, column in data.values
            if name == m.name and column.startswith(METRIC)
        },
    )


def speed_ratio(totals: Totals, method: str, baseline: str, time: str = "decode_s") -> Interval:
    """Tokens per second of `method` over those of `baseline`, on the same prompts.

    With another column than a time, such as `steps`, tokens per unit of that column.
    """
    if method == baseline:
        return Interval(1.0, 1.0, 1.0)
    return totals.ratio(
        [(method, "new_tokens"), (baseline, time)], [(method, time), (baseline, "new_tokens")]
    )


def _stages(
    data: Measurements, method: str, steps: float, seconds: float
) -> dict[str, float] | None:
    totals = {stage: data.total(method, f"{stage}_s") for stage in STAGES}
    known = {stage: 1e3 * total / steps for stage, total in totals.items() if total is not None}
    if len(known) < len(STAGES):
        return None
    return {**known, "other": max(0.0, 1e3 * seconds / steps - sum(known.values()))}


def _error_messages(run: RunRecords, sampling: str, method: str) -> Sequence[str]:
    rows = run.prompts.filter(pl.col("sampling") == sampling, pl.col("method") == method)
    return rows["error"].drop_nulls().to_list()
