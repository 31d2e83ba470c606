"""Whether greedy outputs equal plain decoding, and what the differences mean."""

from dataclasses import dataclass

import polars as pl

from treespec.experiments.records.loading import PLAIN_KINDS, RunRecords

__all__ = ["NEAR_TIE", "Divergence", "Equality", "equality", "near_tie_margin"]

NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.03125}
"""Difference of two logits, by dtype, up to which rounding may have swapped their order.

A convention, in units of the last place. Logits between 8 and 16 have one of 2^-4 = 0.0625 in bfloat16 (8
bits of mantissa) and of 2^-7 in float16 (11 bits). A pass over a tree adds in another order than a pass
over one token; over the layers that moves a logit by a few units, so four are allowed. In float32 (24 bits)
the unit is 2^-20, about 1e-6; the limit of a thousand is still far below any gap that a bug leaves.
"""


@dataclass(frozen=True)
class Divergence:
    """A greedy output that left that of plain decoding: of `generate`, or without it of our own loop.

    Args:
        prompt: its id.
        position: index of the first new token that differs.
        margin: how far a plain pass of the target there prefers the reference's token, in logits; None
            where no token differs and one text is merely longer, which rounding cannot explain.
        near_tie: whether the margin is small enough to be rounding.
    """

    prompt: str
    position: int
    margin: float | None
    near_tie: bool


@dataclass(frozen=True)
class Equality:
    """How the greedy outputs of a method compare with those of plain decoding; see `Divergence`.

    Args:
        equal: prompts whose outputs are the same, id by id, in all repeats.
        compared: prompts with outputs of both, on all finished prompts of the method, not only those that
            every method finished. 0 for the method that they are compared with.
        divergences: of the others, one for each: a repeat that rounding does not explain before one that it
            explains, and the first of these.
        reference: the others are compared with this method.
    """

    equal: int = 0
    compared: int = 0
    divergences: tuple[Divergence, ...] = ()
    reference: bool = False

    @property
    def rounding(self) -> tuple[Divergence, ...]:
        """Divergences that rounding explains."""
        return tuple(d for d in self.divergences if d.near_tie)

    @property
    def bugs(self) -> tuple[Divergence, ...]:
        """Divergences that it does not explain."""
        return tuple(d for d in self.divergences if not d.near_tie)


def equality(run: RunRecords, sampling: str, method: str) -> Equality:
    """Compare the greedy outputs of a method with those of plain decoding, as recorded."""
    rows = run.prompts.filter(
        pl.col("sampling") == sampling,
        pl.col("method") == method,
        pl.col("equal_to_plain").is_not_null(),
    )
    if not len(rows):
        return Equality()
    kinds = {m.kind for m in run.methods}
    reference = next((kind for kind in PLAIN_KINDS if kind in kinds), None)
    first = next((m.name for m in run.methods if m.kind == reference), None)
    if method == first:
        return Equality(reference=True)
    limit = near_tie_margin(run)
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


def near_tie_margin(run: RunRecords) -> float:
    """The largest margin that counts as rounding, for the dtype of the run's target."""
    return NEAR_TIE.get(run.target_dtype, NEAR_TIE["float32"])
