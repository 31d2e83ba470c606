"""On-policy batches: texts that the draft itself goes on with, for the target to teach it on.

A draft that is trained on texts that others wrote meets, when it drafts, its own: its later drafts stand on
earlier ones. In an on-policy batch (arXiv:2306.13649; for speculative decoding arXiv:2310.08461) each text
keeps its beginning, and the draft writes the rest at temperature 1; the target says what should have come
after each of these tokens.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from treespec.experiments.training.packing import Packed
from treespec.sampling.coins import inverse_cdf

BEGINNING = 16
"""Tokens that a text keeps at least, also if it has no prompt or its row holds a later part of it."""


@torch.no_grad()
def continued(
    draft: PreTrainedModel,
    packed: Packed,
    generator: torch.Generator,
    *,
    vocab_size: int,
    ends: Collection[int],
) -> Packed:
    """The batch with a draft's own tokens after the beginning of each text.

    Only these are answers in it; what follows a token that ends a text is no answer.

    Args:
        draft: a model with its original attention.
        packed: the batch of the texts.
        generator: of the tokens, on the CPU.
        vocab_size: width to which its logits are cut.
        ends: tokens that end a text.
    """
    drawn = packed.answer & (packed.positions >= BEGINNING)
    ids, mask, places = packed.ids.clone(), packed.mask(), packed.positions
    uniforms = torch.rand(ids.shape, generator=generator, dtype=torch.float64).to(ids.device)
    model: Any = draft
    cache, done = DynamicCache(), 0
    # In full precision, as it drafts. Older versions of PyTorch would also keep the weights that autocast
    # converts here, without a gradient, for the pass that needs one.
    with torch.autocast(ids.device.type, enabled=False):
        for column in drawn.any(0).nonzero().flatten().tolist():
            logits = model(
                input_ids=ids[:, done:column],
                attention_mask=mask[:, :, done:column, :column],
                position_ids=places[:, done:column],
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1, :vocab_size]
            tokens = inverse_cdf(logits.softmax(-1), uniforms[:, column, None])[:, 0]
            ids[:, column] = torch.where(drawn[:, column], tokens, ids[:, column])
            done = column
    ended = drawn & torch.isin(ids, torch.tensor(sorted(ends), dtype=torch.long, device=ids.device))
    return replace(packed, ids=ids, answer=drawn & ~_after(ended, places), place=None)


def _after(ended: Bool[Tensor, "B T"], places: Tensor) -> Bool[Tensor, "B T"]:
    """Whether a text has ended before each of its tokens."""
    before = ended.cumsum(1) - ended.long()
    begins = torch.arange(ended.shape[1], device=ended.device) - places
    return before > before.gather(1, begins)
