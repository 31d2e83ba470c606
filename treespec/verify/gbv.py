"""Greedy multi-path block verification: select the best of K paths and verify it as a block."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree, TreeShape
from treespec.tree.law import LawOfNode
from treespec.verify.block import block_along
from treespec.verify.checked import draft_row
from treespec.verify.rule import Scope, ratio, rule


def _not_paths(shape: TreeShape, laws: Sequence[LawOfNode]) -> str | None:
    width, depth = len(shape.children[0]), shape.depth
    if depth and shape.breadth_first() != TreeShape.independent_chains(width, depth):
        return "needs paths of one length that share only the root (TreeShape.independent_chains)"
    return None


@rule(laws={Law.IID}, reference="arXiv:2602.16961", needs=_not_paths, scope=Scope.TREE)
def gbv(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Select the path with the largest p / q, then apply block verification with the law of that path.

    Greedy multi-path block verification (arXiv:2602.16961). Tokens are ordered by p / q at every node,
    paths lexicographically, and the highest path is selected. Its law at a node is
    [(A + y + z)^K - (A + y)^K] / [(A + w)^K - A^K], where w = q(prefix), A is the mass of lower prefixes,
    y = w q(lower tokens) and z = w q(x). With K = 1 this is `block`. Ours divides the difference of powers
    by z and w, so that nothing cancels however improbable the prefix is. Ties go to the higher id.

    The K paths are drawn independently: `TreeShape.independent_chains(K, depth)` with `Law.IID`. Equal
    prefixes are scored several times; the rows of the first are used.

    Args:
        tree: K paths of equal length.
        target_probs: `[V]` rows by node; those of the selected path are read.
        coins: as in `block`.

    Raises:
        RefusedTree: for another shape or law, or a selected token whose draft probability is 0.
    """
    highest = [tree.shape.path(leaf) for leaf in tree.shape.leaves]
    width, levels, odds = len(highest), [], []
    lower, mass = 0, 1
    for depth in range(tree.shape.depth):
        node = highest[0][depth]
        draft_probs = draft_row(tree, node, target_probs[node])
        level = _Level(target_probs[node], draft_probs, lower, mass, width)
        tokens = [tree.token_ids[path[depth + 1]] for path in highest]
        best = max(tokens, key=level.rank)
        highest = [path for path, token in zip(highest, tokens, strict=True) if token == best]
        before, chance = level.law_of(best)
        odds.append(ratio(target_probs[node], level.draft, best) * level.draft[best] / chance)
        lower, mass = lower + mass * before, mass * level.draft[best]
        levels.append(level)
    return block_along(highest[0], odds, target_probs, lambda i: levels[i].law(), coins)


class _Level:
    """One node of the selected path: the order of tokens there, and the law of the selected child."""

    def __init__(
        self,
        target_probs: Float[Tensor, "V"],
        draft_probs: Float[Tensor, "V"],
        lower: int | Float[Tensor, ""],
        mass: int | Float[Tensor, ""],
        width: int,
    ) -> None:
        self.draft = draft_probs.double()
        self._lower, self._mass, self._width = lower, mass, width
        drawn = self.draft > 0
        odds = target_probs / torch.where(drawn, self.draft, 1)
        self._odds = torch.where(drawn, odds, -1)  # tokens that are never drawn have no mass

    def rank(self, token: int) -> tuple[float, int]:
        """Sort key of a token: p / q, ties by id."""
        return self._odds[token].item(), token

    def law_of(self, token: int) -> tuple[Tensor, Tensor]:
        """The draft mass of tokens lower than `token`, and its probability of being the selected child."""
        odds, ids = self._odds, torch.arange(len(self._odds), device=self._odds.device)
        below = (odds < odds[token]) | ((odds == odds[token]) & (ids < token))
        before = torch.where(below, self.draft, 0).sum()
        return before, self._law(before, self.draft[token])

    def law(self) -> Float[Tensor, "V"]:
        """The probability of each token of being the selected child."""
        order = self._odds.argsort(stable=True)
        ordered = self.draft[order]
        law = self._law(ordered.cumsum(0) - ordered, ordered)
        return torch.zeros_like(law).scatter_(0, order, law)

    def _law(self, before: Tensor, draft: Tensor) -> Tensor:
        """[(A + w y + w q)^K - (A + w y)^K] / [(A + w)^K - A^K], both divided by w."""
        scale = self._lower + self._mass  # keeps the powers of improbable prefixes in range
        low = (self._lower + self._mass * before) / scale
        high = low + self._mass * draft / scale
        total = _powers(torch.ones_like(low), self._lower / scale, self._width)
        return draft * _powers(high, low, self._width) / total


def _powers(high: Tensor, low: Tensor | float | int, k: int) -> Tensor:
    """(high^k - low^k) / (high - low), as a sum of products."""
    total = torch.ones_like(high)
    for power in range(1, k):
        total = total * high + low**power
    return total
