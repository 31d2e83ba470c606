"""The options by which a layer turns scores into weights."""

from dataclasses import dataclass

from jaxtyping import Float, Int32
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Options:
    """The options of one call of tree attention, checked by `attend`.

    Attributes:
        scale: factor on the scores.
        softcap: bound of the scores, `softcap * tanh(score / softcap)`; None for no bound.
        window: keys that are `window` or more positions before a row are hidden; None hides none.
        sinks: one more score for each query head, which takes its share of the softmax but has no
            value: the `s_aux` of GPT-OSS. Neither scaled nor capped.
        block_table: page of each block of slots, if keys and values are stored in pages.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: Float[Tensor, " q_heads"] | None = None
    block_table: Int32[Tensor, "batch blocks"] | None = None
