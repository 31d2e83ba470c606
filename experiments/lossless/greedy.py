"""Temperature 0: the ids of a method against those of plain decoding, and what rounding explains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from treespec.experiments.report.equality import NEAR_TIE, Divergence
from treespec.experiments.run.baselines import first_difference, next_logits

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["GreedyCheck", "Split", "near_tie_limit", "split"]


@dataclass(frozen=True)
class Split(Divergence):
    """A divergence with the target's two best logits at that place.

    Args:
        token: what the method emitted there; None if its text is over.
        reference_token: what the reference emitted; None if its text is over.
        top_two: how far the best logit of a plain pass lies above the second best.
        units: the same in units of the last place of the target's dtype at that logit.
    """

    token: int | None
    reference_token: int | None
    top_two: float
    units: float


@dataclass(frozen=True)
class GreedyCheck:
    """How the greedy texts of a method compare with two plain decoders.

    Args:
        sampling: name of the setting.
        method: its name.
        rule: name of its acceptance rule.
        lossless: whether the rule claims to be.
        compared: texts.
        generate: divergences from transformers' `generate`.
        plain: divergences from our own loop without a draft.
    """

    sampling: str
    method: str
    rule: str
    lossless: bool
    compared: int
    generate: tuple[Split, ...]
    plain: tuple[Split, ...]

    @property
    def splits(self) -> tuple[Split, ...]:
        """All divergences; one from both references counts once."""
        return tuple(dict.fromkeys(self.generate + self.plain))

    @property
    def failed(self) -> bool:
        """Whether a rule that claims to be lossless has a divergence that rounding does not explain."""
        return self.lossless and not all(s.near_tie for s in self.splits)


def near_tie_limit(dtype: str) -> float:
    """The largest difference of logits that counts as rounding; see `NEAR_TIE` of `report.equality`."""
    return NEAR_TIE.get(dtype, NEAR_TIE["float32"])


def split(
    pair: "Pair",
    prompt: tuple[str, Sequence[int]],
    tokens: Sequence[int],
    reference: Sequence[int],
) -> Split | None:
    """Where a greedy text leaves a reference, and how close the target's decision was; None if nowhere.

    Args:
        pair: the models; one ordinary pass of the target by transformers is made.
        prompt: id and token ids.
        tokens: of the method.
        reference: of plain decoding.
    """
    if tuple(tokens) == tuple(reference):
        return None
    at = first_difference(tokens, reference)
    token, other = (text[at] if at < len(text) else None for text in (tokens, reference))
    name, ids = prompt
    logits = next_logits(pair, [*ids, *reference[:at]])
    dtype = logits.dtype
    best, second = logits.double().topk(2).values.tolist()
    # The distance of neighbouring numbers at this magnitude.
    unit = torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(max(abs(best), 1e-30)))
    margin = None
    if token is not None and other is not None:
        margin = float(logits[other].double() - logits[token].double())
    limit = near_tie_limit(str(dtype).removeprefix("torch."))
    return Split(
        prompt=name,
        position=at,
        margin=margin,
        near_tie=margin is not None and abs(margin) <= limit,
        token=token,
        reference_token=other,
        top_two=best - second,
        units=(best - second) / unit,
    )
