"""What search predicted beside what the run measured: every static tree of a run, and plain decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from treespec.experiments.config.file import validated
from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.records.measured import Measured, advice_kept, load_measured
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import Interval
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.experiments.report.verdict import Comparison, compare
from treespec.search import Trace
from treespec.search.latency.errors import NotMeasured
from treespec.search.rates.replay import replay
from treespec.tree import TreeShape

__all__ = [
    "Choice",
    "Prediction",
    "chosen",
    "first_ranked",
    "median_errors",
    "prediction_finding",
    "predictions",
]

NOTE = (
    "Predicted before the run: tokens per step by replaying each tree on texts recorded for that purpose, "
    "speedup from these and times of single parts, over a step of plain decoding by the same loop. Both "
    "sides are ratios of times taken together, so that a machine that was faster or slower in the run than "
    "before it changes neither. Predicted tokens per second are of the machine as it was profiled. "
    "Measured: what steps emitted, tokens past the budget included. Intervals are 95 %, over texts."
)

MISSING = (
    "No prediction beside the measurement: the run's folder lacks `search/`, nothing in it covers these "
    "trees, or `{kind: plain}`, which speedups are over, is not among the methods that finished."
)


@dataclass(frozen=True)
class Choice:
    """What search chose for a sampling setting, beside the fastest lossless methods of the run.

    Args:
        method: the name of the choice.
        fastest: of the fastest method on all prompts.
        over: tokens per second of the choice over those of `fastest`. It was picked on the prompts that it
            is measured on, so that this is too low.
        fair: the same over the fastest by the other half of the prompts, for each half; None with too few.
        advice: in words, as it was told before the run; empty if it was not kept.
    """

    method: str
    fastest: str
    over: Interval
    fair: Comparison | None
    advice: str


@dataclass(frozen=True)
class Prediction:
    """One tree under one sampling setting.

    Args:
        method: name.
        sampling: name of the setting.
        size: nodes of the tree, its root included: 1 for plain decoding.
        tokens: predicted tokens per step, by replay of what was recorded on other texts.
        tokens_measured: emitted tokens per step of the run.
        speedup: predicted tokens per second over those of plain decoding. Its interval is that of the
            tokens, as times are predicted without one.
        speedup_measured: the same of the run.
        speed: predicted tokens per second on the machine as it was profiled.
        disturbed: what else used the machine while times were taken, as a sentence; None if nothing did.
    """

    method: str
    sampling: str
    size: int
    tokens: Interval
    tokens_measured: Interval
    speedup: Interval
    speedup_measured: Interval
    speed: float
    disturbed: str | None = None

    @property
    def tokens_error(self) -> float:
        """Relative error of the predicted tokens per step."""
        return self.tokens.estimate / self.tokens_measured.estimate - 1

    @property
    def speedup_error(self) -> float:
        """Relative error of the predicted speedup."""
        return self.speedup.estimate / self.speedup_measured.estimate - 1


def predictions(run: RunRecords, measurements: Mapping[str, Measurements]) -> list[Prediction]:
    """All trees that what was recorded before the run covers; none if nothing was, or it is not there.

    Tokens count what steps emit, also past the budget, on both sides.

    Args:
        run: that was measured.
        measurements: of each of its sampling settings.

    Raises:
        RunFolderError, InvalidTrace, InvalidLatency: if a file is damaged.
    """
    measured = _measured(run)
    if measured is None:
        return []
    return [row for data in measurements.values() for row in _of_setting(data, measured)]


def median_errors(rows: Sequence[Prediction]) -> tuple[float, float]:
    """Medians of the absolute relative errors of tokens per step and of speedups.

    Plain decoding, of which both are 1 by definition, does not count.
    """
    trees = [row for row in rows if row.size > 1]
    return (
        median(abs(row.tokens_error) for row in trees),
        median(abs(row.speedup_error) for row in trees),
    )


def first_ranked(rows: Sequence[Prediction]) -> tuple[Prediction, Prediction]:
    """The tree predicted to be fastest under a setting, and the one that was."""
    return (
        max(rows, key=lambda row: row.speedup.estimate),
        max(rows, key=lambda row: row.speedup_measured.estimate),
    )


def chosen(run: RunRecords, data: Measurements) -> Choice | None:
    """What search chose for a setting beside the fastest lossless method of the run.

    Returns:
        None if the config asks for no `best` tree, or it did not finish.
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
    place = [setting["name"] for setting in run.manifest["samplings"]].index(data.sampling)
    advice = advice_kept(run.folder / "search", place).get(choices[0], "")
    over = speed_ratio(data.totals, choices[0], best)
    fair = compare(data, ("what search chose", choices[:1]), ("the fastest", names))
    return Choice(choices[0], best, over, fair, advice)


def _measured(run: RunRecords) -> Measured | None:
    config = run.manifest["config"]
    if config.get("search") is None or not (run.folder / "search").is_dir():
        return None
    # Methods may be of plug-ins, which a report does without; runs of schema 2 name a key that is gone.
    search = {key: value for key, value in config["search"].items() if key != "between"}
    told = config | {"methods": [{"kind": "generate"}], "search": search}
    return load_measured(validated(run.folder / "manifest.json", told), run.folder / "search")


def _shape(method: Method) -> TreeShape | None:
    """The tree of every step: that of plain decoding is its root."""
    if method.kind == "plain":
        return TreeShape.chain(0)
    return None if method.parents is None or not method.by_pair else TreeShape(method.parents)


def _of_setting(data: Measurements, measured: Measured) -> list[Prediction]:
    """The trees under one setting; none without a tree or without plain decoding by our loop."""
    trees = [(m, shape) for m in data.methods if (shape := _shape(m)) is not None]
    plain = next((m.name for m, _ in trees if m.kind == "plain"), None)
    if plain is None or not data.prompts:
        return []
    rows = [
        row
        for method, shape in trees
        if (row := _row(method, shape, plain, data, measured)) is not None
    ]
    return rows if any(row.size > 1 for row in rows) else []


def _row(
    method: Method, shape: TreeShape, plain: str, data: Measurements, measured: Measured
) -> Prediction | None:
    """A tree; None if it is wider or larger, or its texts go on further, than what was recorded or timed.

    Args:
        method: whose.
        shape: the tree of every step.
        plain: name of plain decoding.
        data: of the run.
        measured: before it.
    """
    usual, times = measured.default_law(data.sampling), measured.latency
    law = usual if method.kind == "plain" else method.law[data.sampling]
    trace = measured.trace(data.sampling, law, shape.is_chain)
    if trace is None or not _covered(shape, trace):
        return None
    timed, plain_timed = (name if name in times.laws else None for name in (law, usual))
    try:
        step_s = times.step_s(shape, measured.prefix, law=timed)
        cheaper = times.plain_s(measured.prefix, law=plain_timed) / step_s
    except NotMeasured:
        return None
    name, totals, tokens = method.name, data.totals, replay(trace, shape).interval()
    return Prediction(
        name,
        data.sampling,
        shape.size,
        Interval(tokens.estimate, tokens.low, tokens.high),
        totals.ratio([(name, "emitted")], [(name, "steps")]),
        Interval(cheaper * tokens.estimate, cheaper * tokens.low, cheaper * tokens.high),
        totals.ratio(
            [(name, "emitted"), (plain, "decode_s")], [(name, "decode_s"), (plain, "emitted")]
        ),
        tokens.estimate / step_s,
        times.disturbed,
    )


def _covered(shape: TreeShape, trace: Trace) -> bool:
    """Whether nodes are not wider, and texts go on as far, as was recorded."""
    widest = max(map(len, shape.children))
    return widest <= trace.width and shape.depth <= int(trace.about.get("beyond", 0)) + 1


_Speed = partial(Column[Prediction], moves=1, part="speedup")
"""A column that a narrow terminal shows in a second table."""

COLUMNS = (
    Column[Prediction]("tree", lambda row: row.method, left=True),
    Column[Prediction]("tokens/step", lambda row: interval(row.tokens)),
    Column[Prediction]("measured", lambda row: interval(row.tokens_measured)),
    Column[Prediction]("error", lambda row: f"{row.tokens_error:+.1%}"),
    _Speed("speedup", lambda row: interval(row.speedup)),
    _Speed("measured", lambda row: interval(row.speedup_measured)),
    _Speed("error", lambda row: f"{row.speedup_error:+.1%}"),
    _Speed("tokens/s", lambda row: f"{row.speed:.1f}"),
)


def prediction_finding(
    rows: Sequence[Prediction], choices: Mapping[str, Choice | None]
) -> Finding | None:
    """A table for each sampling setting and what it says; None if nothing was predicted.

    Args:
        rows: of all settings.
        choices: as `chosen` gives them, by setting.
    """
    tables = []
    for sampling in dict.fromkeys(row.sampling for row in rows):
        trees = [row for row in rows if row.sampling == sampling]
        title, said = f"predicted and measured, {sampling}", _said(trees, choices[sampling])
        tables.append(Table(sampling, COLUMNS, trees, title=title, said=said))
    said = dict.fromkeys(row.disturbed for row in rows if row.disturbed)
    remarks = [f"Caution, of the times before the run: {text}" for text in said]
    return Finding("Prediction and measurement", tables, (NOTE,), remarks) if tables else None


def _said(rows: Sequence[Prediction], choice: Choice | None) -> str:
    """How good the prediction was, and what following it would have cost."""
    tokens, speedup = median_errors(rows)
    first, best = first_ranked(rows)
    reached = first.speedup_measured.estimate / best.speedup_measured.estimate
    said = (
        f"Median error over {sum(row.size > 1 for row in rows)} trees: {tokens:.1%} of tokens per step, "
        f"{speedup:.1%} of the speedup over plain decoding. Predicted to be fastest: {first.method}, which "
        f"reached {reached:.0%} of the speed of the fastest of these ({best.method})."
    )
    if choice is None:
        return said
    reached = f"reached {_share(choice.over)} of the speed of the run's fastest ({choice.fastest})"
    if choice.fair is not None:
        reached += (
            f", picked on the same prompts, and {_share(choice.fair.ratio)} of that of the fastest by the "
            f"other half of the prompts ({choice.fair.right.label})"
        )
    told = f" Before the run it said: {choice.advice}" if choice.advice else ""
    return f"{said} What search chose ({choice.method}) {reached}.{told}"


def _share(ratio: Interval) -> str:
    shown = interval(ratio)
    return f"{shown.text} ({shown.detail})" if shown.detail else shown.text
