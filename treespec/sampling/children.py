"""The laws as functions: the distribution of a node's next child, given its elder siblings.

Real drawing, exhaustive enumeration and the tables of the transport rules all use these functions, so each
law is written down once.
"""

from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.checks import integer
from treespec.errors import InvalidTree
from treespec.sampling.distributions import best_token, without
from treespec.tree.law import Law

LEAST_TOKENS_FOR_TOPK = 64
"""Row length from which `topk` returns the first of several tied best tokens, as `best_token` does."""


def chosen_children(scores: Float[Tensor, "R V"], k: int, law: Law | str) -> Int[Tensor, "R j"]:
    """The j of k children that a law chooses without randomness, before it draws the others."""
    law = Law.of(law)
    if law is Law.DETERMINISTIC:
        return top_k(scores, k)
    if law is Law.TOP_THEN_SAMPLE:
        return top_k(scores, k - 1)
    return _no_children(scores.shape[0], scores.device)


@lru_cache(maxsize=64)
def _no_children(rows: int, device: torch.device) -> Int[Tensor, "R 0"]:
    with torch.inference_mode(False):
        return torch.empty((rows, 0), dtype=torch.long, device=device)


def next_child(
    draft_probs: Float[Tensor, "R V"], elder: Int[Tensor, "R j"], law: Law
) -> Float[Tensor, "R V"]:
    """The distribution of the next drawn child.

    `elder`: the tokens of its elder siblings, including `chosen_children`.
    """
    law = Law.of(law)
    if law is Law.IID or not elder.shape[-1]:
        return draft_probs
    if law is not Law.HUB:
        return without(draft_probs, elder)
    hub = draft_probs.argmax(-1, keepdim=True)
    only_hub = torch.zeros_like(draft_probs).scatter_(-1, hub, 1.0)
    return torch.where(elder == hub, without(draft_probs, hub), only_hub)


def top_k(scores: Float[Tensor, "R V"], k: int) -> Int[Tensor, "R k"]:
    """The k best tokens of each row, best first."""
    k = require_children(k, scores.shape[-1], Law.DETERMINISTIC)
    if k == 1 and scores.is_cpu and scores.shape[-1] >= LEAST_TOKENS_FOR_TOPK:
        return best_token(scores)[..., None]
    return scores.topk(k, dim=-1).indices


def require_children(k: int, vocabulary: int, law: Law | str, least: int = 0) -> int:
    """The number of children of one node as a plain integer, checked against what the law allows."""
    law, k = Law.of(law), integer("k", k, error=InvalidTree)
    if k < least:
        raise InvalidTree(f"k = {k} children, but k must be at least {least}")
    reason = too_many(k, vocabulary, law)
    if reason:
        raise InvalidTree(reason)
    return k


def too_many(k: int, vocabulary: int | None, law: Law) -> str | None:
    """Why a law cannot give a node k children, or None if it can; `vocabulary` None means unlimited."""
    if law is Law.HUB and k > 2:
        return f"{k} children of one node, but the law 'hub' gives one or two"
    if law is not Law.IID and vocabulary is not None and k > vocabulary:
        return f"{k} distinct children of one node, but the vocabulary has {vocabulary} tokens"
    return None
