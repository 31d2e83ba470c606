"""The verdict of a run on trees, chains and plain decoding, in sentences.

The best of many methods looks better than it is on the prompts used to choose it. Therefore each side of a
comparison is chosen on one half of the prompts and measured on the other half, and vice versa, and this is
averaged over the halvings of the prompts (`report.halvings`): no order of prompts or methods changes a bit
of a verdict. Excerpts of one file are one sample. The interval is that of a single look, or for a run with
`until` the repeated interval of its looks (`report.sequential`).

A winner is named only if the interval excludes 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.cautions import (
    drift_caution,
    load_caution,
    machine_caution,
    spread_caution,
    turns_caution,
)
from treespec.experiments.report.equality import equality
from treespec.experiments.report.halvings import fit
from treespec.experiments.report.measurements import BY_PROMPTS, ONE_METHOD, Measurements
from treespec.experiments.report.results import plain_elsewhere
from treespec.experiments.report.sequential import (
    ENDED_EARLY,
    REPEATED,
    ended_early,
    ending,
    interval_at,
    student,
)
from treespec.experiments.report.statistics import by_file
from treespec.experiments.report.table import Cell, Column, Finding, Table
from treespec.experiments.report.times import noise_caution, resolution_sentence
from treespec.search.intervals import Interval

LEAST_PROMPTS = 4
"""Fewest prompts for a comparison: two halves of two prompts each."""

ONE_LOOK = 1.959963984540054
"""Boundary of a run that is looked at once: the normal quantile of 97.5 %."""

METHOD_NOTE = (
    "Verdicts: each side is chosen on one half of the prompts and measured on the other, and the other way "
    "round, so that no prompt measures a choice that it influenced; this is averaged over the halvings of "
    'the prompts ("a or b": they chose differently). A winner is named only if the 95 % interval '
    "excludes 1."
)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a family of methods, and the method chosen on each half of the prompts."""

    family: str
    chosen: tuple[str, ...]

    @property
    def label(self) -> str:
        return " or ".join(dict.fromkeys(self.chosen))


@dataclass(frozen=True)
class Comparison:
    """Two sides, each measured on the half of the prompts that did not choose it.

    Args:
        left, right: the sides.
        ratio: tokens per second (prefill excluded), or tokens per step, of left over right.
        prompts: number of compared prompts.
        samples: number of independent samples among them: files, if several prompts are excerpts of one.
    """

    left: Side
    right: Side
    ratio: Interval
    prompts: int
    samples: int

    @property
    def winner(self) -> Side | None:
        if self.ratio.contains(1.0):
            return None
        return self.left if self.ratio.estimate > 1 else self.right


def _outcome(duel: Comparison) -> str:
    if duel.winner is None:
        return "not decided"
    return "faster" if duel.winner is duel.left else "slower"


COLUMNS = (
    Column[Comparison]("", lambda duel: duel.left.family, left=True),
    Column[Comparison]("chosen", lambda duel: duel.left.label, left=True),
    Column[Comparison]("against", lambda duel: duel.right.family, left=True),
    Column[Comparison]("chosen", lambda duel: duel.right.label, left=True),
    Column[Comparison](
        "times as fast", lambda duel: Cell(f"{duel.ratio.estimate:.3f}", value=duel.ratio)
    ),
    Column[Comparison]("95 % interval", lambda duel: duel.ratio.bounds(3)),
    Column[Comparison]("", _outcome, left=True),
)


def comparison_finding(duels: Mapping[str, Sequence[Comparison]]) -> Finding | None:
    tables = [Table(sampling, COLUMNS, rows) for sampling, rows in duels.items() if rows]
    note = "Chosen and measured on different halves of the prompts, with intervals as those of the verdict."
    return Finding("Comparisons", tables, (note,)) if tables else None


def compare(
    data: Measurements,
    left: tuple[str, Sequence[str]],
    right: tuple[str, Sequence[str]],
    cost: str = "decode_s",
) -> Comparison | None:
    """Compare the best method of one family with the best of another.

    Returns:
        The comparison; None if a family is empty or there are fewer than `LEAST_PROMPTS` independent
        samples.
    """
    if not left[1] or not right[1] or data.samples < LEAST_PROMPTS:
        return None
    tables = [
        [[data.values[name, "new_tokens"], data.values[name, cost]] for name in names]
        for _, names in (left, right)
    ]
    if data.files is not None:
        tables = [by_file(table, data.files) for table in tables]
    fitted = fit(*tables)
    sides = [
        Side(family, tuple(names[method] for method in chosen))
        for (family, names), chosen in ((left, fitted.left), (right, fitted.right))
    ]
    boundary = student(ONE_LOOK, data.samples) if data.boundary is None else data.boundary
    ratio = interval_at(fitted, boundary)
    return Comparison(sides[0], sides[1], ratio, len(data.prompts), data.samples)


def comparisons(data: Measurements) -> list[Comparison]:
    trees, chains, assisted = data.named("tree"), data.named("chain"), data.named("assisted")
    ours = "the best of our chains and trees", trees + chains
    pairs = [(("the best tree", trees), ("the best chain", chains + assisted))]
    if assisted:
        pairs += [
            (("the best tree", trees), ("the best of our own chains", chains)),
            (ours, ("assisted generation", assisted)),
        ]
    pairs += [(ours, (f"plain decoding ({name})", [name])) for name in data.named("plain")]
    return [duel for left, right in pairs if (duel := compare(data, left, right))]


def trees_against_chains(data: Measurements) -> Comparison | None:
    chains = data.named("chain", "assisted")
    return compare(data, ("the best tree", data.named("tree")), ("the best chain", chains))


def best_against_plain(data: Measurements) -> Comparison | None:
    rivals = ("the best speculative method", data.named("tree", "chain", "assisted"))
    return compare(data, rivals, ("plain decoding", data.named("plain")))


def sentences(run: RunRecords, measurements: Mapping[str, Measurements]) -> dict[str, list[str]]:
    """The verdict under each sampling setting: trees against chains, and the best against plain decoding.

    Cautions follow where the numbers do not support the verdict. Cautions about the whole run are appended
    to the first setting.
    """
    verdicts = {
        sampling: _sentences(run, data) + _warnings(run, data)
        for sampling, data in measurements.items()
    }
    cautions = (drift_caution, load_caution, machine_caution)
    about_run = [line for caution in cautions if (line := caution(run)) is not None]
    if (end := ending(run.manifest)) is not None:
        about_run.insert(0, f"The run {end}. {REPEATED}")
    if any(data.totals_because == BY_PROMPTS for data in measurements.values()):
        about_run.append(f"Caution: {BY_PROMPTS}.")
    if verdicts:
        next(iter(verdicts.values())).extend(about_run)
    return verdicts


def _sentences(run: RunRecords, data: Measurements) -> list[str]:
    if data.totals_because == ONE_METHOD:
        return [f"No verdict: {ONE_METHOD}."]
    lines: list[str | None]
    unit, files = ("prompts", "") if data.files is None else ("files", f" of {data.samples} files")
    duel, gain = trees_against_chains(data), best_against_plain(data)
    if data.samples < LEAST_PROMPTS:
        lines = [
            f"No verdict: {len(data.prompts)} prompts{files} were finished by all methods, and choosing "
            f"and measuring on different halves needs at least {LEAST_PROMPTS}."
        ]
    elif duel is None:
        lines = ["Trees and chains are not compared: the run holds only one of the two."]
    else:
        lines = [
            _duel(duel, data),
            ENDED_EARLY if duel.winner is not None and ended_early(run) else None,
            spread_caution("the best tree and the best chain", duel.ratio, duel.samples, unit),
        ]
    if gain is not None:
        sides = "speculation and plain decoding"
        lines += [_gain(gain, data), spread_caution(sides, gain.ratio, gain.samples, unit)]
        lines += [plain_elsewhere(run)]
    slowed = data.totals_because
    because = f"Caution: {slowed}." if slowed not in (None, BY_PROMPTS) else None
    differences = {
        sides: comparison.ratio
        for sides, comparison in (
            ("trees and chains", duel),
            ("speculation and plain decoding", gain),
        )
        if comparison is not None and comparison.winner is not None
    }
    lines += [resolution_sentence(data), noise_caution(data, differences), because, data.remark]
    return [line for line in lines if line is not None]


def _warnings(run: RunRecords, data: Measurements) -> list[str]:
    cautions = [
        f"Caution: {m.name} departs from plain decoding by more than rounding explains ({count} "
        f"prompt{'s' * (count > 1)}); do not trust its numbers."
        for m in run.methods
        if m.lossless and (count := len(equality(run, data.sampling, m.name).bugs))
    ]
    turns = turns_caution(run, data)
    return cautions if turns is None else [*cautions, turns]


def _interval(ratio: Interval, data: Measurements) -> str:
    kind = "95 % interval" if data.boundary is None else "repeated 95 % interval"
    digits = 2
    if 1 in (round(ratio.low, 2), round(ratio.high, 2)):
        digits = 3  # else a bound that rounds to 1 hides on which side of 1 it lies
    return f"{kind} {ratio.bounds(digits, between=' to ')}"


def _duel(duel: Comparison, data: Measurements) -> str:
    files = f" of {duel.samples} files" if duel.samples < duel.prompts else ""
    measured = (
        f"the best tree ({duel.left.label}) runs {duel.ratio.estimate:.2f} times as fast as the best "
        f"chain ({duel.right.label}), {_interval(duel.ratio, data)}, {duel.prompts} prompts{files}"
    )
    if duel.winner is None:
        return f"No winner between trees and chains: {measured}, and that contains 1."
    loser = duel.right if duel.winner is duel.left else duel.left
    names = {"the best tree": "trees", "the best chain": "chains"}
    return f"{names[duel.winner.family].capitalize()} beat {names[loser.family]}: {measured}."


def _gain(gain: Comparison, data: Measurements) -> str:
    measured = (
        f"{gain.left.label} runs {gain.ratio.estimate:.2f} times as fast as {gain.right.family} "
        f"({gain.right.label}), {_interval(gain.ratio, data)}"
    )
    if gain.winner is None:
        return f"Speculation makes no proven difference: {measured}, and that contains 1."
    word = "pays" if gain.winner is gain.left else "does not pay"
    return f"Speculation {word}: {measured}."
