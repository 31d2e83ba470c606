"""Predictions of the search beside measurements of the run: static trees, growths and plain decoding."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.records.measured import advice_kept
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.experiments.report.verdict import Comparison, compare
from treespec.search.choice.growths import DECIDING
from treespec.search.choice.rows import with_sure
from treespec.search.intervals import Interval

__all__ = [
    "Choice",
    "Prediction",
    "Unpredicted",
    "chosen",
    "first_ranked",
    "median_errors",
    "prediction_finding",
]

NOTE = (
    "Predicted before the run: tokens per step from replaying each tree on texts recorded for that "
    "purpose; speedup from these tokens and the times of single parts, over a step of plain decoding by "
    "the same loop. Predicted and measured speedups are ratios of times taken together, so a machine "
    "that was faster or slower in the run than before it changes neither. Predicted tokens per second "
    "refer to the machine as it was profiled. Measured tokens are those that steps emitted, tokens past "
    "the budget included. Intervals are 95 %, over texts."
)

GROWN = (
    "Trees that grow are replayed by their own code, on the draft's probabilities recorded along these "
    "texts and beside them. If not every replayed step is proved to equal that of a live run, the share "
    "that is follows the name. Each text counts with the time of its own steps."
)


MISSING = (
    "No prediction beside the measurement: the run's folder lacks `search/`, nothing in it covers these "
    "trees, or `{kind: plain}`, the baseline of these speedups, is not among the methods that finished."
)


@dataclass(frozen=True)
class Choice:
    """The method that the search chose for a sampling setting, beside the run's fastest lossless method.

    Args:
        method: name of the chosen method.
        fastest: name of the fastest method on all prompts.
        over: tokens per second of the choice over those of `fastest`. Biased low, because `fastest` is
            selected on the same prompts.
        fair: the same ratio with the fastest method chosen on the other half of the prompts, for each half;
            None with too few prompts.
        advice: the advice as given before the run; empty if it was not kept.
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
        method: name of the method.
        sampling: name of the setting.
        size: nodes of the tree, root included: 1 for plain decoding, the mean for a tree that grows.
        tokens: predicted tokens per step, from a replay of other, recorded texts.
        tokens_measured: emitted tokens per step in the run.
        speedup: predicted tokens per second over those of plain decoding. The interval is that of the
            tokens, because times are predicted without one; for a tree that grows, that of tokens over
            time.
        speedup_measured: measured tokens per second over those of plain decoding.
        speed: predicted tokens per second on the machine as it was profiled.
        disturbed: what else used the machine while times were measured, as a sentence; None if nothing did.
        sure: for a tree that grows, the share of replayed steps proved to equal those of a live run; None
            for other methods.
        untimed: whether the time that the growth takes to decide is missing from the times.
        timed_under: the sampling setting under which its steps were timed, if it is another one.
    """

    method: str
    sampling: str
    size: float
    tokens: Interval
    tokens_measured: Interval
    speedup: Interval
    speedup_measured: Interval
    speed: float
    disturbed: str | None = None
    sure: float | None = None
    untimed: bool = False
    timed_under: str | None = None

    @property
    def tokens_error(self) -> float:
        """Relative error of the predicted tokens per step."""
        return self.tokens.estimate / self.tokens_measured.estimate - 1

    @property
    def speedup_error(self) -> float:
        """Relative error of the predicted speedup."""
        return self.speedup.estimate / self.speedup_measured.estimate - 1


@dataclass(frozen=True)
class Unpredicted:
    """A method without a prediction under one sampling setting.

    Args:
        method: name of the method.
        sampling: name of the setting.
        reason: why there is none, in words that fit one method as well as several.
    """

    method: str
    sampling: str
    reason: str


def median_errors(rows: Sequence[Prediction]) -> tuple[float, float]:
    """Medians of the absolute relative errors of tokens per step and of speedups.

    Plain decoding, for which both are 1 by definition, does not count.
    """
    trees = [row for row in rows if row.size > 1]
    return (
        median(abs(row.tokens_error) for row in trees),
        median(abs(row.speedup_error) for row in trees),
    )


def first_ranked(rows: Sequence[Prediction]) -> tuple[Prediction, Prediction]:
    """The tree predicted to be the fastest under a setting, and the tree that was the fastest."""
    return (
        max(rows, key=lambda row: row.speedup.estimate),
        max(rows, key=lambda row: row.speedup_measured.estimate),
    )


def chosen(run: RunRecords, data: Measurements) -> Choice | None:
    """The method that the search chose for a setting, beside the fastest lossless method of the run.

    Returns:
        None if the config has no method of shape `best`, or it did not finish.
    """
    prefixes = [
        f"{m.get('name') or 'best'} for {data.sampling}"
        for m in run.manifest["config"].get("methods", ())
        if m.get("shape", {}).get("kind") == "best"
    ]
    names = [m.name for m in data.methods if m.lossless]
    choices = [n for n in names if any(n == p or n.startswith(f"{p}: ") for p in prefixes)]
    if not choices or not data.prompts:
        return None
    fastest = max(names, key=data.rate)
    setting_index = [setting["name"] for setting in run.manifest["samplings"]].index(data.sampling)
    return Choice(
        choices[0],
        fastest,
        over=speed_ratio(data.totals, choices[0], fastest),
        fair=compare(data, ("what search chose", choices[:1]), ("the fastest", names)),
        advice=advice_kept(run.folder / "search", setting_index).get(choices[0], ""),
    )


_Speed = partial(Column[Prediction], moves=1, part="speedup")
"""A column that a narrow terminal shows in a second table."""

COLUMNS = (
    Column[Prediction]("tree", lambda row: with_sure(row.method, row.sure), left=True),
    Column[Prediction]("tokens/step", lambda row: interval(row.tokens)),
    Column[Prediction]("measured", lambda row: interval(row.tokens_measured)),
    Column[Prediction]("error", lambda row: f"{row.tokens_error:+.1%}"),
    _Speed("speedup", lambda row: interval(row.speedup)),
    _Speed("measured", lambda row: interval(row.speedup_measured)),
    _Speed("error", lambda row: f"{row.speedup_error:+.1%}"),
    _Speed("tokens/s", lambda row: f"{row.speed:.1f}"),
)


def prediction_finding(
    rows: Sequence[Prediction],
    choices: Mapping[str, Choice | None],
    unpredicted: Sequence[Unpredicted] = (),
) -> Finding | None:
    """One table per sampling setting with its conclusions, and the methods without a prediction.

    Args:
        rows: predictions under all settings.
        choices: results of `chosen`, by setting.
        unpredicted: methods that have no prediction.

    Returns:
        None if there is nothing to report.
    """
    tables = []
    with_rows = dict.fromkeys(row.sampling for row in rows)
    for sampling in with_rows:
        trees = [row for row in rows if row.sampling == sampling]
        said = _conclusion(trees, choices[sampling]) + _without(unpredicted, sampling)
        title = f"predicted and measured, {sampling}"
        tables.append(Table(sampling, COLUMNS, trees, title=title, said=said))
    disturbances = dict.fromkeys(row.disturbed for row in rows if row.disturbed)
    remarks = [f"Caution, of the times before the run: {text}" for text in disturbances]
    for setting in dict.fromkeys(row.timed_under for row in rows if row.timed_under):
        timed = [f"{row.method} ({row.sampling})" for row in rows if row.timed_under == setting]
        remarks.append(
            f"Caution: some steps were timed under {setting}, where drawing and accepting children takes a "
            f"different time: {', '.join(timed)}."
        )
    if untimed := dict.fromkeys(row.method for row in rows if row.untimed):
        remarks.append(f"Caution: {DECIDING}: {', '.join(untimed)}.")
    remarks += [
        f"{sampling}:{_without(unpredicted, sampling)}"
        for sampling in dict.fromkeys(entry.sampling for entry in unpredicted)
        if sampling not in with_rows
    ]
    if not tables and not remarks:
        return None
    notes = (
        (NOTE, *([GROWN] if any(row.sure is not None for row in rows) else [])) if tables else ()
    )
    return Finding("Prediction and measurement", tables, notes, remarks)


def _without(unpredicted: Sequence[Unpredicted], sampling: str) -> str:
    """A sentence on a setting's methods without a prediction, by reason; empty if all have one."""
    methods = defaultdict[str, list[str]](list)
    for entry in unpredicted:
        if entry.sampling == sampling:
            methods[entry.reason].append(entry.method)
    listed = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in methods.items())
    return f" Without a prediction: {listed}." if listed else ""


def _conclusion(rows: Sequence[Prediction], choice: Choice | None) -> str:
    """Sentences on the accuracy of the prediction, and on the speed reached by following it."""
    tokens, speedup = median_errors(rows)
    predicted_best, measured_best = first_ranked(rows)
    reached = predicted_best.speedup_measured.estimate / measured_best.speedup_measured.estimate
    said = (
        f"Median error over {sum(row.size > 1 for row in rows)} trees: {tokens:.1%} of tokens per step, "
        f"{speedup:.1%} of the speedup over plain decoding. Predicted to be fastest: "
        f"{predicted_best.method}, which reached {reached:.0%} of the speed of the fastest of these "
        f"({measured_best.method})."
    )
    if choice is None:
        return said
    over = choice.over.text(in_sentence=True)
    outcome = f"reached {over} of the speed of the run's fastest ({choice.fastest})"
    if choice.fair is not None:
        outcome += (
            f", picked on the same prompts, and {choice.fair.ratio.text(in_sentence=True)} of that of the "
            f"fastest by the other half of the prompts ({choice.fair.right.label})"
        )
    advice = f" Before the run it said: {choice.advice}" if choice.advice else ""
    return f"{said} What search chose ({choice.method}) {outcome}.{advice}"
