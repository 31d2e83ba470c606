"""What search predicted beside what the run measured: every static tree of a run, and plain decoding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from treespec.experiments.config.file import validated
from treespec.experiments.config.schema import SearchConfig
from treespec.experiments.report.measurements import measure
from treespec.experiments.report.run import Method, Run
from treespec.experiments.report.statistics import Interval, bootstrap
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.search_then_run.between import load_between
from treespec.search import LatencyModel, Trace
from treespec.search.latency.errors import NotMeasured
from treespec.search.latency.pace import pace, step_at_pace_s
from treespec.search.rates.replay import replay
from treespec.tree import TreeShape

if TYPE_CHECKING:
    from treespec.experiments.search_then_run.measured import Measured

__all__ = [
    "Prediction",
    "chosen",
    "first_ranked",
    "median_errors",
    "pace_of",
    "predictions",
]


@dataclass(frozen=True)
class Prediction:
    """One tree under one sampling setting.

    Args:
        method: name.
        sampling: name of the setting.
        tokens: predicted tokens per step, by replay of what was recorded on other texts.
        tokens_measured: emitted tokens per step of the run.
        step_s: predicted seconds of a step, by the times from before the run.
        step_measured_s: those of the run.
        step_at_pace_s: predicted, if the stages take as much longer than before the run as the same parts
            did when they were timed again between its prompts; None if they were not.
    """

    method: str
    sampling: str
    tokens: Interval
    tokens_measured: Interval
    step_s: float
    step_measured_s: float
    step_at_pace_s: float | None = None

    @property
    def speed(self) -> float:
        """Predicted tokens per second, as search saw them: by the times from before the run."""
        return self.tokens.estimate / self.step_s

    @property
    def speed_at_pace(self) -> float | None:
        """Predicted tokens per second at the pace that the machine had during the run."""
        return self.step_at_pace_s and self.tokens.estimate / self.step_at_pace_s

    @property
    def speed_measured(self) -> float:
        """Measured tokens per second."""
        return self.tokens_measured.estimate / self.step_measured_s

    @property
    def tokens_error(self) -> float:
        """Relative error of the predicted tokens per step."""
        return self.tokens.estimate / self.tokens_measured.estimate - 1

    @property
    def speed_error(self) -> float:
        """Relative error of the predicted tokens per second."""
        return self.speed / self.speed_measured - 1

    @property
    def speed_error_at_pace(self) -> float | None:
        """Relative error of `speed_at_pace`."""
        return self.speed_at_pace and self.speed_at_pace / self.speed_measured - 1


def predictions(run: Run) -> list[Prediction]:
    """All trees that what was recorded before the run covers; none if nothing was, or it is not there.

    Tokens per step count what steps emit, also past the budget, on both sides.

    Raises:
        RunFolderError, InvalidTrace, InvalidLatency: if a file is damaged.
    """
    measured = _measured(run)
    if measured is None:
        return []
    timed = pace_of(run)
    found = [
        _row(run, method, shape, sampling["name"], measured, timed and timed[1])
        for sampling in run.manifest["samplings"]
        for method in run.methods
        if (shape := _shape(method)) is not None
    ]
    return [row for row in found if row is not None]


def pace_of(run: Run) -> tuple[int, dict[str, float]] | None:
    """Rounds of timing between the prompts of a run, and its pace by stage (see
    `treespec.search.latency.pace`).

    Returns:
        None if nothing was timed there, or fewer than half of the rounds that the config asks for: the end
        of a run that was begun without them says nothing of the rest.

    Raises:
        RunFolderError, InvalidLatency: if a file is damaged.
    """
    config, folder = run.manifest["config"], run.folder / "search"
    if config.get("search") is None or not (later := load_between(folder)):
        return None
    units = run.prompts.select("prompt", "sampling", "repeat").n_unique()
    wanted = config["search"].get("between", SearchConfig.model_fields["between"].default)
    if 2 * len(later) < min(wanted, units):
        return None
    return len(later), pace(LatencyModel.load(folder / "latency.json"), later)


def median_errors(rows: Sequence[Prediction]) -> tuple[float, float, float | None]:
    """Medians of the absolute relative errors: of tokens per step, and of tokens per second.

    Returns:
        The last are by the times from before the run, and at the pace of the machine during it; None if
        that was not measured.
    """
    at_pace = [abs(row.speed_error_at_pace) for row in rows if row.speed_error_at_pace is not None]
    return (
        median(abs(row.tokens_error) for row in rows),
        median(abs(row.speed_error) for row in rows),
        median(at_pace) if at_pace else None,
    )


def first_ranked(rows: Sequence[Prediction]) -> tuple[Prediction, Prediction]:
    """The tree predicted to be fastest, and the one that was."""
    return max(rows, key=lambda row: row.speed), max(rows, key=lambda row: row.speed_measured)


def chosen(run: Run, sampling: str) -> tuple[str, str, Interval] | None:
    """What search chose for a setting, the fastest lossless method of the run, and their speeds' ratio.

    Returns:
        Their names, and tokens per second of the choice over those of the fastest; None if the config asks
        for no `best` tree, or it did not finish.
    """
    asked = [
        m
        for m in run.manifest["config"].get("methods", ())
        if m.get("shape", {}).get("kind") == "best"
    ]
    starts = [f"{m.get('name') or 'best'} for {sampling}" for m in asked]
    data = measure(run, sampling)
    names = [m.name for m in data.methods if m.lossless]
    own = [n for n in names if any(n == s or n.startswith(f"{s}: ") for s in starts)]
    if not own or not data.prompts:
        return None
    best = max(names, key=data.rate)
    return own[0], best, speed_ratio(data.bootstrap(), own[0], best)


def _measured(run: Run) -> "Measured | None":
    if run.manifest["config"].get("search") is None or not (run.folder / "search").is_dir():
        return None
    from treespec.experiments.search_then_run.measured import load_measured

    config = validated(run.folder / "manifest.json", run.manifest["config"])
    return load_measured(config, run.folder / "search")


def _shape(method: Method) -> TreeShape | None:
    """The tree of every step: that of plain decoding is its root."""
    if method.kind == "plain":
        return TreeShape.chain(0)
    return None if method.parents is None else TreeShape(method.parents)


def _row(
    run: Run,
    method: Method,
    shape: TreeShape,
    sampling: str,
    measured: "Measured",
    paces: Mapping[str, float] | None,
) -> Prediction | None:
    import polars as pl

    usual = measured.default_law(sampling)
    law = usual if method.kind == "plain" else method.law[sampling]
    trace = measured.trace(sampling, law, shape.is_chain)
    prompts = measure(run, sampling).prompts
    rows = run.prompts.filter(
        pl.col("sampling") == sampling,
        pl.col("method") == method.name,
        pl.col("prompt").is_in(list(prompts)),
        pl.col("error").is_null(),
    )
    if trace is None or not _covered(shape, trace, measured.search) or not len(rows):
        return None
    times = measured.latency
    try:
        timed = _timed(times, law)
        step_s = times.step_s(shape, measured.prefix, law=timed)
        at_pace = step_at_pace_s(times, shape, paces, measured.prefix, law=timed) if paces else None
    except NotMeasured:  # wider or larger than what was timed
        return None
    sums = rows.group_by("prompt").agg(pl.sum("emitted", "steps", "decode_s")).sort("prompt")
    columns = {name: sums[name].to_numpy().astype(float) for name in ("emitted", "steps")}
    columns["seconds"] = sums["decode_s"].to_numpy()
    totals = bootstrap(columns)
    again = replay(trace, shape).interval()
    return Prediction(
        method.name,
        sampling,
        Interval(again.estimate, again.low, again.high),
        totals.ratio(["emitted"], ["steps"]),
        step_s,
        totals.ratio(["seconds"], ["steps"]).estimate,
        at_pace,
    )


def _covered(shape: TreeShape, trace: Trace, search: SearchConfig) -> bool:
    """Whether nodes are not wider, and texts go on as far, as was recorded."""
    widest = max(map(len, shape.children))
    return widest <= trace.width and shape.depth <= int(trace.about.get("beyond", 0)) + 1


def _timed(latency: LatencyModel, law: str) -> str | None:
    return law if law in latency.laws else None
