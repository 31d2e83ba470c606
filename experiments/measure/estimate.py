"""`treespec estimate`: acceptance rates with intervals, from a trace."""

import json
import warnings
from pathlib import Path
from typing import Any

from treespec.experiments.config.files import require_within
from treespec.experiments.report.table import NONE, Cell, Column, Table
from treespec.search import (
    AcceptanceEstimate,
    SmallSample,
    Trace,
    calibration_data,
    estimate_acceptance,
)
from treespec.search.intervals import Interval
from treespec.search.traces.calibration import reliability
from treespec.search.traces.support import MOST_LEVELS
from treespec.tree import Law

LEVELS_SHOWN = 8


def estimate(source: Path, **options: Any) -> tuple[AcceptanceEstimate, float | None]:
    """The acceptance rates of a trace, with warnings stored in them, and its `calibration_error`.

    `options` are those of `treespec.search.estimate_acceptance`.
    """
    for name in ("depth", "ranks"):
        require_within(f"--{name}", options.get(name), 1, MOST_LEVELS)
    trace = Trace.load(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallSample)  # the estimate holds them, and prints them
        return estimate_acceptance(trace, **options), calibration_error(trace)


def calibration_error(trace: Trace) -> float | None:
    """The mean distance between the draft's probabilities and acceptance, over ten bins of probabilities.

    This is the expected calibration error of `search.traces.calibration`, over all drafted children
    of the kept positions; None unless the trace is of deterministic children of a model, since children of
    other laws are not accepted with the draft's probability.
    """
    if Law.of(trace.law) is not Law.DETERMINISTIC or trace.text_drafts is not None:
        return None
    data = calibration_data(trace)
    return reliability(data.predicted, data.exact).expected_error


def estimate_json(estimate: AcceptanceEstimate, error: float | None) -> str:
    """The estimate as `treespec estimate --json` prints it, with `expected_calibration_error` (or null).

    `AcceptanceEstimate.from_json` reads this text too.
    """
    body = estimate.to_json().rstrip().removesuffix("}").rstrip()
    return f'{body},\n  "expected_calibration_error": {json.dumps(error)}\n}}'


def estimate_table(estimate: AcceptanceEstimate, levels: int) -> Table:
    """Rates with intervals and counts: a row for each child, or for each of so many levels."""
    choices = [estimate.source, f"{estimate.interval} intervals"]
    if estimate.shrinkage:
        choices.append(f"levels shrunk to their mean by {estimate.shrinkage:g} counts")
    title, rows = f"law {estimate.law}, rule {estimate.rule}", list(range(len(estimate.rates)))
    captions = [", ".join(choices)]
    if estimate.by == "depth":
        columns = _level_columns(estimate)
        if len(rows) > levels:
            captions.append(
                f"levels {levels + 1} to {len(rows)} are not shown: --depth {len(rows)} shows them, and "
                "--json and --out contain them"
            )
        rows = rows[:levels]
        title = f"{title}: rates by depth, and {estimate.level:.0%} intervals below them"
    else:
        columns = _child_columns(estimate)
    return Table("", columns, rows, title=title, said="\n".join(captions))


def _child_columns(estimate: AcceptanceEstimate) -> tuple[Column[int], ...]:
    return (
        Column("depth", lambda child: "all"),
        Column("child", lambda child: str(child + 1)),
        Column("rate", lambda child: f"{estimate.rates[child]:.3f}"),
        Column(
            f"{estimate.level:.0%} interval",
            lambda child: _interval(estimate, child).bounds(3),
        ),
        Column("accepted", lambda child: str(estimate.hits[child])),
        Column("of", lambda child: str(estimate.trials[child])),
    )


def _level_columns(estimate: AcceptanceEstimate) -> tuple[Column[int], ...]:
    """Columns of the level, the number of nodes that had a first child, and each child."""

    def column(child: int) -> Column[int]:
        def cell(level: int) -> Cell:
            at = level, child
            if not estimate.trials[at]:
                return Cell(NONE)
            bounds = _interval(estimate, at).bounds().replace("0.", ".")
            return Cell(f"{estimate.rates[at]:.3f}", below=bounds)

        return Column(f"child {child + 1}", cell, part="further children")

    return (
        Column("depth", lambda level: str(level + 1)),
        Column("of", lambda level: str(estimate.trials[level, 0])),
        *map(column, range(estimate.rates.shape[1])),
    )


def _interval(estimate: AcceptanceEstimate, at: int | tuple[int, int]) -> Interval:
    return Interval(float(estimate.rates[at]), float(estimate.low[at]), float(estimate.high[at]))
