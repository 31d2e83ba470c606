"""K-SEQ: every draft faces the same, slightly stricter test."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.rule import NodeChoice, Scope, ratio, rule, top_down

MARGIN = 1e-12
"""Relative margin of the division factor above its root: there the residual cannot be negative."""


@rule(laws={Law.IID}, reference="arXiv:2310.15141", scope=Scope.SIBLINGS)
def kseq(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Test the k children in draw order, each with min(1, p / (r q)); if all fail, draw from the residual.

    SpecTr's K-SEQ (arXiv:2310.15141, Algorithm 2). With beta(r) = sum min(q, p / r), the division factor
    r is the root of 1 - (1 - beta)^k = r beta in [1, k]; acceptance is then 1 - (1 - beta)^k, at least
    (1 - 1/e) of the optimum. The residual is p - min(q, p / r) (1 - (1 - beta)^k) / beta. Ours keeps r
    above the root by one part in 1e12: at any such r the rule is lossless, whatever the search error.

    Args:
        tree: children drawn i.i.d. from `draft_probs`; siblings may repeat.
        target_probs: `[V]` rows by node.
        coins: one coin for each child tested and one draw at the end.

    Raises:
        RefusedTree: for children drawn by another law, or a tested child whose draft probability is 0.
    """
    return top_down(tree, target_probs, coins, _at_node)


def _at_node(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    assert draft_probs is not None
    factor = division_factor(target_probs, draft_probs, len(children))
    for child, token in enumerate(children):
        if coins.accept(ratio(target_probs, draft_probs, token) / factor):
            return NodeChoice(child=child)
    accepted = torch.minimum(draft_probs, target_probs / factor)
    beta = accepted.sum()
    if beta == 0:
        return NodeChoice(token=coins.draw(target_probs))
    left = (target_probs - accepted * ((1 - (1 - beta) ** len(children)) / beta)).clamp_min(0)
    return NodeChoice(token=coins.draw(left if left.sum() > 0 else target_probs))


def division_factor(
    target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "V"], k: int
) -> float:
    """The division factor r of K-SEQ for k drafts: just above the root of 1 - (1 - beta(r))^k = r beta(r).

    `target_probs`: `[V]`. `draft_probs`: `[V]`, the distribution that each of the k drafts was drawn from.
    """
    if k == 1:
        return 1.0
    from scipy.optimize import brentq

    target, draft = (row.double().cpu().numpy() for row in (target_probs, draft_probs))
    buffer = np.empty_like(target)  # allocating one for every factor would cost more than the sums
    excess = partial(_excess, target=target, draft=draft, k=k, buffer=buffer)
    if excess(1.0) <= 0:  # the supports are disjoint, or the rows are equal
        return 1.0
    factor, above = float(k), MARGIN
    if excess(factor) < 0:
        factor = float(brentq(excess, 1.0, factor, xtol=1e-15))  # pyrefly: ignore[bad-argument-type]
    while excess(factor * (1 + above)) > 0 and above < 1:
        above *= 2
    return factor * (1 + above)


def _excess(
    factor: float, target: np.ndarray, draft: np.ndarray, k: int, buffer: np.ndarray
) -> float:
    """1 - (1 - beta(r))^k - r beta(r), which falls with r; overwrites `buffer`."""
    np.minimum(draft, np.divide(target, factor, out=buffer), out=buffer)
    beta = min(float(buffer.sum()), 1.0)
    return 1 - (1 - beta) ** k - factor * beta
