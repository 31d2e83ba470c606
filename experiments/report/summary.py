"""The result table: a row for each method under a sampling setting, its values and its columns."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from treespec.experiments.errors import ConfigError
from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.report.equality import Equality, equality
from treespec.experiments.report.measurements import METRIC, ROUNDS, ROWS, Measurements
from treespec.experiments.report.statistics import FEWEST_FOR_WINNER, Totals
from treespec.experiments.report.table import NONE, Cell, Column, Finding, Table, interval
from treespec.search.intervals import Interval

PREFILL_NOTE = (
    "With the prefill included, generate pays for one more pass of the target than it would outside this "
    "comparison: here the prefill of every method covers all prompt tokens but the last, and the first "
    "token comes from a pass of its own."
)


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
        step_ms, step_time: milliseconds of decoding per step, in a batch per round, and with the interval.
        batch: what the passes of a batch hold; without one, those of a text.
        stage_ms: `step_ms` by stage, with the rest of the loop as `other`; None if stages were not
            recorded.
        wasted: share of verified draft tokens that were not kept; None if nothing was drafted or the
            number is unknown.
        off_target: of a lossy rule, the share of emitted tokens that must differ from what the target would
            have chosen (`treespec.verify.Rule.off_target`); None for lossless rules, or if not recorded.
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
    batch: "BatchSummary"
    stage_ms: dict[str, float] | None
    wasted: float | None
    off_target: Interval | None
    equality: Equality
    errors: int
    among_fastest: bool
    metrics: dict[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchSummary:
    """What the passes of a batch hold, and what one of its readers sees.

    Args:
        text_tokens_per_second: kept tokens of a text per second of the rounds that it took part in; None
            if not recorded. Those of the whole batch are `MethodSummary.tokens_per_second`.
        texts: texts of a round, on average: texts that have ended leave their batch.
        nodes: nodes that a pass of the target verifies, on average.
        wasted: those among them that are neither a root nor kept.
    """

    text_tokens_per_second: Interval | None
    texts: float
    nodes: float
    wasted: float


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
    return set(names) - {slower for (_, slower), ratio in data.pairs.items() if ratio.low > 1}


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
    drafted, rounds = data.total(m.name, "drafted"), data.total(m.name, ROUNDS) or 0.0
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
        step_ms=1e3 * seconds / rounds,
        step_time=totals.ratio([(m.name, "decode_s")], [(m.name, ROUNDS)]).scaled(1e3),
        batch=_batch(data, totals, m.name),
        stage_ms=_stages(data, m.name, rounds, seconds),
        wasted=(drafted - accepted) / drafted if drafted else None,
        off_target=_off_target(data, totals, m.name),
        equality=equality(run, data.sampling, m.name),
        errors=len(_error_messages(run, data.sampling, m.name)),
        among_fastest=m.name in fastest,
        metrics={
            column.removeprefix(METRIC): totals.ratio([(m.name, column)], [(m.name, ROWS)])
            for name, column in data.values
            if name == m.name and column.startswith(METRIC)
        },
    )


def _batch(data: Measurements, totals: Totals, method: str) -> BatchSummary:
    rounds, steps = (data.total(method, column) or 0.0 for column in (ROUNDS, "steps"))
    drafted, tokens = (data.total(method, column) or 0.0 for column in ("drafted", "new_tokens"))
    speed = None
    if (method, "rounds_s") in data.values:
        speed = totals.ratio([(method, "new_tokens")], [(method, "rounds_s")])
    return BatchSummary(
        text_tokens_per_second=speed,
        texts=steps / rounds,
        nodes=(drafted + steps) / rounds,
        wasted=(drafted - (tokens - steps)) / rounds,
    )


def _off_target(data: Measurements, totals: Totals, method: str) -> Interval | None:
    if (method, "off_target") not in data.values:
        return None
    return totals.share((method, "off_target"), (method, "emitted"))


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
    data: Measurements, method: str, rounds: float, seconds: float
) -> dict[str, float] | None:
    totals = {stage: data.total(method, f"{stage}_s") for stage in STAGES}
    known = {stage: 1e3 * total / rounds for stage, total in totals.items() if total is not None}
    if len(known) < len(STAGES):
        return None
    return {**known, "other": max(0.0, 1e3 * seconds / rounds - sum(known.values()))}


def _error_messages(run: RunRecords, sampling: str, method: str) -> Sequence[str]:
    rows = run.prompts.filter(pl.col("sampling") == sampling, pl.col("method") == method)
    return rows["error"].drop_nulls().to_list()


def label(row: MethodSummary) -> str:
    failed = f" ({row.errors} failed)" if row.errors else ""
    return f"{row.method.label}{row.method.mark}{failed}{' *' if row.among_fastest else ''}"


def _stage(stage: str) -> Column[MethodSummary]:
    return Column(
        f"{stage}\nms",
        lambda row: NONE if row.stage_ms is None else f"{row.stage_ms[stage]:.1f}",
        f"{stage}, ms/step",
        moves=1,
        part="time of a step",
    )


def _half_width(row: MethodSummary) -> str:
    return f"{row.speedup.half_width:.2f}" if row.speedup and row.speedup.has_width else NONE


def _equal(row: MethodSummary) -> str:
    """Number of equal outputs over number of compared outputs; `ref` for the reference."""
    if row.equality.reference:
        return "ref"
    count = f"{row.equality.equal}/{row.equality.compared}" if row.equality.compared else NONE
    return f"{count} !" if row.equality.bugs else count


METHOD = Column[MethodSummary]("method", label, left=True)
SPEEDUP = Column[MethodSummary](
    "speedup", lambda row: interval(row.speedup), "speedup, 95 % interval"
)
EQUAL = Column[MethodSummary]("equal", _equal, "equal to ref", moves=4)

OFF_TARGET = Column[MethodSummary](
    "off\ntarget",
    lambda row: NONE if row.off_target is None else f"{100 * row.off_target.estimate:.1f} %",
    "off target",
    moves=5,
)


def _of_batch(head: str, name: str, value: Callable[[BatchSummary], str]) -> Column[MethodSummary]:
    return Column(head, lambda row: value(row.batch), name, moves=1, part="a batch")


BATCH = (
    _of_batch(
        "tok/s\na text",
        "tokens per second of a text",
        lambda batch: (
            NONE
            if batch.text_tokens_per_second is None
            else f"{batch.text_tokens_per_second.estimate:.1f}"
        ),
    ),
    _of_batch("texts", "texts per round", lambda batch: f"{batch.texts:.1f}"),
    _of_batch("nodes", "nodes per pass", lambda batch: f"{batch.nodes:.1f}"),
    _of_batch("wasted\nnodes", "wasted nodes per pass", lambda batch: f"{batch.wasted:.1f}"),
)

COLUMNS = (
    METHOD,
    Column[MethodSummary](
        "tok/step",
        lambda row: Cell(row.tokens_per_step.plus_minus(), value=row.tokens_per_step),
        "tokens per step",
        moves=6,
    ),
    Column[MethodSummary](
        "acc", lambda row: f"{row.accepted_per_step:.2f}", "accepted per step", moves=3
    ),
    Column[MethodSummary](
        "tok/s",
        lambda row: Cell(f"{row.tokens_per_second.estimate:.1f}", value=row.tokens_per_second),
        "tokens per second",
        moves=5,
    ),
    SPEEDUP,
    Column[MethodSummary]("±", _half_width, "half-width of that"),
    *map(_stage, STAGES),
    *BATCH,
    OFF_TARGET,
    Column[MethodSummary](
        "waste",
        lambda row: NONE if row.wasted is None else f"{100 * row.wasted:.0f} %",
        "wasted draft tokens",
        moves=2,
    ),
    EQUAL,
)

COMPACT_COLUMNS = (
    METHOD,
    Column[MethodSummary]("tokens per step", lambda row: f"{row.tokens_per_step.estimate:.2f}"),
    Column[MethodSummary]("tokens per second", lambda row: f"{row.tokens_per_second.estimate:.1f}"),
    SPEEDUP,
)


def result_table(
    summary: SamplingSummary, columns: Sequence[Column[MethodSummary]] = COLUMNS
) -> Table:
    greedy = any(row.equality.compared for row in summary.rows)
    lossy = any(row.off_target is not None for row in summary.rows)
    batched = any(row.batch.texts > 1 for row in summary.rows)
    against = f", speedup over {summary.baseline}" if summary.baseline else ""
    return Table(
        summary.sampling,
        [
            *(
                column
                for column in columns
                if (greedy or column is not EQUAL)
                and (lossy or column is not OFF_TARGET)
                and (batched or column not in BATCH)
            ),
            *(_metric(name) for name in metric_names(summary) if columns is COLUMNS),
        ],
        summary.rows,
        caption=f"{summary.sampling}: {summary.prompts} prompts{against}",
        group=_group,
        colour=_group,
        tone=lambda row: "best" if row.among_fastest else "",
    )


def result_tables(summaries: Sequence[SamplingSummary], names: str = "") -> list[Table]:
    """The result tables; with `names`, the columns of these heads or full names, in this order.

    The names are separated by commas. The column of the methods always stays, as the first.
    """
    tables = [result_table(summary) for summary in summaries]
    heads = {
        " ".join(name.split()): column.head
        for table in tables
        for column in table.columns
        for name in (column.name or column.head, column.head)
    }
    picked, rest = {METHOD.head: None}, names
    while rest := rest.strip(" ,"):  # full names have commas, too
        fitting = [name for name in heads if f"{rest},".startswith(f"{name},")]
        if not fitting:
            known = ", ".join(" ".join(head.split()) for head in dict.fromkeys(heads.values()))
            raise ConfigError(
                f"--columns: there is no column {rest.split(',')[0]!r} (there are {known})"
            )
        name = max(fitting, key=len)
        picked[heads[name]], rest = None, rest.removeprefix(name)
    if not names:
        return tables
    columns = [{column.head: column for column in table.columns} for table in tables]
    return [
        replace(table, columns=[known[head] for head in picked if head in known])
        for table, known in zip(tables, columns, strict=True)
    ]


def metric_names(summary: SamplingSummary) -> list[str]:
    return list(dict.fromkeys(name for row in summary.rows for name in row.metrics))


def _metric(name: str) -> Column[MethodSummary]:
    return Column(
        name,
        lambda row: NONE if name not in row.metrics else f"{row.metrics[name].estimate:.3g}",
        moves=2,
    )


def speedup_finding(summaries: Sequence[SamplingSummary]) -> Finding | None:
    tables = [_speedup_table(summary) for summary in summaries if summary.baseline is not None]
    return Finding("Speedups over each baseline", tables, (PREFILL_NOTE,)) if tables else None


def _speedup_table(summary: SamplingSummary) -> Table:
    def over(name: str) -> Column[MethodSummary]:
        return Column(f"over {name}", lambda row: interval(row.speedups[name]))

    columns = [
        Column[MethodSummary]("method", lambda row: row.method.name, left=True),
        *(over(row.method.name) for row in summary.rows if row.method.group == "plain"),
        Column[MethodSummary](
            f"over {summary.baseline}, prefill included",
            lambda row: interval(row.speedup_with_prefill),
        ),
    ]
    return Table(summary.sampling, columns, summary.rows, colour=_group)


def _group(row: MethodSummary) -> str:
    return row.method.group
