"""Three ways to the cost of a method, computed from the same recorded steps.

    python -m treespec.experiments.research.studies.kept_rounds

The steps, in `research/results/recorded_steps.parquet`, are those of 20 runs of
`benchmarks.interleaving` on a machine with other work on it (`quiet`) and of 20 beside bursts: of plain
decoding, its twin and another copy, `judge`; of two identical chains, `one` and `other`; and of `dearer`,
which takes 5 % longer. The ways are

- *totals* of steps in turns;
- *rounds*: totals without the steps around which the judge was slow, that is, took more than `SLOW` times
  its median on the prompt, right before or after; a method's other steps on the prompt stand for them.
  `SLOW` was chosen on the runs with even seeds;
- *slowdown*: `report.slowdown`, which runs use; it does not see the judge.
"""

from collections.abc import Mapping
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from treespec.experiments.report.slowdown import Steps, adjust
from treespec.experiments.report.statistics import bootstrap
from treespec.experiments.report.summary import speed_ratio
from treespec.experiments.report.table import Column, Table, keyed
from treespec.experiments.research.benchmarks.results_file import RESULTS, print_and_save

RECORDED = RESULTS / "recorded_steps.parquet"
SLOW = 1.3
ABOUT = {
    "git_hash": "375cd17c",
    "measured": "2026-11-27",
    "seeds": "0 to 19",
    "models": "embedded, float32, on a core of its own; other processes loaded the other core",
}
METHODS = ("plain", "plain (twin)", "one", "other", "dearer")


def not_slow(at: NDArray[Any], judge_at: NDArray[Any], judge_s: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether the judge was slow neither right before nor right after each step of a text.

    Example:
        >>> at, judge_at = np.array([0.5, 1.5, 2.5, 3.5]), np.arange(4)
        >>> not_slow(at, judge_at, np.array([1.0, 1.0, 5.0, 1.0])).tolist()
        [True, False, False, True]
    """
    slow = np.pad(judge_s > SLOW * np.median(judge_s), 1, mode="edge")
    after = np.searchsorted(judge_at, at)
    return ~(slow[after] | slow[after + 1])


def by_rounds(run: pl.DataFrame) -> pl.DataFrame:
    """Seconds of each method on each prompt without slow rounds: `method`, `prompt`, `seconds`."""
    prompts = []
    for text in run.partition_by("prompt"):
        judge = text.filter(method="judge").sort("at_s")
        kept = not_slow(*(c.to_numpy() for c in (text["at_s"], judge["at_s"], judge["step_s"])))
        prompts.append(text.with_columns(calm=pl.Series(kept)))
    calm, all_steps = pl.col("step_s").filter("calm").mean(), pl.col("step_s").mean()
    return (
        pl.concat(prompts)
        .group_by("method", "prompt")
        .agg(seconds=calm.fill_null(all_steps) * pl.len())
    )


def by_slowdown(run: pl.DataFrame) -> pl.DataFrame:
    """The same by `report.slowdown`."""
    run = run.filter(pl.col("method") != "judge")
    kinds = run.select(pl.struct("method", "size", "depth", pl.col("step") == 0).rank("dense"))
    found = adjust(
        Steps(
            method=run["method"].replace_strict({m: i for i, m in enumerate(METHODS)}).to_numpy(),
            prompt=run["prompt"].to_numpy().astype(np.int64),
            work=kinds.to_series().to_numpy().astype(np.int64) - 1,
            at=(run["at_s"] + run["step_s"] / 2).to_numpy(),
            seconds=run["step_s"].to_numpy(),
            steady=np.ones(len(METHODS), bool),
            prompts=1 + max(run["prompt"]),
        )
    )
    return pl.DataFrame(
        [
            {"method": name, "prompt": prompt, "seconds": value}
            for name, row in zip(METHODS, found.seconds, strict=True)
            for prompt, value in enumerate(row)
        ]
    )


WAYS = {
    "totals": lambda run: run.group_by("method", "prompt").agg(seconds=pl.col("step_s").sum()),
    "rounds": by_rounds,
    "slowdown": by_slowdown,
}


def ratios(run: pl.DataFrame, way: str) -> dict[str, Any]:
    """Speed of `other` and of `dearer` over `one`, with intervals."""
    tokens = run.group_by("method", "prompt").agg(tokens=pl.col("kept").sum())
    rows = WAYS[way](run).join(tokens, on=["method", "prompt"]).sort("prompt")
    columns = {
        (name, column): rows.filter(method=name)[given].to_numpy()
        for name in METHODS
        for column, given in (("new_tokens", "tokens"), ("decode_s", "seconds"))
    }
    totals = bootstrap(columns)
    return {name: speed_ratio(totals, name, "one") for name in ("other", "dearer")}


def figures_of(found: list[dict[str, Any]]) -> dict[str, float]:
    """What the ratios of several runs say; half-widths, standard deviations and bias in percent."""
    same, dearer = ([pair[name] for pair in found] for name in ("other", "dearer"))
    return {
        "runs": len(found),
        "told_apart": sum(not ratio.contains(1.0) for ratio in same),
        "half_width": 100 * median(ratio.half_width for ratio in same),
        "sd": 100 * stdev(ratio.estimate for ratio in same),
        "found_slower": sum(ratio.high < 1 for ratio in dearer),
        "bias_of_dearer": 100 * (1.05 * fmean(ratio.estimate for ratio in dearer) - 1),
    }


COLUMNS = (
    keyed("machine", "kind", left=True),
    keyed("seeds", "seeds", left=True),
    keyed("way", "way", left=True),
    keyed("identical told apart", "told_apart"),
    keyed("half-width, %", "half_width", ".2f"),
    keyed("sd, %", "sd", ".2f"),
    keyed("5 % found", "found_slower"),
    Column[Mapping[str, Any]]("bias, %", lambda row: f"{row['bias_of_dearer']:+.2f}"),
)


def main() -> None:
    """Compute the figures from the recorded steps, print and save them."""
    recorded = pl.read_parquet(RECORDED).with_columns(pl.col("at_s", "step_s").cast(pl.Float64))
    runs = recorded.sort("kind", "run", "at_s").partition_by(["kind", "run"], as_dict=True)
    found = {(way, *key): ratios(run, way) for way in WAYS for key, run in runs.items()}
    rows = [
        {"kind": kind, "seeds": seeds, "way": way}
        | figures_of([found[way, kind, run] for run in range(20) if run % 2 in of])
        for kind in ("quiet", "bursts")
        for seeds, of in (("even", {0}), ("odd", {1}), ("all", {0, 1}))
        for way in WAYS
    ]
    print_and_save(
        "kept_rounds",
        {"slow": SLOW, "recorded": ABOUT, "rows": rows},
        Table("same steps", COLUMNS, rows),
    )


if __name__ == "__main__":
    main()
