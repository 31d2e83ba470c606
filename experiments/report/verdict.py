"""The verdict of a run in sentences: what was compared, which side is faster, and how far to trust it.

Questions and answers are those of `report.comparisons`. A winner is named only on at least
`FEWEST_FOR_WINNER` independent samples, and only if the interval excludes 1. With fewer samples the verdict
gives the estimate, and how many samples the spread of these asks for.
"""

from collections.abc import Mapping

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.cautions import (
    drift_caution,
    generation_caution,
    load_caution,
    machine_caution,
    samples_for,
    spread_caution,
    synthetic_caution,
    turns_caution,
)
from treespec.experiments.report.comparisons import (
    PLAIN_DECODING,
    Comparison,
    Question,
    Side,
    compare,
    duels,
    speculation,
)
from treespec.experiments.report.equality import equality
from treespec.experiments.report.measurements import BY_PROMPTS, ONE_METHOD, Measurements
from treespec.experiments.report.results import plain_elsewhere
from treespec.experiments.report.sequential import ENDED_EARLY, REPEATED, ended_early, ending
from treespec.experiments.report.statistics import FEWEST_FOR_INTERVAL, FEWEST_FOR_WINNER
from treespec.experiments.report.times import noise_caution, resolution_sentence
from treespec.search.intervals import Interval

SMALL_EFFECT = 1.05
"""The difference that a run with too few prompts is told how to resolve."""

METHOD_NOTE = (
    "Verdicts: each side is chosen on one half of the prompts and measured on the other, and the other way "
    "round, so that no prompt measures a choice that it influenced; this is averaged over the halvings of "
    'the prompts ("a or b": they chose differently). A winner is named only if the 95 % interval '
    f"excludes 1, and on at least {FEWEST_FOR_WINNER} prompts."
)


def sentences(run: RunRecords, measurements: Mapping[str, Measurements]) -> dict[str, list[str]]:
    """The verdict under each sampling setting: trees against chains, and the best against plain decoding.

    Cautions follow where the numbers do not support the verdict. Cautions about the whole run are appended
    to the first setting.
    """
    verdicts = {
        sampling: _sentences(run, data) + _warnings(run, data)
        for sampling, data in measurements.items()
    }
    cautions = (
        synthetic_caution,
        drift_caution,
        load_caution,
        machine_caution,
        generation_caution,
    )
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
    gain = compare(data, speculation(data))
    answers = [*duels(run, data), *([(speculation(data), gain)] if gain else [])]
    lines: list[str | None] = []
    if data.samples < FEWEST_FOR_INTERVAL:
        lines = [
            f"No verdict: {_counted(run, data)} finished by all methods. The table shows estimates; "
            f"an interval takes at least {FEWEST_FOR_INTERVAL} {run.counted}, a winner at least "
            f"{FEWEST_FOR_WINNER}."
        ]
        answers = []
    for question, duel in answers:
        if duel is None:
            lines.append(_one_sided(question))
            continue
        lines += [
            _answer(duel, data, run),
            ENDED_EARLY if duel.winner and duel is not gain and ended_early(run) else None,
            spread_caution(duel.at_once, duel.samples, run.counted) if duel.enough else None,
        ]
    if gain is not None:
        lines.append(plain_elsewhere(run))
    slowed = data.totals_because
    because = f"Caution: {slowed}." if slowed not in (None, BY_PROMPTS) else None
    differences = {
        f"{question.left.name} and {question.right.name}": duel.ratio
        for question, duel in answers
        if duel is not None and duel.winner is not None
    }
    lines += [resolution_sentence(data), noise_caution(data, differences), because, data.remark]
    return [line for line in lines if line is not None]


def _one_sided(question: Question) -> str:
    sides = question.left, question.right
    missing = " and ".join(f"no {side.name}" for side in sides if not side.methods)
    pair = " and ".join(side.name for side in sides)
    # a side is of lossless methods that finished a prompt
    return f"{pair[0].upper()}{pair[1:]} are not compared: {missing} to compare."


def _warnings(run: RunRecords, data: Measurements) -> list[str]:
    cautions = [
        f"Caution: {m.name} departs from plain decoding by more than rounding explains ({count} "
        f"prompt{'s' * (count > 1)}); do not trust its numbers."
        for m in run.methods
        if m.lossless and (count := len(equality(run, data.sampling, m.name).bugs))
    ]
    turns = turns_caution(run, data)
    return cautions if turns is None else [*cautions, turns]


def _counted(run: RunRecords, data: Measurements) -> str:
    count, samples = len(data.prompts), data.samples
    of_samples = {
        "files": f" of {samples} files" * (samples != count),
        "batches": f" in {samples} batch{'es' * (samples != 1)} of {run.batch}",
        "prompts": f", {samples} of them different" * (samples != count),
    }[run.counted]
    return f"{count} prompt{'s' * (count != 1)}{of_samples}"


def _answer(duel: Comparison, data: Measurements, run: RunRecords) -> str:
    """One question, answered: the outcome, the choices with their ratio, and what holds for all pairs."""
    question, ratio = duel.question, duel.ratio
    several = [len(family.methods) > 1 for family in (question.left, question.right)]
    left, right = duel.left.family.best, duel.right.family.best
    chosen = "as chosen on half of such prompts"
    left = f"{left} ({duel.left.label}), {chosen}," if several[0] else _only(duel.left)
    if several == [True, True]:
        right = f"{right} so chosen ({duel.right.label})"
    elif several[1]:
        right = f"{right}, {chosen} ({duel.right.label})"
    else:
        right = _only(duel.right)
    measured = (
        f"{left} runs {ratio.estimate:.2f} times as fast as {right}, "
        f"{_interval(ratio, data)}, {_counted(run, data)}"
    )
    if not duel.enough:
        needed = max(samples_for(duel.at_once, duel.samples, SMALL_EFFECT), FEWEST_FOR_WINNER)
        return (
            f"No winner is named on fewer than {FEWEST_FOR_WINNER} {run.counted}: {measured}. With this "
            f"spread, about {needed} {run.counted} tell a difference of 5 % apart."
        )
    if duel.winner is None:
        return f"{question.undecided}: {measured}, and that contains 1."
    won = duel.winner is duel.left
    over_all = duel.left_over_all if won else duel.right_over_all
    rivals = question.right if won else question.left
    joint = ""
    if over_all is not None and over_all.pairs > 1:
        least = (
            f"{over_all.least:.{2 if over_all.least >= 1.005 else 4}f}"  # not "faster: 1.00 times"
        )
        joint = (
            f" {over_all.method} is faster than {rivals.every}: at least {least} times as fast, jointly "
            f"over {over_all.pairs} pairs."
        )
    return f"{question.won if won else question.lost}: {measured}.{joint}"


def _only(side: Side) -> str:
    """A side of one method in a sentence; plain decoding is named, as its methods' names say little."""
    name = side.family.methods[0]
    return f"{side.family.best} ({name})" if side.family.best == PLAIN_DECODING else name


def _interval(ratio: Interval, data: Measurements) -> str:
    kind = "95 % interval" if data.boundary is None else "repeated 95 % interval"
    digits = 2
    if 1 in (round(ratio.low, 2), round(ratio.high, 2)):
        digits = 3  # else a bound that rounds to 1 hides on which side of 1 it lies
    return f"{kind} {ratio.bounds(digits, between=' to ')}"
