"""Evaluation of a pair after training: losses of both models, and their agreement."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import LlamaForCausalLM

RANKS = 8


@dataclass(frozen=True)
class PairStatistics:
    """Means over all predicted tokens of a text, at temperature 1.

    `acceptance` is E[sum_v min(target_probs, draft_probs)]; `ranks[k - 1]` is how often the
    target's most probable token is the draft's k-th choice, so `ranks[0]` is top-1 agreement.
    """

    tokens: int
    bytes: int
    target_nats: float
    draft_nats: float
    acceptance: float
    ranks: tuple[float, ...]

    def bits_per_byte(self, nats: float) -> float:
        """Convert a loss in nats per token into bits per byte of the same text."""
        return nats / math.log(2) * self.tokens / self.bytes


@torch.inference_mode()
def measure_pair(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    files: Sequence[np.ndarray],
    text_bytes: int,
    length: int,
) -> PairStatistics:
    """Evaluate both models on `files`, packed in the given order and cut into blocks of `length` tokens.

    Each block starts without context. Every token but the very first is predicted once.
    """
    totals = torch.zeros(3 + RANKS, dtype=torch.float64)
    tokens = 0
    for block in blocks(np.concatenate(files), length):
        target_logs = target(block[:, :-1], use_cache=False).logits.float().log_softmax(-1)[0]
        draft_logs = draft(block[:, :-1], use_cache=False).logits.float().log_softmax(-1)[0]
        following = block[0, 1:]
        overlap = torch.minimum(target_logs.exp(), draft_logs.exp()).sum()
        best = target_logs.argmax(-1, keepdim=True)
        hits = (draft_logs.topk(RANKS).indices == best).sum(0)
        losses = [
            nn.functional.nll_loss(logs, following, reduction="sum")
            for logs in (target_logs, draft_logs)
        ]
        totals += torch.stack([*losses, overlap, *hits]).double()
        tokens += len(following)
    target_nats, draft_nats, acceptance, *ranks = (totals / tokens).tolist()
    return PairStatistics(tokens, text_bytes, target_nats, draft_nats, acceptance, tuple(ranks))


def blocks(stream: np.ndarray, length: int) -> Iterator[torch.Tensor]:
    """Cut `stream` into blocks `[1, <= length + 1]`; consecutive blocks share one token."""
    for start in range(0, len(stream) - 1, length):
        yield torch.from_numpy(stream[None, start : start + length + 1])
