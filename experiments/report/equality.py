"""Whether greedy outputs equal plain decoding, and whether rounding explains the differences."""

from dataclasses import dataclass

import polars as pl

from treespec.experiments.records.loading import PLAIN_KINDS, RunRecords

NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.03125}
"""Largest difference of two logits whose order rounding may have swapped, by dtype.

A convention, in units of the last place. For logits between 8 and 16 the unit is 2^-4 = 0.0625 in bfloat16
(8 bits of mantissa) and 2^-7 in float16 (11 bits). A pass over a tree sums in another order than a pass
over one token; over the layers this moves a logit by a few units, so four are allowed. In float32 (24
bits) the unit is 2^-20, about 1e-6; the limit of a thousand units is still far below any gap that a bug
leaves.
"""


@dataclass(frozen=True)
class Divergence:
    """A greedy output that departs from the reference: `generate`, or plain decoding by our own loop.

    Args:
        prompt: id of the prompt.
        position: index of the first new token that differs.
        margin: difference, in a plain pass of the target at this position, between the logit of the
            reference's token and that of the output's; None if no token differs and one text is merely
            longer, which rounding cannot explain.
        near_tie: whether the margin is small enough to be rounding.
    """

    prompt: str
    position: int
    margin: float | None
    near_tie: bool


@dataclass(frozen=True)
class Equality:
    """Comparison of the greedy outputs of a method with those of plain decoding; see `Divergence`.

    Args:
        equal: number of prompts whose outputs are the same, id by id, in all repeats.
        compared: number of prompts with outputs of both methods, among all finished prompts of the method,
            not only those that every method finished; 0 for the reference.
        divergences: one divergence per differing prompt: the first repeat that rounding does not explain,
            or else the first that differs.
        reference: whether this method is the reference of the comparison.
    """

    equal: int = 0
    compared: int = 0
    divergences: tuple[Divergence, ...] = ()
    reference: bool = False

    @property
    def rounding(self) -> tuple[Divergence, ...]:
        return tuple(d for d in self.divergences if d.near_tie)

    @property
    def bugs(self) -> tuple[Divergence, ...]:
        return tuple(d for d in self.divergences if not d.near_tie)


def equality(run: RunRecords, sampling: str, method: str) -> Equality:
    rows = run.prompts.filter(
        pl.col("sampling") == sampling,
        pl.col("method") == method,
        pl.col("equal_to_plain").is_not_null(),
    )
    if not len(rows):
        return Equality()
    references = (m.name for kind in PLAIN_KINDS for m in run.methods if m.kind == kind)
    if method == next(references, None):
        return Equality(reference=True)
    limit = near_tie_margin(run.target_dtype)
    diverged: dict[int, Divergence] = {}
    for row in rows.filter(~pl.col("equal_to_plain")).sort("repeat").iter_rows(named=True):
        margin = row["divergence_margin"]
        divergence = Divergence(
            prompt=str(row["prompt_id"]),
            position=row["first_divergence"],
            margin=margin,
            near_tie=margin is not None and abs(margin) <= limit,
        )
        known = diverged.get(row["prompt"])
        if known is None or (known.near_tie and not divergence.near_tie):
            diverged[row["prompt"]] = divergence
    compared = rows["prompt"].n_unique()
    return Equality(compared - len(diverged), compared, tuple(diverged.values()))


def near_tie_margin(dtype: str) -> float:
    return NEAR_TIE.get(dtype, NEAR_TIE["float32"])
