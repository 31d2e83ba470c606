"""Lenient rejection sampling. Lossy, for comparison only."""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.sampling.distributions import residual
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.rule import NodeChoice, Scope, ratio, rule, top_down


def _off_target(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"],
    children: Sequence[int],
    accepted: int | None,
    *,
    lenience: float,
) -> float:
    """Exact, averaged over what the draft might have drawn: each residual is the same for every draw."""
    left, reached, law = target_probs, 1.0, target_probs * 0
    for _ in children:
        taken = torch.minimum(draft_probs, left / lenience) if lenience else draft_probs
        law, reached = law + reached * taken, reached * (1 - float(taken.sum()))
        if reached <= 0:
            break
        left = residual(left, lenience * draft_probs)
    return float((law + max(reached, 0.0) * left - target_probs).abs().sum()) / 2


@rule(
    laws={Law.IID},
    reference="arXiv:2211.17192",
    lossless=False,
    scope=Scope.ELDERS,
    off_target=_off_target,
)
def lenient(
    tree: TokenTree, target_probs: Rows, coins: Coins, /, *, lenience: float = 0.5
) -> Verdict:
    """Lossy: `rrs` with the draft's probabilities multiplied by the lenience.

    The lenience of Leviathan et al. (arXiv:2211.17192, Appendix A.5), applied to every child of a tree: x
    is accepted with min(1, p(x) / (l q(x))), and after a rejection p <- norm([p - l q]+). Lenience 1 is
    `rrs`; 0 accepts everything.

    Args:
        tree: children drawn i.i.d. from `draft_probs`.
        target_probs: `[V]` rows by node.
        coins: as in `rrs`.
        lenience: l in [0, 1].
    """
    return top_down(tree, target_probs, coins, partial(_at_node, lenience))


def _at_node(
    lenience: float,
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    assert draft_probs is not None
    left = target_probs
    for child, token in enumerate(children):
        odds = ratio(left, draft_probs, token)
        if coins.accept(odds / lenience if lenience else 1.0):
            return NodeChoice(child=child)
        left = residual(left, lenience * draft_probs)
    return NodeChoice(token=coins.draw(left))
