"""The upper bound on every per-node rule: the largest acceptance of any lossless scheme."""

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.checks import instance
from treespec.errors import InvalidTree
from treespec.sampling.children import chosen_children, next_child, require_children
from treespec.tree import Law
from treespec.tree.probabilities import require_distribution
from treespec.verify.exponential_race import draws_in_prefix


def optimal_acceptance(
    target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "W"], k: int, law: Law
) -> float:
    """The largest probability, over all lossless schemes, that the output is among the k drafted children.

    The value of the optimal transport between the target's row and the law of the drafts (SpecTr,
    arXiv:2310.15141): 1 + min over sets H of tokens of [p(H) - P(all drafts in H)], where the
    empty set gives 1. For i.i.d. drafts the minimising H is a prefix of the tokens sorted by p / q. The
    same holds for drafts without replacement, by a property that Hu et al. (arXiv:2502.18779) call
    q-convexity. With one draft the value is the sum of min(p, q).

    Ours differs from Hu et al. in two ways: without replacement, P(all drafts in H) is an integral
    (`draws_in_prefix`, within 1e-12), whatever k; and draws beyond the draft's support, uniform over the
    remaining tokens, are covered. For the other laws the value has a closed form:
    `DETERMINISTIC`: p(T), T the k best; `TOP_THEN_SAMPLE`: p(T) + sum outside T of min(p, q~), T the k - 1
    best and q~ the draft outside T (arXiv:2502.18779); `HUB` with two children:
    1 + min(0, p(a) - sum over i != a of [r(i) - p(i)]+), a the hub and r(i) the probability of the pair
    {i, a} in either order, since no pair lies in an H without the hub.

    Args:
        target_probs: the target's row, of any float dtype, on any device; computed in float64 on the CPU.
        draft_probs: the distribution that the children are drawn from, of the same length.
        k: number of children.
        law: how they are drawn.

    Returns:
        The probability.

    Raises:
        InvalidArgument: if the rows are not tensors.
        InvalidTree: if the rows differ in length, k is not an integer, or the law cannot draw k children
            (k < 1, more distinct children than tokens, three around a hub).
        NotADistribution: if a row is not finite, has negative numbers, or does not sum to 1.

    Example:
        >>> p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
        >>> [round(optimal_acceptance(p, q, k, Law.IID), 4) for k in (1, 2, 3)]
        [0.7, 0.86, 0.988]
    """
    for name, row in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        instance(name, row, Tensor, "a tensor of probabilities [V]")
    if target_probs.ndim != 1 or target_probs.shape != draft_probs.shape:
        raise InvalidTree(
            f"target_probs has shape {list(target_probs.shape)} and draft_probs "
            f"{list(draft_probs.shape)}, but one row each over the same vocabulary is needed"
        )
    law = Law.of(law)
    k = require_children(k, len(target_probs), law, least=1)
    target, draft = _row(target_probs, "target_probs"), _row(draft_probs, "draft_probs")
    if law is Law.IID or law is Law.WITHOUT_REPLACEMENT:
        loss = _best_prefix(target, draft, k, law)
    elif law is Law.HUB and k == 2:
        hub = draft.argmax()
        pairs = draft + draft[hub] * next_child(draft[None], hub[None, None], law)[0]
        pairs[hub] = 0
        loss = float(target[hub] - (pairs - target).clamp_min(0).sum())
    else:
        # Break ties on the row as given, which is the row that the drafter saw.
        chosen = chosen_children(draft_probs[None], k, law).cpu()
        outside = target.scatter(0, chosen[0], 0)
        loss = -float(outside.sum())
        if chosen.shape[1] < k:
            drawn = next_child(draft[None], chosen, law)[0]
            loss = -float((outside - drawn).clamp_min(0).sum())
    return 1 + min(loss, 0.0)


def _best_prefix(target: Float[Tensor, "V"], draft: Float[Tensor, "V"], k: int, law: Law) -> float:
    """The minimum of p(H) - P(all drafts in H) over prefixes H in the order of p / q."""
    possible = draft > 0
    if law is Law.WITHOUT_REPLACEMENT and k > possible.sum():
        return _beyond_support(target, possible, k)
    target, draft = target[possible], draft[possible]
    order = (target / draft).argsort()
    target, draft = target[order], draft[order]
    inside = draft.cumsum(0).clamp_max(1)
    if law is Law.IID:
        inside = inside**k
    elif k > 1:
        inside = draws_in_prefix(draft, k)
    inside[-1] = 1
    return float((target.cumsum(0) - inside).min())


def _beyond_support(target: Float[Tensor, "V"], possible: Tensor, k: int) -> float:
    """The same for more draws without replacement than the support has tokens.

    The draws are the whole support and k' of the n tokens outside it, uniformly. H is the support and the
    m outside tokens of smallest p; it contains all drafts with probability C(m, k') / C(n, k').
    """
    rest = target[~possible].sort().values
    more, count = k - int(possible.sum()), torch.arange(1, len(rest) + 1, dtype=torch.float64)
    # C(m - 1, k') / C(m, k') = (m - k') / m, from m = n downwards.
    falls = ((count - more).clamp_min(0) / count)[1:].flip(0)
    inside = torch.cat([falls.new_ones(1), falls.cumprod(0)]).flip(0)
    return float((target[possible].sum() + rest.cumsum(0) - inside).min())


def _row(probs: Float[Tensor, "V"], name: str) -> Float[Tensor, "V"]:
    """The row in float64 on the CPU, summing to 1."""
    require_distribution(probs, name)
    row = torch.from_numpy(probs.detach().cpu().double().numpy())
    return row / row.sum()
