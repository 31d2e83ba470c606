"""`treespec estimate`: acceptance rates with intervals, from a trace or from the steps of a run."""

import json
import warnings
from pathlib import Path
from typing import Any

from treespec.experiments.config.files import require_there, require_within
from treespec.experiments.errors import ConfigError
from treespec.experiments.records.loading import Method, RunRecords, accepted_nodes
from treespec.experiments.report.table import NONE, Cell, Column, Table
from treespec.experiments.search_then_run.replays import RECORDING, read_shapes
from treespec.search import (
    AcceptanceEstimate,
    SmallSample,
    Trace,
    calibration_data,
    estimate_acceptance,
)
from treespec.search.intervals import Interval
from treespec.search.rates.counts import UNKNOWN, Records
from treespec.search.rates.reliability import reliability
from treespec.search.rates.support import MOST_LEVELS
from treespec.tree import Law, TreeShape

__all__ = [
    "LEVELS_SHOWN",
    "calibration_error",
    "counts_from_run",
    "estimate",
    "estimate_json",
    "estimate_table",
    "levels_left_out",
]


LEVELS_SHOWN = 8
"""Levels that are printed by default."""

ABOUT = ("name", "models", "prompts_hash", "hardware", "versions", "seed")
"""Facts about the run that an estimate repeats."""


def estimate(
    source: Path,
    *,
    method: str | None = None,
    sampling: str | None = None,
    tree: str | None = None,
    starts: str | None = None,
    **options: Any,
) -> AcceptanceEstimate:
    """Estimate acceptance rates from a trace or from a run; warnings are stored in the estimate.

    Args:
        source: a trace (`.npz`), or the folder of a run.
        method: for a run, the tree method whose steps count.
        sampling: for a run, the sampling setting whose steps count.
        tree: the one tree that the rates are for, as `replays.read_shapes` reads it.
        starts: for a trace, the one tree whose steps alone count, in the same notation.
        options: see `treespec.search.estimate_acceptance`.

    Raises:
        ConfigError, RunFolderError, InvalidTrace, InvalidLimit: if an option or a file is invalid; the
            message names it.
    """
    for name in ("depth", "ranks"):
        require_within(f"--{name}", options.get(name), 1, MOST_LEVELS)
    rates_for, steps_of = _shape("--for", tree), _shape("--starts", starts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallSample)  # the estimate holds them, and prints them
        return estimate_acceptance(
            _read(source, method, sampling), tree=rates_for, starts=steps_of, **options
        )


def calibration_error(source: Path) -> float | None:
    """The mean distance between the draft's probabilities and acceptance, over ten bins of probabilities.

    This is the expected calibration error of `treespec.search.rates.reliability`, over all drafted children
    of the kept positions.

    Args:
        source: a trace, or the folder of a run, as in `estimate`.

    Returns:
        The error, or None unless `source` is a trace of deterministic children: children of other laws are
        not accepted with the draft's probability.
    """
    if source.is_dir():
        return None
    trace = Trace.load(source)
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


def estimate_table(estimate: AcceptanceEstimate, levels: int | None = None) -> Table:
    """Rates with intervals and counts: a row for each child, or for each level of rates by depth.

    Args:
        estimate: the rates.
        levels: number of levels to show of rates by depth; None for all.
    """
    choices = [estimate.source, f"{estimate.interval} intervals"]
    choices += ["isotonic over ranks"] * estimate.monotone
    if estimate.shrinkage:
        choices.append(f"levels shrunk to their mean by {estimate.shrinkage:g} counts")
    title, caption = f"law {estimate.law}, rule {estimate.rule}", ", ".join(choices)
    if estimate.by == "depth":
        columns, rows = _level_columns(estimate), list(range(len(estimate.rates)))[:levels]
        title = f"{title}: rates by depth, and {estimate.level:.0%} intervals below them"
    else:
        columns, rows = _child_columns(estimate), list(range(len(estimate.rates)))
    return Table("", columns, rows, title=title, said=caption)


def levels_left_out(estimate: AcceptanceEstimate, levels: int | None) -> str | None:
    """A sentence that names the levels which `estimate_table` does not show; None if it shows all."""
    count = len(estimate.rates)
    if estimate.by == "rank" or levels is None or count <= levels:
        return None
    hidden = f"Level {count} is" if count == levels + 1 else f"Levels {levels + 1} to {count} are"
    return f"{hidden} not shown; --all shows every level, and --json and --out contain them."


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


def _read(source: Path, method: str | None, sampling: str | None) -> Trace | Records:
    if source.is_dir():
        if method is None or sampling is None:
            raise ConfigError(
                f"{source} is a folder: name a tree method and a sampling setting of the run with --method "
                "and --sampling"
            )
        return counts_from_run(source, method, sampling)
    if method is not None or sampling is not None:
        raise ConfigError(
            "--method and --sampling select steps of a run: leave them out for a trace"
        )
    require_there(source, "", RECORDING)
    return Trace.load(source)


def _shape(option: str, text: str | None) -> TreeShape | None:
    """The single tree that an option names; None without the option."""
    if text is None:
        return None
    try:
        shapes = list(read_shapes(text).values())
    except ConfigError as error:
        raise ConfigError(f"{option}{str(error).removeprefix('--shapes')}") from None
    if len(shapes) > 1:
        raise ConfigError(f"{option} {text}: name one tree, not {len(shapes)}")
    return shapes[0]


def counts_from_run(folder: Path, method: str, sampling: str) -> Records:
    """Read the steps of a tree method under one sampling setting: tree and accepted nodes, by prompt.

    Args:
        folder: folder of a run, finished or not.
        method: name of the method in the manifest.
        sampling: name of the setting, such as `T=0`.

    Raises:
        RunFolderError: if the folder is not a run, or `path_ranks` do not fit the method's tree.
        ConfigError: if the method or setting does not exist, the method has no fixed tree, or it has no
            steps.
    """
    run = RunRecords.load(folder)
    described = _method(run, method)
    names = [setting["name"] for setting in run.manifest["samplings"]]
    if sampling not in names:
        raise ConfigError(
            f"sampling = {sampling!r}, but the settings of {folder} are: {', '.join(names)}"
        )
    assert described.parents is not None
    shape = TreeShape(described.parents)
    setting = dict(run.manifest["samplings"][names.index(sampling)])
    texts: dict[int, list[tuple[TreeShape, tuple[int, ...]]]] = {}
    for prompt, node in accepted_nodes(run, described, sampling):
        texts.setdefault(prompt, []).append((shape, shape.path(node)))
    if not texts:
        raise ConfigError(f"{folder} has no step of {method!r} under {sampling}")
    about = {key: run.manifest[key] for key in ABOUT if key in run.manifest}
    return Records(
        tuple(map(tuple, texts.values())),
        described.law.get(sampling, UNKNOWN),
        described.rule.get(sampling, UNKNOWN),
        {key: value for key, value in setting.items() if key != "name"},
        about | {"method": method, "sampling": sampling},
    )


def _method(run: RunRecords, name: str) -> Method:
    trees = {m.name: m for m in run.methods if m.kind == "tree" and m.parents is not None}
    if name not in trees:
        raise ConfigError(
            f"method = {name!r}, but the methods of {run.folder} with a fixed tree are: "
            f"{', '.join(map(repr, trees)) or 'none'}"
        )
    return trees[name]
