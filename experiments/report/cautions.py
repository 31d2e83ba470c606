"""Cautions about comparisons that mean nothing, or less than they seem to: the rules and their sentences.

Resolution. A comparison whose interval includes both a gain and a loss of 10 % (it reaches below 1 / 1.1
and above 1.1) cannot resolve differences of the size that methods have. The half-width shrinks with the
square root of the number of prompts, which yields the number of prompts needed.

Drift. Machines slow down and speed up. Units are taken in the order in which they ran; the logarithm of the
step time, minus its mean for each method and sampling setting, is averaged over the methods of a unit and
regressed on the position in the run and on the length of the prompt. A trend counts if it is significant
(p < 0.01) and exceeds 5 % from the first unit to the last. The order of methods is drawn anew for each
unit, so ratios remain fair; tokens per second then mix several states of the machine.

Load. Where other processes used more than 10 % of the cores on average over a session, they took more time
from some methods than from others (`treespec.experiments.records.machine_load`).

Other conditions. A run may be resumed on another machine, or with other packages or code
(`treespec.experiments.records.changes`).

Turns. The data read by steps of other methods evicts from the processor's caches what plain decoding would
find there if it decoded a text alone, while trees may share much of what they read with other methods.
Observed where passes over one node had their own copy of the weights (36 MB beside 32 MiB of cache): plain
decoding alone took 0.67 (0.61-0.73) of its time in turns, trees 0.92 to 0.97 (at temperature 0, on the two
prompts that are also decoded alone). Reported if steps of plain decoding that follow other steps of plain
decoding are at least 10 % faster.
"""

from math import ceil, exp, log, sqrt
from typing import NamedTuple

import numpy as np
import polars as pl

from treespec.experiments.config.generation import unnamed_in_words
from treespec.experiments.records.changes import changes_of_machine
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.records.machine_load import IN_TURNS, NOT_RELIABLE, busy_sentence
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import ONE_LOOK, student
from treespec.search.intervals import Interval

SMALLEST_EFFECT = 1.1

LEAST_UNITS, LEAST_DRIFT, SIGNIFICANCE = 8, 0.05, 0.01

FEWEST_STEPS_BEHIND = 2
"""Consecutive steps of plain decoding, by any copy, after which its next step finds warm caches."""

LEAST_STEPS, LEAST_GAIN = 20, 0.1
"""Fewest steps of each kind, and smallest share of the step time gained, for a caution about turns."""


def samples_for(ratio: Interval, samples: int, effect: float) -> int:
    """Number of samples with which half the interval, on the logarithmic scale, is as wide as an effect.

    Example:
        >>> samples_for(Interval(1.0, 0.8, 1.25), 12, 1.1)
        53
    """
    half_width = log(ratio.high / ratio.low) / 2  # `ratio` has the interval of a single look
    # with many samples, Student's t comes down to the normal quantile
    return ceil(samples * (half_width * ONE_LOOK / student(ONE_LOOK, samples) / log(effect)) ** 2)


def prompts_to_tell(ratio: Interval, samples: int) -> int | None:
    """Number of samples with which an interval resolves 10 %; None if it does, or has no bounds.

    Example:
        >>> prompts_to_tell(Interval(1.0, 0.8, 1.25), 12)
        53
        >>> prompts_to_tell(Interval(1.5, 1.2, 1.9), 12) is None
        True
    """
    if (
        not ratio.bounded
        or ratio.low <= 0
        or ratio.low >= 1 / SMALLEST_EFFECT
        or ratio.high <= SMALLEST_EFFECT
    ):
        return None
    return samples_for(ratio, samples, SMALLEST_EFFECT)


def spread_caution(ratio: Interval, samples: int, unit: str = "prompts") -> str | None:
    """A sentence if an interval over so many samples is too wide for its comparison to mean anything."""
    needed = prompts_to_tell(ratio, samples)
    if needed is None:
        return None
    return (
        "Caution: the two cannot be told apart here: the interval includes both a gain and a loss of "
        f"10 %. This does not show that they are equal; with this spread it takes about {needed} {unit}."
    )


class Drift(NamedTuple):
    """A trend of the step time over the run: 0.1 is 10 % slower at the end.

    `p` is the probability of a trend at least this large without drift.
    """

    change: float
    p: float
    units: int


def drift(run: RunRecords) -> Drift | None:
    """The trend of a run.

    None with fewer than `LEAST_UNITS` units, or if it cannot be separated from the length of the prompts.
    """
    from scipy.special import stdtr

    order = {s["name"]: i for i, s in enumerate(run.manifest["samplings"])}
    batch = pl.col("prompt") // run.batch
    rows = run.prompts.filter(pl.col("error").is_null(), pl.col("steps") > 0).with_columns(batch)
    rows = rows.sort("decode_s", "steps")  # the last bits of a mean depend on the order of rows
    units = (
        rows.with_columns(
            (pl.col("decode_s") / pl.col("steps")).log().alias("time"),
            pl.col("sampling").replace_strict(order, default=0).alias("setting"),
        )
        .filter(pl.col("time").is_finite())
        .with_columns(pl.col("time") - pl.col("time").mean().over("method", "sampling"))
        .sort("time")
        .group_by("repeat", "prompt", "setting", "sampling", maintain_order=True)
        .agg(pl.col("time").mean(), pl.col("prompt_tokens").first())
    )
    starts = (
        run.steps.with_columns(batch)
        .group_by("prompt", "sampling", "repeat")
        .agg(pl.col("at_s").min())
    )
    units = units.join(starts, on=["prompt", "sampling", "repeat"], how="left").sort(
        "at_s", "repeat", "prompt", "setting", nulls_last=True
    )
    if len(units) < LEAST_UNITS:
        return None
    columns = [np.ones(len(units)), np.linspace(0.0, 1.0, len(units))]
    lengths = units["prompt_tokens"].to_numpy().astype(float)
    if np.ptp(lengths) > 0:
        columns.append((lengths - lengths.mean()) / lengths.std())
    design, values = np.stack(columns, axis=1), units["time"].to_numpy()
    slopes, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    if rank < len(columns):
        return None
    degrees, residual = len(units) - len(columns), values - design @ slopes
    variance = float(residual @ residual) / degrees * np.linalg.inv(design.T @ design)[1, 1]
    slope, error = float(slopes[1]), sqrt(max(variance, 1e-24))
    return Drift(exp(slope) - 1, 2 * float(stdtr(degrees, -abs(slope) / error)), len(units))


def drift_caution(run: RunRecords) -> str | None:
    trend = drift(run)
    if trend is None or trend.p >= SIGNIFICANCE or abs(trend.change) <= LEAST_DRIFT:
        return None
    word = "more" if trend.change > 0 else "less"
    percent = f"{100 * abs(trend.change):.0f} %"
    p = "< 0.001" if trend.p < 0.001 else f"= {trend.p:.3f}"
    return (
        f"Caution: the machine drifted: the same steps took {percent} {word} time at the end of the run "
        f"than at its beginning (p {p}, {trend.units} units). Methods took turns in random "
        "order, so ratios are fair; tokens per second mix different states of the machine."
    )


def turns_caution(run: RunRecords, data: Measurements) -> str | None:
    if run.manifest.get("together", 1) == 1 or not data.prompts:
        return None
    plain = {m.name for m in data.methods if m.kind == "plain"}
    plain |= {twin for twin, name in run.twins.items() if name in plain}
    steps = run.all_rounds.filter(pl.col("sampling") == data.sampling).sort("at_s")
    is_plain = steps["method"].is_in(list(plain)).to_numpy()
    seconds = steps["step_s"].to_numpy()
    # alternating stretches of steps: of plain decoding, and of other methods
    starts = np.flatnonzero(np.diff(is_plain, prepend=~is_plain[:1]))
    position = np.arange(len(is_plain)) - np.repeat(starts, np.diff(starts, append=len(is_plain)))
    not_first = is_plain & (steps["step"] > 0).to_numpy()
    after_plain = seconds[not_first & (position >= FEWEST_STEPS_BEHIND)]
    after_others = seconds[not_first & (position == 0)]
    if min(len(after_plain), len(after_others)) < LEAST_STEPS:
        return None
    ratio = np.median(after_plain) / np.median(after_others)
    if ratio > 1 - LEAST_GAIN:
        return None
    return (
        f"Caution: turns flatter trees and chains here. Behind {FEWEST_STEPS_BEHIND} or more steps of "
        f"plain decoding a step of it took {ratio:.2f} of the time that it took after other methods: "
        "plain decoding by itself is faster than in this run. (What other methods read drives what it "
        "reads out of the processor's caches; a model about as large as these feels it.)"
    )


def machine_caution(run: RunRecords) -> str | None:
    manifest = run.manifest
    sessions = manifest.get("sessions") or []
    changes = [change for session in sessions for change in changes_of_machine(manifest, session)]
    commits = dict.fromkeys(str(session.get("git_hash")) for session in sessions)
    if len(commits) > 1:
        changes.append(f"git_hash: {' -> '.join(commits)}")
    if not changes:
        return None
    shown = "; ".join(dict.fromkeys(changes))
    return (
        f"Caution: the run was resumed under other conditions ({shown}): its prompts were not all measured "
        "under the same ones, and the table names those of the start."
    )


def synthetic_caution(run: RunRecords) -> str | None:
    names = ", ".join(method.name for method in run.methods if method.synthetic)
    return (
        f"Caution: texts are meaningless: acceptance of {names} is given by rates."
        if names
        else None
    )


def generation_caution(run: RunRecords) -> str | None:
    note = unnamed_in_words(run.manifest.get("generation_config") or {})
    return None if note is None else f"{note}."


def load_caution(run: RunRecords) -> str | None:
    loads = [session.get("busy_percent") for session in run.manifest.get("sessions") or []]
    span = "the run" if len(loads) == 1 else f"one of the {len(loads)} sessions of the run"
    in_turns = run.manifest.get("together", 1) > 1 and len(run.methods) > 1
    consequence = IN_TURNS if in_turns else NOT_RELIABLE
    highest = max((load for load in loads if load is not None), default=None)
    return busy_sentence(highest, span, consequence)
