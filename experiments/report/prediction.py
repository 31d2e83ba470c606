"""What search predicted beside what the run measured: every static tree of a run, and plain decoding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import polars as pl

from treespec.experiments.config.file import validated
from treespec.experiments.config.schema import SearchConfig
from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.records.measured import Measured, load_between, load_measured
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import Interval, bootstrap
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import NONE, Column, Finding, Table, interval
from treespec.search import LatencyModel, Trace
from treespec.search.latency.errors import NotMeasured
from treespec.search.latency.pace import pace, step_at_pace_s
from treespec.search.rates.replay import replay
from treespec.tree import TreeShape

__all__ = [
    "Pace",
    "Prediction",
    "chosen",
    "first_ranked",
    "median_errors",
    "pace_of",
    "prediction_finding",
    "predictions",
]

NOTE = (
    "Predicted before the run: tokens per step by replaying each tree on texts recorded for that purpose, "
    "milliseconds per step from times of single parts. At pace: each stage scaled by how much longer or "
    "shorter its parts took on average when they were timed again between the run's prompts, which removes "
    "the drift and the hiccups of the machine and leaves the error of the prediction itself. Measured: "
    "what steps emitted, tokens past the budget included. Intervals are 95 %, over texts."
)

MISSING = (
    "No prediction beside the measurement: the run's folder lacks `search/`, or nothing in it covers these "
    "trees."
)

Pace = tuple[int, dict[str, float]]
"""Rounds of timing between the prompts of a run, and its pace by stage."""

Choice = tuple[str, str, Interval]
"""What search chose, the fastest lossless method of the run, and their speeds' ratio."""


@dataclass(frozen=True)
class Prediction:
    """One tree under one sampling setting.

    Args:
        method: name.
        sampling: name of the setting.
        tokens: predicted tokens per step, by replay of what was recorded on other texts.
        tokens_measured: emitted tokens per step of the run.
        step_s: predicted seconds of a step, by the times from before the run.
        step_measured_s: those of the run.
        speed_interval: emitted tokens per second of the run.
        step_at_pace_s: predicted, if the stages take as much longer than before the run as the same parts
            did when they were timed again between its prompts; None if they were not.
    """

    method: str
    sampling: str
    tokens: Interval
    tokens_measured: Interval
    step_s: float
    step_measured_s: float
    speed_interval: Interval
    step_at_pace_s: float | None = None

    @property
    def speed(self) -> float:
        """Predicted tokens per second, as search saw them: by the times from before the run."""
        return self.tokens.estimate / self.step_s

    @property
    def speed_at_pace(self) -> float | None:
        """Predicted tokens per second at the pace that the machine had during the run."""
        return self.step_at_pace_s and self.tokens.estimate / self.step_at_pace_s

    @property
    def speed_measured(self) -> float:
        """Measured tokens per second."""
        return self.speed_interval.estimate

    @property
    def tokens_error(self) -> float:
        """Relative error of the predicted tokens per step."""
        return self.tokens.estimate / self.tokens_measured.estimate - 1

    @property
    def speed_error(self) -> float:
        """Relative error of the predicted tokens per second."""
        return self.speed / self.speed_measured - 1

    @property
    def speed_error_at_pace(self) -> float | None:
        """Relative error of `speed_at_pace`."""
        return self.speed_at_pace and self.speed_at_pace / self.speed_measured - 1


def predictions(
    run: RunRecords, measurements: Mapping[str, Measurements], timed: Pace | None
) -> list[Prediction]:
    """All trees that what was recorded before the run covers; none if nothing was, or it is not there.

    Tokens per step count what steps emit, also past the budget, on both sides.

    Args:
        run: that was measured.
        measurements: of each of its sampling settings.
        timed: its pace.

    Raises:
        RunFolderError, InvalidTrace, InvalidLatency: if a file is damaged.
    """
    measured = _measured(run)
    if measured is None:
        return []
    rows = [
        _row(run, method, shape, data, measured, timed and timed[1])
        for data in measurements.values()
        for method in run.methods
        if (shape := _shape(method)) is not None
    ]
    return [row for row in rows if row is not None]


def pace_of(run: RunRecords) -> Pace | None:
    """Rounds of timing between the prompts of a run, and its pace by stage (see
    `treespec.search.latency.pace`).

    Returns:
        None if nothing was timed there, or fewer than half of the rounds that the config asks for: the end
        of a run that was begun without them says nothing of the rest.

    Raises:
        RunFolderError, InvalidLatency: if a file is damaged.
    """
    config, folder = run.manifest["config"], run.folder / "search"
    if config.get("search") is None or not (later := load_between(folder)):
        return None
    units = run.prompts.select("prompt", "sampling", "repeat").n_unique()
    wanted = config["search"].get("between", SearchConfig.model_fields["between"].default)
    if 2 * len(later) < min(wanted, units):
        return None
    return len(later), pace(LatencyModel.load(folder / "latency.json"), later)


def median_errors(rows: Sequence[Prediction]) -> tuple[float, float, float | None]:
    """Medians of the absolute relative errors: of tokens per step, and of tokens per second.

    Returns:
        The last are by the times from before the run, and at the pace of the machine during it; None if
        that was not measured.
    """
    at_pace = [abs(row.speed_error_at_pace) for row in rows if row.speed_error_at_pace is not None]
    return (
        median(abs(row.tokens_error) for row in rows),
        median(abs(row.speed_error) for row in rows),
        median(at_pace) if at_pace else None,
    )


def first_ranked(rows: Sequence[Prediction]) -> tuple[Prediction, Prediction]:
    """The tree predicted to be fastest, and the one that was."""
    return max(rows, key=lambda row: row.speed), max(rows, key=lambda row: row.speed_measured)


def chosen(run: RunRecords, data: Measurements) -> Choice | None:
    """What search chose for a setting, the fastest lossless method of the run, and their speeds' ratio.

    Returns:
        Their names, and tokens per second of the choice over those of the fastest; None if the config asks
        for no `best` tree, or it did not finish.
    """
    asked = [
        m
        for m in run.manifest["config"].get("methods", ())
        if m.get("shape", {}).get("kind") == "best"
    ]
    starts = [f"{m.get('name') or 'best'} for {data.sampling}" for m in asked]
    names = [m.name for m in data.methods if m.lossless]
    choices = [n for n in names if any(n == s or n.startswith(f"{s}: ") for s in starts)]
    if not choices or not data.prompts:
        return None
    best = max(names, key=data.rate)
    return choices[0], best, speed_ratio(data.totals, choices[0], best)


def _measured(run: RunRecords) -> Measured | None:
    if run.manifest["config"].get("search") is None or not (run.folder / "search").is_dir():
        return None
    # Methods may be of plug-ins, which a report does without.
    told = run.manifest["config"] | {"methods": [{"kind": "generate"}]}
    config = validated(run.folder / "manifest.json", told)
    return load_measured(config, run.folder / "search")


def _shape(method: Method) -> TreeShape | None:
    """The tree of every step: that of plain decoding is its root."""
    if method.kind == "plain":
        return TreeShape.chain(0)
    return None if method.parents is None or not method.by_pair else TreeShape(method.parents)


def _row(
    run: RunRecords,
    method: Method,
    shape: TreeShape,
    data: Measurements,
    measured: Measured,
    paces: Mapping[str, float] | None,
) -> Prediction | None:
    sampling = data.sampling
    usual = measured.default_law(sampling)
    law = usual if method.kind == "plain" else method.law[sampling]
    trace = measured.trace(sampling, law, shape.is_chain)
    rows = run.prompts.filter(
        pl.col("sampling") == sampling,
        pl.col("method") == method.name,
        pl.col("prompt").is_in(list(data.prompts)),
        pl.col("error").is_null(),
    )
    if trace is None or not _covered(shape, trace, measured.search) or not len(rows):
        return None
    times = measured.latency
    try:
        timed = law if law in times.laws else None
        step_s = times.step_s(shape, measured.prefix, law=timed)
        at_pace = step_at_pace_s(times, shape, paces, measured.prefix, law=timed) if paces else None
    except NotMeasured:  # wider or larger than what was timed
        return None
    sums = rows.group_by("prompt").agg(pl.sum("emitted", "steps", "decode_s")).sort("prompt")
    columns = {name: sums[name].to_numpy().astype(float) for name in ("emitted", "steps")}
    columns["seconds"] = sums["decode_s"].to_numpy()
    totals = bootstrap(columns)
    again = replay(trace, shape).interval()
    return Prediction(
        method.name,
        sampling,
        Interval(again.estimate, again.low, again.high),
        totals.ratio(["emitted"], ["steps"]),
        step_s,
        totals.ratio(["seconds"], ["steps"]).estimate,
        totals.ratio(["emitted"], ["seconds"]),
        at_pace,
    )


def _covered(shape: TreeShape, trace: Trace, search: SearchConfig) -> bool:
    """Whether nodes are not wider, and texts go on as far, as was recorded."""
    widest = max(map(len, shape.children))
    return widest <= trace.width and shape.depth <= int(trace.about.get("beyond", 0)) + 1


def _number(
    head: str,
    shown: str,
    value: Callable[[Prediction], float | None],
    moves: int = 0,
    part: str = "",
) -> Column[Prediction]:
    """A column of numbers, which some predictions lack."""

    def write(row: Prediction) -> str:
        number = value(row)
        return NONE if number is None else format(number, shown)

    return Column(head, write, moves=moves, part=part)


SPEED = (1, "tokens per second")
"""When columns of speeds move, and what a table of them is called."""

COLUMNS = (
    Column[Prediction]("tree", lambda row: row.method, left=True),
    Column[Prediction]("tokens/step", lambda row: interval(row.tokens)),
    Column[Prediction]("measured", lambda row: interval(row.tokens_measured)),
    Column[Prediction]("error", lambda row: f"{row.tokens_error:+.1%}"),
    _number("ms/step", ".1f", lambda row: 1e3 * row.step_s),
    _number("at pace", ".1f", lambda row: row.step_at_pace_s and 1e3 * row.step_at_pace_s),
    _number("measured", ".1f", lambda row: 1e3 * row.step_measured_s),
    _number("tokens/s", ".1f", lambda row: row.speed, *SPEED),
    _number("at pace", ".1f", lambda row: row.speed_at_pace, *SPEED),
    _number("measured", ".1f", lambda row: row.speed_measured, *SPEED),
    _number("error", "+.1%", lambda row: row.speed_error, *SPEED),
    _number("at pace", "+.1%", lambda row: row.speed_error_at_pace, *SPEED),
)


def prediction_finding(
    rows: Sequence[Prediction], choices: Mapping[str, Choice | None], timed: Pace | None
) -> Finding | None:
    """A table for each sampling setting and what it says; None if nothing was predicted.

    Args:
        rows: of all settings.
        choices: as `chosen` gives them, by setting.
        timed: the pace of the run.
    """
    tables = []
    for sampling in dict.fromkeys(row.sampling for row in rows):
        trees = [row for row in rows if row.sampling == sampling]
        title, said = f"predicted and measured, {sampling}", _said(trees, choices[sampling], timed)
        tables.append(Table(sampling, COLUMNS, trees, title=title, said=said))
    return Finding("Prediction and measurement", tables, (NOTE,)) if tables else None


def _said(rows: Sequence[Prediction], choice: Choice | None, timed: Pace | None) -> str:
    """How good the prediction was, and what following it would have cost."""
    tokens, speed, at_pace = median_errors(rows)
    first, best = first_ranked(rows)
    reached = first.speed_measured / best.speed_measured
    said = (
        f"Median error over {len(rows)} trees: {tokens:.1%} of tokens per step, {speed:.1%} of tokens per "
        f"second{_paced(at_pace, timed)}. Predicted to be fastest, by the times from before the run: "
        f"{first.method}, which reached {reached:.0%} of the speed of the fastest of these ({best.method})."
    )
    if choice is None:
        return said
    name, fastest, ratio = choice
    shown = interval(ratio)
    share = f"{shown.text} ({shown.detail})" if shown.detail else shown.text
    reached = f"reached {share} of the speed of the run's fastest ({fastest})"
    return f"{said} What search chose ({name}) {reached}."


def _paced(error: float | None, timed: Pace | None) -> str:
    """What the machine did during the run."""
    if error is None or timed is None:
        return " (parts of a step were not timed during the run, or too few times: drift is in it)"
    rounds, paces = timed
    stages = ", ".join(f"{stage} {paces[stage]:.2f}" for stage in ("draft", "verify", "plain"))
    return (
        f", {error:.1%} at the pace of the machine during the run (timed {rounds} times between its "
        f"prompts: {stages} times as long as before it)"
    )
