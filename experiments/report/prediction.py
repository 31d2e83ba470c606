"""What search predicted beside what the run measured: trees, those that grow too, and plain decoding."""

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
    "Predicted before the run: tokens per step by replaying each tree on texts recorded for that purpose, "
    "speedup from these and times of single parts, over a step of plain decoding by the same loop. Both "
    "sides are ratios of times taken together, so that a machine that was faster or slower in the run than "
    "before it changes neither. Predicted tokens per second are of the machine as it was profiled. "
    "Measured: what steps emitted, tokens past the budget included. Intervals are 95 %, over texts."
)

GROWN = (
    "Trees that grow are replayed by their own code, on what the draft thought along these texts and "
    "beside them; where not every replayed step is proved to be a live run's, the share that is stands "
    "behind the name. Each text counts with the time of its own steps."
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
        size: nodes of the tree, its root included: 1 for plain decoding; in the mean, of one that grows.
        tokens: predicted tokens per step, by replay of what was recorded on other texts.
        tokens_measured: emitted tokens per step of the run.
        speedup: predicted tokens per second over those of plain decoding. Its interval is that of the
            tokens, as times are predicted without one; of a tree that grows, that of tokens over time.
        speedup_measured: the same of the run.
        speed: predicted tokens per second on the machine as it was profiled.
        disturbed: what else used the machine while times were taken, as a sentence; None if nothing did.
        sure: of a tree that grows, the share of its replayed steps that are proved to be those of a live
            run; None of others.
        untimed: whether what its growth takes to decide is not among the times.
        timed_under: the sampling setting that its steps were timed under, where it is another one.
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
    """A method with trees under one sampling setting that has no prediction.

    Args:
        method: name.
        sampling: name of the setting.
        reason: why, in a few words that fit one method as well as several.
    """

    method: str
    sampling: str
    reason: str


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
    """A table for each sampling setting and what it says, and why others have none; None without either.

    Args:
        rows: of all settings.
        choices: as `chosen` gives them, by setting.
        unpredicted: methods that have no row.
    """
    tables = []
    for sampling in dict.fromkeys(row.sampling for row in rows):
        trees = [row for row in rows if row.sampling == sampling]
        lacking = [one for one in unpredicted if one.sampling == sampling]
        said = _said(trees, choices[sampling]) + _without(lacking)
        title = f"predicted and measured, {sampling}"
        tables.append(Table(sampling, COLUMNS, trees, title=title, said=said))
    said = dict.fromkeys(row.disturbed for row in rows if row.disturbed)
    remarks = [f"Caution, of the times before the run: {text}" for text in said]
    elsewhere: dict[str, list[str]] = {}
    for row in rows:
        if row.timed_under:
            elsewhere.setdefault(row.timed_under, []).append(f"{row.method} ({row.sampling})")
    remarks += [
        f"Caution: some steps were timed under {setting}, where drawing and accepting children takes "
        f"another time: {', '.join(these)}."
        for setting, these in elsewhere.items()
    ]
    untimed = ", ".join(dict.fromkeys(row.method for row in rows if row.untimed))
    if untimed:
        remarks.append(f"Caution: {DECIDING}: {untimed}.")
    bare = dict.fromkeys(one.sampling for one in unpredicted)
    for sampling in [one for one in bare if one not in {row.sampling for row in rows}]:
        remarks.append(
            sampling + ":" + _without([o for o in unpredicted if o.sampling == sampling])
        )
    if not tables and not remarks:
        return None
    notes = (
        (NOTE, *([GROWN] if any(row.sure is not None for row in rows) else [])) if tables else ()
    )
    return Finding("Prediction and measurement", tables, notes, remarks)


def _without(unpredicted: Sequence[Unpredicted]) -> str:
    """A sentence on the methods that have no prediction, by the reason; nothing if all have one."""
    if not unpredicted:
        return ""
    names: dict[str, list[str]] = {}
    for one in unpredicted:
        names.setdefault(one.reason, []).append(one.method)
    listed = "; ".join(f"{', '.join(these)} ({reason})" for reason, these in names.items())
    return f" Without a prediction: {listed}."


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
    return ratio.text(in_sentence=True)
