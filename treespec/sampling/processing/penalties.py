"""Frequency and presence penalties, which transformers 5.23 does not have, as its `LogitsProcessor`s."""

import torch
from torch import Tensor
from transformers import LogitsProcessor


class FrequencyPenalty(LogitsProcessor):
    """Subtracts `penalty` from a token's logit once for each time that it was generated.

    As in OpenAI's API and in vLLM: tokens of the prompt do not count.

    Args:
        penalty: negative values favour repetition.
        prompt_length: tokens of the prompt.
    """

    def __init__(self, penalty: float, prompt_length: int) -> None:
        self.penalty, self.prompt_length = float(penalty), prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        """The scores `[B, V]` after `input_ids` `[B, L]`."""
        new = input_ids[:, self.prompt_length :]
        ones = torch.ones_like(new, dtype=scores.dtype)
        counts = torch.zeros_like(scores).scatter_add_(1, new, ones)
        return scores - self.penalty * counts


class PresencePenalty(FrequencyPenalty):
    """Subtracts `penalty` from the logit of each token that was generated, however often."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The scores `[B, V]` after `input_ids` `[B, L]`."""
        new = input_ids[:, self.prompt_length :]
        generated = torch.zeros_like(scores).scatter_(1, new, 1.0)
        return scores - self.penalty * generated
