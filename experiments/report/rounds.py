"""The cost of decoding in turns: plain totals, without the rounds in which the machine was slow.

Methods take turns step by step, so bursts of other work on the machine hit all of them, but not equally
often. How slow the machine was is read from a *judging copy* of plain decoding, which takes turns with the
methods as long as one of them is open. A step is left out if the judging copy was slow around it: if the
mean of its step before and its step after took more than `SLOW` times its median step in the same text. The
cost of a method on a text is the mean time of its other steps, times the number of all its steps.

- The rule was fixed before the runs that it is used on, and looks at the judging copy only. Whether a step
  is left out does not depend on what it costs, so no method gains by it, and a method keeps its rare
  expensive steps in proportion to how often they occur.
- The judging copy is never compared: without its slow steps it would seem faster than it is. The
  copy that shows how small a difference a run resolves (`report.times`) is another one, the twin.
- Slow is relative to the same text: if the machine is slower for a whole text, its steps count, as all
  methods are slower there alike, and the comparison is paired by prompt. More than half of the judging
  copy's steps are never slow, so a text with all of its steps left out is rare; there, totals count.
- One slow step of the judging copy (a stall, or caches that an expensive step left cold) leaves nothing
  out unless it takes more than `2 * SLOW - 1` times as long as its usual step.
"""

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

SLOW = 1.5
"""The judging copy is slow if it takes more than this many times its median in the text."""

TEXT = ["prompt", "repeat"]
"""Columns that tell texts under one sampling setting apart."""


def calm(at: ArrayLike, judge_at: ArrayLike, judge_s: ArrayLike) -> NDArray[np.bool_]:
    """Whether the judging copy was not slow around each step of a text.

    Args:
        at: `[S]`, when steps began, in seconds.
        judge_at: `[J]`, when the steps of the judging copy began, ascending, on the same clock.
        judge_s: `[J]`, how long they took. Without any, all steps are calm.

    Example:
        >>> calm([0.5, 1.5, 2.5, 3.5], [0, 1, 2, 3], [1.0, 1.0, 5.0, 1.0]).tolist()
        [True, False, False, True]
    """
    seconds = np.asarray(judge_s, dtype=np.float64)
    if not len(seconds):
        return np.ones(np.shape(at), bool)
    around = np.pad(
        seconds, 1, mode="edge"
    )  # before the first step and after the last, one says it all
    after = np.searchsorted(judge_at, at)
    return (around[after] + around[after + 1]) / 2 <= SLOW * np.median(seconds)


def with_calm(steps: pl.DataFrame, judge: str) -> pl.DataFrame:
    """The steps of methods that took turns with a judging copy, with a column `calm`; the copy's steps go.

    Args:
        steps: `TEXT`, `method`, `at_s` and `step_s`, under one sampling setting.
        judge: name of the judging copy.
    """
    texts = []
    for _, text in steps.group_by(TEXT, maintain_order=True):
        judged = text.filter(method=judge).sort("at_s")
        others = text.filter(pl.col("method") != judge)
        kept = calm(others["at_s"], judged["at_s"], judged["step_s"])
        texts.append(others.with_columns(pl.Series("calm", kept)))
    return pl.concat(texts)


def costs(steps: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """The cost of each method on each prompt, summed over repeats, in each of these columns of times.

    Args:
        steps: `TEXT`, `method`, `calm` and the columns; times are in seconds.
        columns: the step's time, and times of its stages.

    Returns:
        `method`, `prompt` and the columns.
    """
    calm_mean = [
        pl.col(c).filter("calm").mean().fill_null(pl.col(c).mean()) * pl.len() for c in columns
    ]
    by_text = steps.group_by("method", *TEXT).agg(calm_mean)
    return by_text.group_by("method", "prompt").agg(pl.col(columns).sum())
