"""What search predicted beside what the run measured: every static tree of a run, and plain decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from experiments.config import Config, SearchConfig
from experiments.loading import Method, Run
from experiments.measurements import measure
from experiments.statistics import Interval, bootstrap
from experiments.summary import speed_ratio
from search import LatencyModel, Trace
from search.latency_errors import NotMeasured
from search.replay import replay
from treespec.tree import TreeShape

if TYPE_CHECKING:
    from experiments.measured import Measured

__all__ = ["Prediction", "chosen", "first_ranked", "median_errors", "predictions"]


@dataclass(frozen=True)
class Prediction:
    """One tree under one sampling setting.

    Args:
        method: name.
        sampling: name of the setting.
        tokens: predicted tokens per step, by replay of what was recorded on other texts.
        tokens_measured: emitted tokens per step of the run.
        step_s: predicted seconds of a step.
        step_measured_s: those of the run.
    """

    method: str
    sampling: str
    tokens: Interval
    tokens_measured: Interval
    step_s: float
    step_measured_s: float

    @property
    def speed(self) -> float:
        """Predicted tokens per second."""
        return self.tokens.estimate / self.step_s

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


def predictions(run: Run) -> list[Prediction]:
    """All trees that what was recorded before the run covers; none if nothing was, or it is not there.

    Tokens per step count what steps emit, also past the budget, on both sides.

    Raises:
        RunFolderError, InvalidTrace, InvalidLatency: if a file is damaged.
    """
    measured = _measured(run)
    if measured is None:
        return []
    found = [
        _row(run, method, shape, sampling["name"], measured)
        for sampling in run.manifest["samplings"]
        for method in run.methods
        if (shape := _shape(method)) is not None
    ]
    return [row for row in found if row is not None]


def median_errors(rows: Sequence[Prediction]) -> tuple[float, float]:
    """Medians of the absolute relative errors, of tokens per step and of tokens per second."""
    return (
        median(abs(row.tokens_error) for row in rows),
        median(abs(row.speed_error) for row in rows),
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
        m for m in run.manifest["config"]["methods"] if m.get("shape", {}).get("kind") == "best"
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
    from experiments.measured import load_measured

    return load_measured(Config.model_validate(run.manifest["config"]), run.folder / "search")


def _shape(method: Method) -> TreeShape | None:
    """The tree of every step: that of plain decoding is its root."""
    if method.kind == "plain":
        return TreeShape.chain(0)
    return None if method.parents is None else TreeShape(method.parents)


def _row(
    run: Run, method: Method, shape: TreeShape, sampling: str, measured: "Measured"
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
        step_s = times.step_s(shape, measured.prefix, law=_timed(times, law))
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
    )


def _covered(shape: TreeShape, trace: Trace, search: SearchConfig) -> bool:
    """Whether nodes are not wider, and texts go on as far, as was recorded."""
    widest = max(map(len, shape.children))
    return widest <= trace.width and shape.depth <= int(trace.about.get("beyond", 0)) + 1


def _timed(latency: LatencyModel, law: str) -> str | None:
    return law if law in latency.laws else None
