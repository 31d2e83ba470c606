"""Rows of probabilities that are checked when they are first read, once."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from treespec.tree.probabilities import require_distribution


class CheckedRows:
    """Rows of a draft or a target, and the only record of which of them have been checked.

    *Who checks.* `read`, when a row is first read, whichever rule reads it. So a rule pays for the nodes
    that it visits, and a row that no rule reads is never looked at.

    *Who remembers.* This object, for as long as its rows live: a `TokenTree` has one for its `draft_probs`,
    so that all rules that decide on the tree share its checks; a call of a rule makes one for the target's
    rows (`treespec.verify.checked.TargetRows`, which also compares them with the tree).

    *Who may skip.* Who has just computed the rows: a drafter says so with `TokenTree.vouched`, and rows
    that `Sampling` computes from finite logits are distributions by construction. An engine that does not
    read row by row either takes only such rows (`by_kernel`), copies them with their record (`on_host`), or
    looks at all of them at once on the device: the target's at every call, the draft's once (`fused`, with
    `TokenTree.look_at_rows`).

    Args:
        given: the rows, `given[i] -> [V]`.
        whose: "draft" or "target", for messages.
        vouched: whether all rows are known to be distributions.
    """

    def __init__(self, given: Any, whose: str, vouched: bool = False) -> None:
        self.given, self.vouched = given, vouched
        self._whose = whose
        self._read: dict[int, Tensor] = {}

    @property
    def rows_read(self) -> int:
        """Number of rows that have been read, and hence checked."""
        return len(self._read)

    def read(self, row: int, node: int) -> Float[Tensor, "V"]:
        """A row, for the children of a node.

        Raises:
            NotADistribution: if it is not one; the error names node and value.
        """
        probs = self._read.get(row)
        if probs is None:
            probs = self._find(row)
            if not self.vouched:
                require_distribution(probs, f"the {self._whose}'s row of node {node}")
            self._fit(node, probs.shape[0])
            self._read[row] = probs
        return probs

    def _find(self, row: int) -> Tensor:
        return self.given[row]

    def _fit(self, node: int, size: int) -> None:
        """Refuse a distribution over `size` tokens that does not belong to the node."""
