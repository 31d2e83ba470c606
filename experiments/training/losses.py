"""How far a draft's distribution is from the target's: what a draft is trained to make small.

Each loss takes the labels of some rows and the draft's logits of the tokens that it can draft, and returns
one number for each row, in nats where logarithms are taken. The target's probabilities of these tokens may
sum to s < 1; what is missing belongs to tokens that the draft cannot draft, so to it they have probability
0. Then no loss but `cross_entropy` and `forward_kl` reaches 0; `forward_kl` leaves out what no draft could
lower.

`lk_alpha` and `lk_lambda` are the LK losses of arXiv:2602.23881, with the acceptance rate
alpha = sum_x min(target_probs, draft_probs) of a row: `total_variation` is 1 - alpha and `lk_alpha`
-log alpha, whose gradient is that of `total_variation` divided by alpha. So it does not vanish where draft
and target hardly overlap, as that of `total_variation` does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

ETA = 3.0
"""How fast `lk_lambda` turns from the divergence to the acceptance rate: the paper's choice."""


@dataclass(frozen=True)
class Labels:
    """What rows of a draft are trained to predict.

    Args:
        logs: soft labels: the target's log-probabilities of the tokens that the draft can draft.
        tokens: hard labels: the token that follows in the text, as a column of `logs`; -1 if the draft
            cannot draft it.
    """

    logs: Float[Tensor, "*rows v"]
    tokens: Int[Tensor, "*rows"]


Loss = Callable[[Labels, Float[Tensor, "*rows v"]], Float[Tensor, "*rows"]]


def cross_entropy(labels: Labels, logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows"]:
    """-log of the draft's probability of the text's token; 0 if it cannot draft it.

    On texts that the target wrote at temperature 1 its mean is that of `forward_kl` and the target's
    entropy, but noisier.
    """
    logs = _draft_logs(labels, logits)
    token = labels.tokens.clamp(min=0)[..., None]
    return -logs.gather(-1, token)[..., 0] * (labels.tokens >= 0)


def forward_kl(labels: Labels, logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows"]:
    """KL(target || draft): the draft covers whatever the target may say.

    If s < 1: s KL(target, renormalised || draft), which is 0 if the draft has the target's distribution
    given that the token is one that it can draft. The gradient is that of the cross-entropy.
    """
    target_probs = labels.logs.exp()
    mass = target_probs.sum(-1)
    return (target_probs * (labels.logs - _draft_logs(labels, logits))).sum(-1) - torch.xlogy(
        mass, mass
    )


def reverse_kl(labels: Labels, logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows"]:
    """KL(draft || target): the draft says only what the target may say. At least -log s."""
    logs = _draft_logs(labels, logits)
    return (logs.exp() * (logs - labels.logs)).sum(-1)


def total_variation(labels: Labels, logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows"]:
    """1 - alpha: the probability that a token drawn from the draft is rejected. At least 1 - s."""
    return (_draft_logs(labels, logits).exp() - labels.logs.exp()).relu().sum(-1)


def lk_alpha(labels: Labels, logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows"]:
    """-log alpha. At least -log s."""
    return -torch.minimum(_draft_logs(labels, logits), labels.logs).logsumexp(-1)


def lk_lambda(labels: Labels, logits: Float[Tensor, "*rows v"]) -> Float[Tensor, "*rows"]:
    """lambda KL(target || draft) + (1 - lambda) (1 - alpha), where lambda = exp(-eta alpha).

    The weight is a number, not a function of the draft: the rows' mean alpha as it is now. So rows that are
    weighted together should be those of one depth of a batch, without any that are not counted.
    """
    rejected = total_variation(labels, logits)
    weight = torch.exp(-ETA * (1 - rejected.detach()).mean())
    return weight * forward_kl(labels, logits) + (1 - weight) * rejected


def _draft_logs(labels: Labels, logits: Tensor) -> Tensor:
    return logits.to(labels.logs.dtype).log_softmax(-1)


LOSSES: dict[str, Loss] = {
    loss.__name__: loss
    for loss in (cross_entropy, forward_kl, reverse_kl, total_variation, lk_alpha, lk_lambda)
}
"""By the name that configs use."""
