"""Typical, epsilon and eta cut-offs: which tokens of a row sampling leaves out.

Each takes logits `[..., V]` after temperature and earlier truncations, and returns them with -inf for what
is left out. They agree bit for bit with the warpers of transformers 5.23, of which they keep at least the
most probable token.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def typical(logits: Float[Tensor, "*rows V"], mass: float) -> Float[Tensor, "*rows V"]:
    """Keep the tokens whose information is closest to the row's entropy, until their mass reaches `mass`.

    Locally typical sampling, arXiv:2202.00666.
    """
    information = -logits.log_softmax(-1)
    entropy = (information * (-information).exp()).nansum(-1, keepdim=True)
    distance, order = (information - entropy).abs().sort(-1)
    reached = logits.gather(-1, order).softmax(-1).cumsum(-1)
    last = (reached < mass).sum(-1, keepdim=True).clamp_max(logits.shape[-1] - 1)
    beyond = distance > distance.gather(-1, last)
    beyond[..., 0] = False
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)


def epsilon(logits: Float[Tensor, "*rows V"], least: float) -> Float[Tensor, "*rows V"]:
    """Drop tokens less probable than `least`: epsilon sampling, arXiv:2210.15191."""
    return _without_rare(logits, logits.softmax(-1) < least)


def eta(logits: Float[Tensor, "*rows V"], least: float) -> Float[Tensor, "*rows V"]:
    """Drop tokens less probable than min(eta, sqrt(eta) exp(-entropy)): eta sampling, arXiv:2210.15191."""
    logs = logits - logits.logsumexp(-1, keepdim=True)
    probs = logs.softmax(-1)
    entropy = -(logs.clamp_min(torch.finfo(logs.dtype).min) * probs).sum(-1, keepdim=True)
    bound = torch.full((), least, device=logits.device)  # filled there: a copy would be waited for
    bound = torch.minimum(bound, bound.sqrt() * (-entropy).exp())
    return _without_rare(logits, logits.softmax(-1) < bound)


def _without_rare(
    logits: Float[Tensor, "*rows V"], rare: Bool[Tensor, "*rows V"]
) -> Float[Tensor, "*rows V"]:
    return logits.masked_fill(rare & (logits < logits.amax(-1, keepdim=True)), -torch.inf)
