"""Typical acceptance: accept tokens that the target finds probable enough. Lossy, for comparison only."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.rule import Scope, require_number, rule


def _off_target(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    accepted: int | None,
    **settings: float,
) -> float:
    """Given the drafted tree, of which no coin decides: an upper bound if its children were drawn."""
    return 0.0 if accepted is None else 1 - float(target_probs[accepted])


@rule(
    laws=Law,
    mixes=Law,
    reference="arXiv:2401.10774",
    lossless=False,
    scope=Scope.TREE,
    off_target=_off_target,
)
def typical(
    tree: TokenTree,
    target_probs: Rows,
    coins: Coins,
    /,
    *,
    epsilon: float = 0.09,
    delta: float = 0.3,
) -> Verdict:
    """Lossy: accept the longest path on which every token has p(x) > min(epsilon, delta exp(-H(p))).

    Typical acceptance of Medusa (arXiv:2401.10774, Section 2.3.1), with the thresholds of its code as
    defaults. No coin decides: a drafted token that is probable enough is always accepted, which biases the
    text towards the draft. Among paths of equal length, the one most probable under the target is
    accepted. Ours may accept no token at all (Medusa always emits a greedy token first; here the bonus is
    drawn from the target).

    Args:
        tree: any tree.
        target_probs: `[V]` rows by node; those of all passing nodes are read.
        coins: one draw for the bonus.
        epsilon: a token more probable than this always passes.
        delta: scale of the entropy-dependent threshold.
    """
    best, score = 0, (0, 0.0)
    scores = {0: score}
    for node in tree.shape.internal:
        if node not in scores:
            continue
        row = target_probs[node]
        require_number(row.sum(), node)
        least = threshold(row, epsilon, delta)
        for child in tree.shape.children[node]:
            mass = row[tree.token_ids[child]]
            if mass > least:
                depth, log_probability = scores[node]
                scores[child] = (depth + 1, log_probability + float(mass.log()))
                if scores[child] > score:
                    best, score = child, scores[child]
    return Verdict(tree.shape.path(best), coins.draw(target_probs[best]))


def threshold(probs: Float[Tensor, "V"], epsilon: float, delta: float) -> float:
    """min(epsilon, delta exp(-H)), H the entropy in nats."""
    entropy = -torch.special.xlogy(probs, probs).sum()
    return min(epsilon, delta * float((-entropy).exp()))
