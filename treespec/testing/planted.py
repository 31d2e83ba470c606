"""A bias of known size planted in a rule, which a check of losslessness has to find."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import TokenTree
from treespec.verify import Rule


def planted(rule: Rule, total_variation: float, *, root: int | None = None) -> Rule:
    """The same rule, except that the law of the token after the root is off by a given total variation.

    The vocabulary is divided into the most probable tokens, which hold half of the target's mass, and the
    rest. Now and then, a token of the first part is replaced by a draw from the rest. All probabilities of
    a part change by the same factor, so the law is flattened as if by a wrong temperature. With parts of
    equal mass, this has the least chi-square divergence that its total variation allows, 4 d^2, so no bias
    of this size is harder to detect for a chi-square test that sees every token. The tokens that follow
    keep the target's law.

    Args:
        rule: a lossless rule.
        total_variation: d, in (0, 0.5].
        root: plant the bias only where the root is this token; the last token of a prompt plants it at the
            first root.

    Raises:
        ValueError: if `total_variation` is out of range; or, when the rule is called, if the target puts
            all mass on one token, so that no other token can take some.
    """
    if not 0 < total_variation <= 0.5:
        raise ValueError(f"total_variation = {total_variation}, but must be in (0, 0.5]")

    def biased(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        verdict = rule(tree, target_probs, coins)
        if root is not None and tree.token_ids[0] != root:
            return verdict
        row = target_probs[0]
        loses = losing_part(row)
        gains = torch.where(loses, 0.0, row)
        if not bool(gains.sum() > 0):
            raise ValueError("the target puts all mass on one token: no bias can be planted there")
        first = tree.token_ids[verdict.path[1]] if verdict.accepted else verdict.bonus
        lost = row[loses].sum() / row.sum()
        if not bool(loses[first]) or not coins.accept(float(total_variation / lost)):
            return verdict
        return Verdict((0,), coins.draw(gains))

    biased.__name__ = biased.__qualname__ = f"{rule}_planted"
    return Rule(
        biased,
        laws=rule.laws,
        reference=rule.reference,
        lossless=rule.lossless,
        one_hot=rule.one_hot,
        mixes=rule.mixes,
    )


def losing_part(probs: Float[Tensor, "V"]) -> Bool[Tensor, "V"]:
    """Mask of the most probable tokens that together hold half of the mass; at least one token."""
    values, order = probs.double().sort(descending=True, stable=True)
    before = values.cumsum(0) - values
    return torch.zeros_like(probs, dtype=torch.bool).scatter(0, order, before < values.sum() / 2)
