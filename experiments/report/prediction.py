"""Predictions of the search, made before a run, beside measurements of the run: rows and tables.

Predicted are static trees, trees that grow, and plain decoding: tokens per step by replaying each on texts
that were recorded before the run, and speeds from these and the times of single parts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from treespec.errors import TreespecError
from treespec.experiments.config.file import validated
from treespec.experiments.config.shapes import AnyShape, tree_of
from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.records.manifest import GROWTH_FILES, sha256_of
from treespec.experiments.records.measured import Measured, advice_kept, load_measured
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.protocols import Growth, MarginalGrowth
from treespec.search import InvalidGrowth, InvalidTrace
from treespec.search.choice.growth_replay import replay_growth
from treespec.search.choice.growths import DECIDING
from treespec.search.choice.rows import with_sure
from treespec.search.errors import NotMeasured
from treespec.search.growth.keys import GrowthSettings
from treespec.search.growth.shared_budget import BatchBudget
from treespec.search.intervals import Interval
from treespec.search.traces.replay import replay
from treespec.search.traces.rule_notes import by_member
from treespec.tree import Law, TreeShape

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

OWN_DRAFT = "drafted by a source of its own, which a search before a run does not record"
NOT_OURS = "a growth of a plug-in, or one whose files are gone or have changed"
NOT_KEPT = "the run did not keep how its trees are drafted"
DRAWN = "children that are drawn above temperature 0: no trace holds the draws"
MARGINAL = "children of a whole level from one row of the draft: no trace holds these rows"
SHARED = "nodes that texts of a batch share: a trace holds one text at a time"
NOT_RECORDED = "what was recorded before the run does not hold what is needed"
TOO_LARGE = "wider or deeper than what was recorded"
NOT_TIMED = "a part of a step was not timed"


@dataclass(frozen=True)
class Prediction:
    """One tree under one sampling setting.

    The interval of `speedup` is that of the tokens, because times are predicted without one; for a tree
    that grows, that of tokens over time. `size` counts nodes, root included: the mean for a tree that
    grows. `speed` is in tokens per second of all texts of a batch, on the machine as it was profiled.
    `disturbed` says what else used the machine while times were measured. `sure` is the share of a growth's
    replayed steps proved to equal those of a live run, and `untimed` says that the time in which it decides
    is not known.
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

    @property
    def tokens_error(self) -> float:
        return self.tokens.estimate / self.tokens_measured.estimate - 1

    @property
    def speedup_error(self) -> float:
        return self.speedup.estimate / self.speedup_measured.estimate - 1


class Unpredicted(NamedTuple):
    """A method without a prediction, and why, in words that fit one method as well as several."""

    method: str
    sampling: str
    reason: str


@dataclass(frozen=True)
class Choice:
    """The method that the search chose for a sampling setting, beside the run's fastest lossless method.

    `over` holds its tokens per second over those of `fastest`, which is biased low, because `fastest` is
    selected on the same prompts.
    """

    method: str
    fastest: str
    over: Interval
    advice: str


def predictions(
    run: RunRecords, measurements: Mapping[str, Measurements]
) -> tuple[list[Prediction], list[Unpredicted]]:
    """Predict all methods that the recordings before the run cover, and list those that they do not cover.

    On both sides, tokens include what steps emit past the budget. Both lists are empty if nothing was
    recorded before the run, or if the recordings are gone.
    """
    config, searched = run.manifest["config"], run.folder / "search"
    if config.get("search") is None or not searched.is_dir():
        return [], []
    # Methods may need plug-ins, which a report does not load; configs of schema 2 have a key that is gone.
    search = {key: value for key, value in config["search"].items() if key != "between"}
    readable = config | {"methods": [{"kind": "generate"}], "search": search}
    recorded = load_measured(validated(run.folder / "manifest.json", readable), searched)
    predicted, unpredicted = list[Prediction](), list[Unpredicted]()
    for sampling, data in measurements.items():
        ours = [method for method in data.methods if method.kind in ("plain", "tree")]
        # A search may have chosen plain decoding too: the one that the config names is the baseline.
        plains = sorted((m.searched, m.name) for m in ours if m.kind == "plain")
        plain = plains[0][1] if plains else None
        if plain is None or not data.prompts:
            continue
        rows = list[Prediction]()
        for method in ours:
            try:
                found = _replayed(method, sampling, recorded, searched)
            except NotMeasured:
                found = NOT_TIMED
            if isinstance(found, str):
                unpredicted.append(Unpredicted(method.name, sampling, found))
            else:
                rows.append(_beside(found, method.name, plain, data, recorded))
        if any(row.size > 1 for row in rows):
            predicted += rows
    return predicted, unpredicted


class _Replayed(NamedTuple):
    """What is predicted of a method; see `Prediction`."""

    size: float
    tokens: Interval
    speedup: Interval
    speed: float
    sure: float | None = None
    untimed: bool = False


def _replayed(method: Method, sampling: str, recorded: Measured, searched: Path) -> _Replayed | str:
    """The replay of a method under a sampling setting, or the reason why there is none."""
    usual = recorded.default_law(sampling)
    if method.kind == "plain":
        return _static(TreeShape.chain(0), usual, sampling, recorded)
    if not method.by_pair:
        return OWN_DRAFT
    if sampling not in method.law.keys() & method.rule.keys():
        return NOT_KEPT
    law, rule = method.law[sampling], method.rule[sampling]
    if method.parents is not None:
        shape = TreeShape(method.parents)
        recorded_rule = recorded.of_other_rule(rule, sampling, law, shape)
        if recorded_rule is not None:
            return f"rule {rule}: what was recorded before the run is of rule {recorded_rule}"
        return _static(shape, law, sampling, recorded)
    if method.growth is None:
        return NOT_KEPT
    growth = _growth_of(method, searched, recorded.batch)
    trace = recorded.trace(sampling, Law.DETERMINISTIC.value)
    if growth is None:
        return NOT_OURS
    if isinstance(growth, BatchBudget) and recorded.batch > 1:
        return SHARED
    if isinstance(growth, MarginalGrowth):
        return MARGINAL
    if law != Law.DETERMINISTIC.value:
        # At temperature 0 every draw is certain, whatever the law.
        if trace is None or not trace.greedy:
            return DRAWN
    elif trace is None or trace.draft_rows is None:
        return NOT_RECORDED
    elif not by_member(rule):
        return f"rule {rule}: no trace holds what it accepts of such trees"
    try:
        replayed = replay_growth(trace, growth)
    except (InvalidTrace, InvalidGrowth) as error:
        return str(error)
    if not any(replayed.levels):  # a growth that never drafts decodes plainly
        return _static(TreeShape.chain(0), usual, sampling, recorded)
    parts = recorded.latency.at(recorded.prefix, _timed(recorded, law))
    speed = replayed.speed(parts)
    return _Replayed(
        replayed.nodes_per_step, replayed.interval(), speed.scaled(_plain_s(recorded, sampling)),
        speed.estimate, float(replayed.sure.mean()), parts.decide is None,
    )  # fmt: skip


def _static(shape: TreeShape, law: str, sampling: str, recorded: Measured) -> _Replayed | str:
    """The replay of a tree that is the same at every step."""
    trace = recorded.trace(sampling, law, shape.is_chain)
    if trace is None:
        return NOT_RECORDED
    deepest = int(trace.about.get("beyond", 0)) + 1
    if max(map(len, shape.children)) > trace.width or shape.depth > deepest:
        return TOO_LARGE
    step_s = recorded.latency.step_s(shape, recorded.prefix, law=_timed(recorded, law))
    tokens = replay(trace, shape).interval()
    speedup = tokens.scaled(_plain_s(recorded, sampling) / step_s)
    return _Replayed(shape.size, tokens, speedup, tokens.estimate / step_s)


def _plain_s(recorded: Measured, sampling: str) -> float:
    law = _timed(recorded, recorded.default_law(sampling))
    return recorded.latency.plain_s(recorded.prefix, law=law)


def _timed(recorded: Measured, law: str) -> str | None:
    """The law to look up times by; None if the latency file does not tell laws apart."""
    return law if law in recorded.latency.laws else None


def _beside(
    found: _Replayed, name: str, plain: str, data: Measurements, recorded: Measured
) -> Prediction:
    """A replay beside the measurement."""
    measured_speedup = data.totals.ratio(
        [(name, "emitted"), (plain, "decode_s")], [(name, "decode_s"), (plain, "emitted")]
    )
    return Prediction(
        name, data.sampling, found.size,
        found.tokens, data.totals.ratio([(name, "emitted")], [(name, "steps")]),
        found.speedup, measured_speedup, recorded.batch * found.speed,
        recorded.latency.disturbed, found.sure, found.untimed,
    )  # fmt: skip


def _growth_of(method: Method, searched: Path, batch: int) -> Growth | None:
    """Rebuild the growth that a method used; None if it is not one of ours, or a file has changed.

    Files are looked for in `searched`, the run's folder `search`, first: the run may have been moved.
    """
    try:
        shape: Any = TypeAdapter(AnyShape).validate_python(method.growth)
        if not isinstance(shape, GrowthSettings):
            return None
        for key in GROWTH_FILES:
            named = getattr(shape, key, None)
            if named is not None:
                paths, digest = (str(searched / Path(named).name), named), method.files.get(key)
                file = next((path for path in paths if digest and sha256_of(path) == digest), None)
                if file is None:
                    return None
                shape = shape.model_copy(update={key: file})
        tree = tree_of(shape, batch)
    except (ValidationError, TreespecError):
        return None
    return tree if isinstance(tree, Growth) else None


def chosen(run: RunRecords, data: Measurements) -> Choice | None:
    """The method that the search chose for a setting, beside the fastest lossless method of the run.

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
        advice=advice_kept(run.folder / "search", setting_index).get(choices[0], ""),
    )


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


_Speed = partial(Column[Prediction], moves=1, part="speedup")

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
    """One table per sampling setting with its conclusions, and the methods without a prediction."""
    tables = []
    with_rows = dict.fromkeys(row.sampling for row in rows)
    for sampling in with_rows:
        trees = [row for row in rows if row.sampling == sampling]
        said = _conclusion(trees, choices[sampling]) + _without(unpredicted, sampling)
        title = f"predicted and measured, {sampling}"
        tables.append(Table(sampling, COLUMNS, trees, title=title, said=said))
    disturbances = dict.fromkeys(row.disturbed for row in rows if row.disturbed)
    remarks = [f"Caution, of the times before the run: {text}" for text in disturbances]
    if untimed := dict.fromkeys(row.method for row in rows if row.untimed):
        remarks.append(f"Caution: {DECIDING}: {', '.join(untimed)}.")
    remarks += [
        f"{sampling}:{_without(unpredicted, sampling)}"
        for sampling in dict.fromkeys(entry.sampling for entry in unpredicted)
        if sampling not in with_rows
    ]
    if not tables and not remarks:
        return None
    grown = any(row.sure is not None for row in rows)
    notes = (NOTE, *[GROWN] * grown) if tables else ()
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
    outcome = (
        f"reached {over} of the speed of the run's fastest ({choice.fastest}), which was picked on the "
        "same prompts and so looks faster than it is"
    )
    advice = f" Before the run it said: {choice.advice}" if choice.advice else ""
    return f"{said} What search chose ({choice.method}) {outcome}.{advice}"
