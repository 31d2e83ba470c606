"""Temperature 0: compare a method's ids with those of plain decoding, and tell rounding from loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from treespec.experiments.report.equality import Divergence, near_tie_margin
from treespec.experiments.run.baselines import first_difference, next_logits
from treespec.sampling.distributions import Sampling
from treespec.sampling.processing.rows import processed_row

if TYPE_CHECKING:
    from treespec.models.load import Pair


@dataclass(frozen=True)
class Split(Divergence):
    """A divergence, with the margin between the target's two best logits at that position.

    Args:
        token: token of the method at that position; None if its text has ended.
        reference_token: token of the reference; None if its text has ended.
        top_two: difference of the two best logits in a plain pass.
        units: the same in units of the last place of the target's dtype at that logit.
    """

    token: int | None
    reference_token: int | None
    top_two: float
    units: float


@dataclass(frozen=True)
class GreedyCheck:
    sampling: str
    method: str
    rule: str
    lossless: bool
    compared: int
    generate: tuple[Split, ...]
    plain: tuple[Split, ...]

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(dict.fromkeys(self.generate + self.plain))

    @property
    def failed(self) -> bool:
        """Whether a rule that claims to be lossless has a divergence that rounding does not explain."""
        return self.lossless and not all(s.near_tie for s in self.splits)


def split(
    pair: "Pair",
    sampling: Sampling,
    prompt: tuple[str, Sequence[int]],
    tokens: Sequence[int],
    reference: Sequence[int],
) -> Split | None:
    """The first divergence of a greedy text from a reference, and how close the target's decision was."""
    if tuple(tokens) == tuple(reference):
        return None
    position = first_difference(tokens, reference)
    token, reference_token = (
        text[position] if position < len(text) else None for text in (tokens, reference)
    )
    prompt_id, ids = prompt
    context = [*ids, *reference[:position]]
    dtype = (given := next_logits(pair, context)).dtype
    logits = processed_row(sampling, given, context, len(ids))
    best, second = logits.double().topk(2).values.tolist()
    # The distance between neighbouring floating-point numbers at this magnitude.
    unit = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(abs(best), 1e-30)))
    margin = (
        None
        if token is None or reference_token is None
        else float(logits[reference_token].double() - logits[token].double())
    )
    limit = near_tie_margin(str(dtype).removeprefix("torch."))
    return Split(
        prompt=prompt_id,
        position=position,
        margin=margin,
        near_tie=margin is not None and abs(margin) <= limit,
        token=token,
        reference_token=reference_token,
        top_two=best - second,
        units=(best - second) / unit,
    )
