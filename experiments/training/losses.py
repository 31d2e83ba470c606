"""How far a draft's distribution is from the target's: what a draft is trained to make small.

Each function takes the target's log-probabilities of the tokens that the draft can draft, and the draft's
logits of them, and returns one number for each row, in nats where logarithms are taken. The target's
probabilities may sum to less than 1: what is missing belongs to tokens that the draft cannot draft.

With the acceptance rate alpha = sum_x min(target_probs, draft_probs) of a row: `total_variation` is
1 - alpha, and `negative_log_acceptance` -log alpha.
"""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

__all__ = ["LOSSES", "Loss"]

Loss = Callable[[Float[Tensor, "*rows v"], Float[Tensor, "*rows v"]], Float[Tensor, "*rows"]]


def forward_kl(
    target_logs: Float[Tensor, "*rows v"], logits: Float[Tensor, "*rows v"]
) -> Float[Tensor, "*rows"]:
    """KL(target || draft): the draft covers whatever the target may say."""
    draft_logs = logits.float().log_softmax(-1)
    return (target_logs.exp() * (target_logs - draft_logs)).sum(-1)


LOSSES: dict[str, Loss] = {"forward_kl": forward_kl}
"""By the name that configs use."""
