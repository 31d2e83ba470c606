"""The comparable prompts of one sampling setting, as arrays."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, inf
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.records.outcome import STAGED
from treespec.experiments.report.joint import Pair, joint
from treespec.experiments.report.sequential import boundary_of
from treespec.experiments.report.slowdown import Steps, adjust
from treespec.experiments.report.statistics import Totals, by_file
from treespec.search.intervals import Interval

COUNTS = ("new_tokens", "emitted", "steps", "drafted", "off_target")
TIMES = ("decode_s", "total_s", "rounds_s", *STAGED)
CLOCK = "clock_s"
"""Column of the decoding time as measured, slowdowns of the machine included."""

OF_PROMPT = "of_prompt_s"
"""Column of the decoding time of each prompt by itself. The values of `decode_s` are for sums over prompts
and their intervals, and may be negative for a prompt (`report.slowdown`)."""

ROUNDS = "rounds"
"""Column of the number of rounds, passes of the target for a whole batch, of which a text has its share, as
it has of their time. Without `batch`, the steps."""

METRIC = "metric "

BY_PROMPTS = (
    "times are as measured: the methods decoded each prompt one after another, so a slowdown of the "
    "machine may have hit one method more than another"
)

ONE_METHOD = (
    "the run has a single method: there is nothing to compare it with, and nothing from which to estimate "
    "how slow the machine was, so its times are as measured"
)

APART = (
    "Methods took turns in {groups} groups, one after the other; a slow phase of the machine may have hit "
    "one group more than another."
)

ROWS = "rows"
"""Column of the number of rows of each prompt, that is, of its repeats."""

Column = tuple[str, str]


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements under one sampling setting, on the prompts that every method finished.

    Repeats of a prompt under the same method are summed: the prompt remains the sampling unit, because its
    repeats are not new samples.

    Args:
        methods: methods that finished at least one prompt.
        prompts: indices of the compared prompts.
        attempted: number of prompts that at least one method attempted.
        values: one value per compared prompt, by (method, column). Columns that a method does not have
            (stage times of a baseline) are absent. Times of decoding and of its stages are adjusted by
            `report.slowdown` where the run allows it.
        failed: methods that finished no prompt.
        files: number of the file that each compared prompt is an excerpt of; None if the prompts are
            independent samples.
        totals_because: why times are reported as measured, as a sentence; None if they were adjusted.
        remark: further remarks on the times, as sentences; None if there are none.
        boundary: boundary of the repeated intervals (`report.sequential`) in comparisons of the best
            methods; None if intervals are for a single look.
        twin: names of a second copy of a method and of that method, if the two took turns; None otherwise.
        no_twin: why there was no such copy although methods took turns, as a sentence; None otherwise.
    """

    sampling: str
    methods: tuple[Method, ...]
    prompts: tuple[int, ...]
    attempted: int
    values: dict[Column, NDArray[np.float64]]
    failed: tuple[Method, ...]
    totals_because: str | None = None
    remark: str | None = None
    twin: tuple[str, str] | None = None
    no_twin: str | None = None
    files: tuple[int, ...] | None = None
    boundary: float | None = None

    @property
    def in_turns(self) -> bool:
        return self.totals_because not in (BY_PROMPTS, ONE_METHOD)

    @property
    def samples(self) -> int:
        """Number of independent samples among the compared prompts: files, or the prompts themselves."""
        return len(self.prompts if self.files is None else set(self.files))

    def total(self, method: str, column: str) -> float | None:
        values = self.values.get((method, column))
        return None if values is None else fsum(values.tolist())

    def rate(self, method: str, time: str = "decode_s") -> float:
        tokens, cost = (fsum(self.values[method, c].tolist()) for c in ("new_tokens", time))
        return tokens / cost if cost else inf

    def fastest(self, names: Sequence[str]) -> str | None:
        return max(names, key=self.rate, default=None)

    def named(self, *groups: str, lossless: bool = True) -> list[str]:
        members = [m for m in self.methods if m.group in groups and (m.lossless or not lossless)]
        return [m.name for m in members]

    @cached_property
    def baseline(self) -> str | None:
        return self.fastest(self.named("plain")) if self.prompts else None

    @cached_property
    def totals(self) -> Totals:
        """All columns by independent sample; needs at least one prompt."""
        return Totals.of(self.values, self.files)

    @cached_property
    def pairs(self) -> dict[Pair, Interval]:
        """The speed ratio of every pair of lossless methods, with joint intervals (`report.joint`)."""
        names = [m.name for m in self.methods if m.lossless]
        pairs = [(a, b) for a in names for b in names if a != b]
        return joint({name: self.samples_of(name) for name in names}, pairs, self.boundary)

    def samples_of(self, name: str, cost: str = "decode_s") -> NDArray[np.float64]:
        """Tokens and cost of a method on every independent sample, `[2, samples]`."""
        columns = [self.values[name, "new_tokens"], self.values[name, cost]]
        return np.stack(columns) if self.files is None else by_file(columns, self.files)


def measure(run: RunRecords, sampling: str) -> Measurements:
    """Collect the comparable prompts of one sampling setting, and the cost of decoding them.

    A prompt counts if every method finished it, except methods that finished no prompt at all: these are
    listed in `failed` and do not restrict the comparison.
    """
    rows, metrics = _with_metrics(run.all_prompts.filter(pl.col("sampling") == sampling))
    columns = (*COUNTS, *TIMES, *metrics)
    sums = (
        rows.group_by("method", "prompt")
        .agg(
            pl.col("error").is_null().all().alias("finished"),
            pl.len().cast(pl.Float64).alias(ROWS),
            # polars sums nulls to 0: a sum counts only if all its values are known
            *(
                pl.when(pl.col(c).cast(pl.Float64).is_null().any()).then(None).otherwise(
                    pl.col(c).cast(pl.Float64).sum()
                ).alias(c)
                for c in columns
            ),
        )
        .filter("finished")
        .sort("prompt")
    )  # fmt: skip
    names = [*(m.name for m in run.methods), *run.twins]
    by_method = {name: sums.filter(pl.col("method") == name) for name in names}
    working = tuple(m for m in run.methods if len(by_method[m.name]))
    common = _whole_batches(
        set.intersection(*(set(by_method[m.name]["prompt"]) for m in working), set(rows["prompt"])),
        run.batch,
    )
    shares = _rounds_of_texts(run, sampling)
    twins = [name for name in run.twins if common <= set(by_method[name]["prompt"])]
    twin = _beside(run, twins, working)
    values: dict[Column, NDArray[np.float64]] = {}
    for name in (*(m.name for m in working), *twins):
        shared = by_method[name].filter(pl.col("prompt").is_in(sorted(common)))
        for column in (*columns, *([ROWS] if metrics else [])):
            if shared[column].null_count() == 0:
                values[name, column] = shared[column].to_numpy()
        values[name, CLOCK] = values[name, OF_PROMPT] = values[name, "decode_s"]
        values[name, ROUNDS] = (
            values[name, "steps"]
            if shares is None
            else np.array([shares[name, prompt] for prompt in shared["prompt"]])
        )
    data = Measurements(
        sampling=sampling,
        methods=working,
        prompts=tuple(sorted(common)),
        attempted=rows["prompt"].n_unique(),
        values=values,
        failed=tuple(m for m in run.methods if m not in working),
        twin=twin,
        no_twin=_no_twin(run) if twin is None else None,
        totals_because=_no_turns(run),
        files=run.files_of(sorted(common)),
    )
    if not common:
        return data
    tried = 1 + max(rows["prompt"])
    boundary = boundary_of(run.manifest, sampling, data.samples, tried)
    return _adjusted(run, replace(data, boundary=boundary), twins)


def _whole_batches(prompts: set[int], batch: int) -> set[int]:
    """The prompts whose batches are among them as a whole: the others of a batch share its time."""
    counts = Counter(prompt // batch for prompt in prompts)
    return {prompt for prompt in prompts if counts[prompt // batch] == batch}


def _rounds_of_texts(run: RunRecords, sampling: str) -> dict[tuple[str, int], float] | None:
    """The share that each text, by method and prompt, has of its batch's rounds; None without `batch`."""
    if run.batch == 1:
        return None
    steps = run.all_steps.filter(pl.col("sampling") == sampling)
    texts = pl.len().over(pl.col("prompt") // run.batch, "method", "repeat", "step")
    shares = (
        steps.with_columns(share=1 / texts).group_by("method", "prompt").agg(pl.col("share").sum())
    )
    return {(method, prompt): share for method, prompt, share in shares.iter_rows()}


def _beside(
    run: RunRecords, twins: Sequence[str], methods: Sequence[Method]
) -> tuple[str, str] | None:
    names = {m.name for m in methods}
    beside = (
        (twin, name)
        for twin, name in run.twins.items()
        if twin in twins and name in names and run.group_of(twin) == run.group_of(name)
    )
    return next(beside, None)


def _no_turns(run: RunRecords) -> str | None:
    if len(run.methods) == 1:
        return ONE_METHOD
    return BY_PROMPTS if run.manifest.get("together", 1) == 1 else None


def _no_twin(run: RunRecords) -> str | None:
    if _no_turns(run) is not None:
        return None
    beside = _beside(run, list(run.twins), run.methods)
    if beside is not None:
        return f"The twin of {beside[1]} did not finish every prompt that is compared"
    if all(m.draft_tokens is None for m in run.methods):
        return "No twin ran, because no method is plain decoding or has a tree of fixed shape"
    return (
        f"No twin ran, because no more than {run.manifest['together']} methods took turns at once"
    )


def _adjusted(run: RunRecords, data: Measurements, twins: Sequence[str]) -> Measurements:
    if not data.in_turns:
        return data
    every = [*(m.name for m in data.methods), *twins]
    firsts = [prompt // run.batch * run.batch for prompt in data.prompts]
    steps = run.all_rounds.filter(
        pl.col("sampling") == data.sampling,
        pl.col("prompt").is_in(firsts),
        pl.col("method").is_in(every),
    ).sort("at_s", "step_s", "step")
    # Numbered as they ran, so that the order of records and of methods in the config changes no bit.
    names = list(dict.fromkeys([*steps["method"], *every]))
    prompts = list(dict.fromkeys([*steps["prompt"], *firsts]))
    steady = {m.name for m in data.methods if m.draft_tokens is not None}
    steady |= {name for name in twins if run.twins[name] in steady}
    work = steps.select("method", "size", "depth", "texts", pl.col("step") == 0)
    adjusted = adjust(
        Steps(
            method=_places(steps["method"], names),
            prompt=_places(steps["prompt"], prompts),
            work=work.select(pl.struct(pl.all()).rank("dense")).to_series().to_numpy().astype(int)
            - 1,
            at=(steps["at_s"] + steps["step_s"] / 2).to_numpy(),
            seconds=steps["step_s"].to_numpy(),
            steady=np.array([name in steady for name in names]),
            prompts=len(prompts),
        ),
        {column: steps[column].fill_null(0.0).to_numpy() for column in STAGED},
    )
    asked = np.array([prompts.index(prompt) for prompt in firsts])
    values = dict(data.values)
    for i, name in enumerate(names):
        clock = values[name, CLOCK]
        prefill = values[name, "total_s"] - clock
        values[name, "decode_s"] = _shared(adjusted.seconds[i], clock, asked)
        values[name, OF_PROMPT] = _shared(adjusted.of_prompts[i], clock, asked)
        values[name, "total_s"] = prefill + values[name, "decode_s"]
        if (name, "rounds_s") in values:
            usual = np.divide(
                values[name, "decode_s"], clock, out=np.ones_like(clock), where=clock > 0
            )
            values[name, "rounds_s"] = values[name, "rounds_s"] * usual
        for column in STAGED:
            if (name, column) in values:
                values[name, column] = _shared(
                    adjusted.stages[column][i], values[name, column], asked
                )
    groups = len({run.group_of(name) for name in names})
    remarks = [APART.format(groups=groups) if groups > 1 else None, adjusted.remark(names)]
    remark = " ".join(filter(None, remarks)) or None
    return replace(data, values=values, totals_because=adjusted.reason, remark=remark)


def _shared(
    of_batches: NDArray[np.float64], recorded: NDArray[np.float64], batch: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Share an amount of each batch among its prompts, as recorded amounts are shared; by prompt.

    `batch`: for each prompt, the number of its batch. A batch of one prompt gets the amount itself.
    """
    totals, counts = np.bincount(batch, recorded)[batch], np.bincount(batch)[batch]
    share = np.divide(recorded, totals, out=1 / counts, where=totals > 0)
    return of_batches[batch] * share


def _places(column: pl.Series, names: Sequence[Any]) -> NDArray[np.int64]:
    order = {name: index for index, name in enumerate(names)}
    return column.replace_strict(order, return_dtype=pl.Int64).to_numpy()


def _with_metrics(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    names = rows["metrics"].explode().struct.field("name").drop_nulls().unique(maintain_order=True)
    values = (
        pl.col("metrics")
        .list.eval(pl.element().filter(pl.element().struct.field("name") == name))
        .list.first()
        .struct.field("value")
        .alias(METRIC + name)
        for name in names
    )
    return rows.with_columns(values), [METRIC + name for name in names]
