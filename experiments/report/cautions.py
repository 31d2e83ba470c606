"""When a comparison is meaningless, or less than it seems: six rules, and what they say.

Resolution. A comparison whose interval holds both a gain and a loss of a tenth (it reaches below 1 / 1.1
and above 1.1) does not tell effects of the size that methods differ by. The half-width shrinks with the
square root of the number of prompts, which gives the number that would do.

Drift. Machines slow down and speed up. Units are taken in the order in which they ran; the logarithm of the
time of a step, less its mean for each method and sampling setting, is averaged over the methods of a unit
and regressed on the place in the run and on the length of the prompt. A trend counts if it is significant
(p < 0.01) and makes more than 5 % from the first unit to the last. Methods run in an order drawn anew for
each unit, so that ratios stay fair; tokens per second are then not those of one machine.

Load. Where other processes used more than 10 % of the cores, in the mean of a session, they took time from
some methods more than from others (`treespec.experiments.records.machine_load`).

Few nodes. A pass over fewer nodes is less work, but may take longer: torch multiplies 2 to 4 rows of
float32 by code for matrices, which on a CPU with AVX-512 took 1.3 to 2.0 times the time of 5 rows (products
of 640 x 1728, two cores, medians of 25). Small trees and short chains then lose what no engine would take
from them. Told where one tree's pass takes at least a tenth more than that of a larger one, and the
interval of the ratio says so.

Turns. What the steps of other methods read drives out of the processor's caches what plain decoding would
find there if a text were decoded by it alone, while trees may read much that others read. Seen where passes
over one node had a copy of the weights of their own (36 MB beside 32 MiB): plain decoding alone took 0.67
(0.61-0.73) of its time in turns, trees 0.92 to 0.97 (at temperature 0, on the two prompts that are also
decoded alone). Told where steps of plain decoding behind steps of plain decoding are a tenth quicker.
"""

from dataclasses import dataclass
from math import ceil, exp, isfinite, log, sqrt

import numpy as np
import polars as pl

from treespec.experiments.records.changes import changes_of_machine
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.records.machine_load import IN_TURNS, NOT_RELIABLE, busy_sentence
from treespec.experiments.report.explanation import explain
from treespec.experiments.report.measurements import Measurements
from treespec.search.intervals import Interval

__all__ = [
    "LEAST_UNITS",
    "Drift",
    "drift",
    "drift_caution",
    "few_nodes_caution",
    "load_caution",
    "machine_caution",
    "prompts_to_tell",
    "spread_caution",
    "turns_caution",
]

SMALLEST_EFFECT = 1.1
"""The smallest ratio that a comparison should tell from 1."""

LEAST_UNITS, LEAST_DRIFT, SIGNIFICANCE = 8, 0.05, 0.01

DEARER_RATIO = 1.1
"""A pass over fewer nodes is mentioned if it takes so many times as long as one over more."""


FEWEST_STEPS_BEHIND = 2
"""Steps of plain decoding, by any copy of it, behind which a step of it finds caches filled for it."""

LEAST_STEPS, LEAST_GAIN = 20, 0.1
"""Steps of each kind that are needed, and the share of its time that makes a caution."""


def prompts_to_tell(ratio: Interval, prompts: int) -> int | None:
    """Prompts at which the interval would be narrow enough; None if it is already, or there is none.

    Example:
        >>> prompts_to_tell(Interval(1.0, 0.8, 1.25), 12)
        66
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
    half = log(ratio.high / ratio.low) / 2
    return ceil(prompts * (half / log(SMALLEST_EFFECT)) ** 2)


def spread_caution(what: str, ratio: Interval, samples: int, unit: str = "prompts") -> str | None:
    """A sentence if an interval is too wide for its comparison to mean anything.

    Args:
        what: is compared.
        ratio: of the comparison.
        samples: that it rests on.
        unit: what these are: prompts, or files.
    """
    needed = prompts_to_tell(ratio, samples)
    if needed is None:
        return None
    return (
        f"Caution: {what} cannot be told apart here: the interval includes both a gain and a loss of "
        f"10 %. This does not show that they are equal; with this spread it takes about {needed} {unit}."
    )


@dataclass(frozen=True)
class Drift:
    """A trend of the time of a step over the run.

    Args:
        change: of the time from the first unit to the last: 0.1 is 10 % slower at the end.
        p: of so large a trend without drift.
        units: that it rests on.
    """

    change: float
    p: float
    units: int

    @property
    def matters(self) -> bool:
        """Whether it is significant and large enough to be mentioned."""
        return self.p < SIGNIFICANCE and abs(self.change) > LEAST_DRIFT


def drift(run: RunRecords) -> Drift | None:
    """The trend of a run; None with fewer than `LEAST_UNITS` units, or where it cannot be told.

    It cannot where prompts get longer with the place in the run.
    """
    order = {s["name"]: i for i, s in enumerate(run.manifest["samplings"])}
    rows = run.prompts.filter(pl.col("error").is_null(), pl.col("steps") > 0)
    units = (
        rows.with_columns(
            (pl.col("decode_s") / pl.col("steps")).log().alias("time"),
            pl.col("sampling").replace_strict(order, default=0).alias("place"),
        )
        .filter(pl.col("time").is_finite())
        .with_columns(pl.col("time") - pl.col("time").mean().over("method", "sampling"))
        .group_by("repeat", "prompt", "place")
        .agg(pl.col("time").mean(), pl.col("prompt_tokens").first())
        .sort("repeat", "prompt", "place")
    )
    if len(units) < LEAST_UNITS:
        return None
    at = np.linspace(0.0, 1.0, len(units))
    lengths = units["prompt_tokens"].to_numpy().astype(float)
    columns = [np.ones_like(at), at]
    if np.ptp(lengths) > 0:
        columns.append((lengths - lengths.mean()) / lengths.std())
    return _trend(np.stack(columns, axis=1), units["time"].to_numpy())


def drift_caution(run: RunRecords) -> str | None:
    """A sentence if the machine drifted while the run was measured."""
    trend = drift(run)
    if trend is None or not trend.matters:
        return None
    word = "more" if trend.change > 0 else "less"
    percent = f"{100 * abs(trend.change):.0f} %"
    return (
        f"Caution: the machine drifted: the same steps took {percent} {word} time at the end of the run "
        f"than at its beginning (p {_p(trend.p)}, {trend.units} units). Methods took turns in random "
        "order, so ratios are fair; tokens per second mix different states of the machine."
    )


def few_nodes_caution(run: RunRecords, data: Measurements) -> str | None:
    """A sentence if a pass over fewer nodes took longer than one over more.

    Args:
        run: with what is known of the target's passes.
        data: of one of its sampling settings.
    """
    nodes = {
        m.name: m.draft_tokens + 1
        for m in data.methods
        if m.draft_tokens and (m.name, "verify_s") in data.values
    }
    if not data.prompts:
        return None
    passes = {
        name: data.values[name, "verify_s"].sum() / data.values[name, "steps"].sum()
        for name in nodes
    }
    dearer = {
        (few, more): ratio
        for few in nodes
        for more in nodes
        if nodes[few] < nodes[more] and (ratio := passes[few] / passes[more]) >= DEARER_RATIO
    }
    for few, more in sorted(dearer, key=lambda pair: -dearer[pair]):
        explained = explain(data, few, more)
        if explained is None or explained.factors["verify"].high >= 1:
            continue
        longer = explained.factors["verify"].inverse()
        target = run.manifest["models"]["target"]
        kind = (target.get("passes") or {}).get("kind", "eager")
        way_out = " (models.passes=compiled may not)" if kind == "eager" else ""
        return (
            f"Caution: verifying {nodes[few]} nodes ({few}) takes {longer.estimate:.2f} times as long "
            f"as {nodes[more]} ({more}), 95 % interval {longer.bounds(between=' to ')}: "
            f"{kind} passes in {target['dtype']} handle so few rows badly on this machine{way_out}. Short "
            "chains and small trees lose by it what they need not lose elsewhere."
        )
    return None


def turns_caution(run: RunRecords, data: Measurements) -> str | None:
    """Whether plain decoding pays in turns for the other methods, as a sentence; None if it does not.

    Args:
        run: with the steps of all methods.
        data: of the sampling setting.
    """
    if run.manifest.get("together", 1) == 1 or not data.prompts:
        return None
    plain = {m.name for m in data.methods if m.kind == "plain"}
    plain |= {twin for twin, name in run.twins.items() if name in plain}
    steps = run.all_steps.filter(pl.col("sampling") == data.sampling).sort("at_s")
    mine = steps["method"].is_in(list(plain)).to_numpy()
    seconds = steps["step_s"].to_numpy()
    begins = np.flatnonzero(np.diff(mine, prepend=~mine[:1]))
    place = np.arange(len(mine)) - np.repeat(begins, np.diff(begins, append=len(mine)))
    later = mine & (steps["step"] > 0).to_numpy()
    after_itself, others = (
        seconds[later & (place >= FEWEST_STEPS_BEHIND)],
        seconds[later & (place == 0)],
    )
    if min(len(after_itself), len(others)) < LEAST_STEPS:
        return None
    ratio = np.median(after_itself) / np.median(others)
    if ratio > 1 - LEAST_GAIN:
        return None
    return (
        f"Caution: turns flatter trees and chains here. Behind {FEWEST_STEPS_BEHIND} or more steps of "
        f"plain decoding a step of it took {ratio:.2f} of the time that it took behind other methods: "
        "plain decoding by itself is faster than in this run. (What other methods read drives what it "
        "reads out of the processor's caches; a model about as large as these feels it.)"
    )


def machine_caution(run: RunRecords) -> str | None:
    """A sentence if the run was resumed on another machine, or with other packages or code."""
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


def load_caution(run: RunRecords) -> str | None:
    """A sentence if other processes used the CPU while the run was measured; of the worst session."""
    loads = [session.get("busy_percent") for session in run.manifest.get("sessions") or []]
    part = "the run" if len(loads) == 1 else f"one of the {len(loads)} sessions of the run"
    in_turns = run.manifest.get("together", 1) > 1 and len(run.methods) > 1
    means = IN_TURNS if in_turns else NOT_RELIABLE
    most = max((load for load in loads if load is not None), default=None)
    return busy_sentence(most, part, means)


def _trend(design: np.ndarray, values: np.ndarray) -> Drift | None:
    """Least squares; the second column is the place in the run."""
    from scipy.special import stdtr

    units, parameters = design.shape
    free = units - parameters
    if free < 3 or np.linalg.matrix_rank(design) < parameters:
        return None
    inverse = np.linalg.inv(design.T @ design)
    slopes = inverse @ design.T @ values
    residual = values - design @ slopes
    error = sqrt(float(residual @ residual) / free * inverse[1, 1])
    slope = float(slopes[1])
    if error <= 1e-12 * max(1.0, abs(slope)):  # the same time everywhere, or a line without noise
        return Drift(exp(slope) - 1, 0.0 if abs(slope) > 1e-9 else 1.0, units)
    p = 2 * float(stdtr(free, -abs(slope) / error))
    return Drift(exp(slope) - 1, p, units) if isfinite(p) else None


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
