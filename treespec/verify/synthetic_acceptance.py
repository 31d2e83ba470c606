"""Synthetic acceptance: given rates decide how much of a tree is kept. For timing, never for text."""

from collections.abc import Sequence
from typing import Any

from treespec.checks import shown
from treespec.errors import InvalidArgument
from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.checked import TargetRows
from treespec.verify.rule import Rule

Rates = tuple[tuple[float, ...], ...]
"""By depth, then rank, as in `treespec.draft.rates`."""

SLACK = 1e-9
"""By how much the rates of siblings may exceed 1 by rounding."""


class SyntheticAcceptance(Rule):
    """A rule that accepts children at given rates, whatever their tokens and the target's rows are.

    It times trees and chains for a draft that does not exist yet: passes, drafting and commits are those of
    a real step, and acceptance is as given. The texts are meaningless, so the rule is lossy, and its
    departure from the target (`off_target`) is not known. The bonus is the target's most probable token
    after the last accepted node, so that a step pays for one of the target's rows, as with other rules.

    The expected tokens per step are those of `treespec.search.expected_tokens` for the same rates. SGLang's
    `SGLANG_SIMULATE_ACC_LEN` does the same for chains, with one mean length; here rates depend on depth
    and rank, and trees are covered.

    Args:
        rates: by depth, then rank: the probability that a child is the accepted one, given that its parent
            is accepted. The children of a node exclude each other. The last row also stands for greater
            depths; missing ranks have rate 0.

    Raises:
        InvalidArgument: if the rates are not rows of probabilities, or those of a row sum to more than 1.

    Example:
        >>> import torch
        >>> from treespec import TorchCoins, TreeShape
        >>> sure = SyntheticAcceptance([[0.0, 1.0], [1.0]])
        >>> tree = TokenTree(TreeShape((-1, 0, 0, 2)), torch.arange(4), None, Law.DETERMINISTIC)
        >>> sure(tree, torch.eye(8)[[0, 0, 0, 6]], TorchCoins(0))
        Verdict(path=(0, 2, 3), bonus=6)
    """

    def __init__(self, rates: Sequence[Sequence[float]]) -> None:
        self.rates = require_rates("rates", rates)
        super().__init__(
            self.synthetic,
            laws=Law,
            mixes=Law,
            reference="github.com/sgl-project/sglang, SGLANG_SIMULATE_ACC_LEN",
            lossless=False,
        )

    def synthetic(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Lossy: accept children at given rates. The texts are meaningless."""
        path = [0]
        while (child := self._accepted(tree, path, coins)) is not None:
            path.append(child)
        rows = TargetRows.of(tree, target_probs)
        bonus = rows.greedy_token(path[-1])
        return Verdict(tuple(path), int(rows[path[-1]].argmax()) if bonus is None else bonus)

    def _accepted(self, tree: TokenTree, path: Sequence[int], coins: Coins) -> int | None:
        left, by_rank = 1.0, self.rates[min(len(path), len(self.rates)) - 1]
        for rank, child in enumerate(tree.shape.children[path[-1]]):
            given = by_rank[rank] if rank < len(by_rank) else 0.0
            if given and coins.accept(min(1.0, given / left) if left > 0 else 1.0):
                return child
            left -= given
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rates,)


def require_rates(name: str, given: Sequence[Sequence[float]]) -> Rates:
    """The rates as tuples; refuses what no acceptance of children that exclude each other can be."""
    try:
        rows = tuple(tuple(float(entry) for entry in row) for row in given)
    except (TypeError, ValueError):
        rows = ()
    if not rows or not rows[0] or not all(0 <= entry <= 1 for row in rows for entry in row):
        raise InvalidArgument(
            f"{name} = {shown(given)}, but must be rows of probabilities by rank, one for each depth, such "
            "as [[0.7, 0.1], [0.6]]"
        )
    for depth, row in enumerate(rows, start=1):
        if sum(row) > 1 + SLACK:
            raise InvalidArgument(
                f"{name}[{depth - 1}] = {list(row)} sums to {sum(row):.6g}, but at most one child of a "
                f"node is accepted: the rates of depth {depth} may sum to 1 at most"
            )
    return rows
