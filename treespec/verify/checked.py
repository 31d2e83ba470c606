"""Target and draft rows as rules read them: distributions that fit the tree and each other."""

from collections.abc import Sized
from typing import Any

from jaxtyping import Float
from torch import Tensor

from treespec.checks import instance, shown
from treespec.errors import InvalidArgument, RefusedTree
from treespec.protocols import Rows
from treespec.sampling.distributions import SampledRows, Sampling
from treespec.tree import TokenTree
from treespec.tree.checked_rows import CheckedRows


class TargetRows(CheckedRows):
    """Target rows of a tree; `CheckedRows` says who checks them, and when.

    A row must be a distribution that contains the tokens of the node's children, and as wide as the draft
    rows, even those that the rule does not read.
    """

    def __init__(self, tree: TokenTree, target_probs: Rows) -> None:
        instance("tree", tree, TokenTree, "a TokenTree")
        if isinstance(target_probs, str | bytes) or not hasattr(target_probs, "__getitem__"):
            raise InvalidArgument(
                f"target_probs = {shown(target_probs)}, but must be a tensor [N, V] of probabilities, or "
                "an object with a row for each node, such as `Sampling().rows(logits)`"
            )
        if isinstance(target_probs, Tensor) and target_probs.ndim != 2:
            raise InvalidArgument(
                f"target_probs has the shape {list(target_probs.shape)}, but must be [N, V]: one row of "
                "probabilities for each node"
            )
        made_here = (
            isinstance(target_probs, SampledRows) and type(target_probs.sampling) is Sampling
        )
        rows = target_probs.logits if isinstance(target_probs, SampledRows) else target_probs
        given: Any = len(rows) if isinstance(rows, Sized) else None
        if given is not None and (
            given > tree.shape.size or (isinstance(rows, Tensor) and given < tree.shape.size)
        ):
            raise RefusedTree(
                f"{tree.shape.size} nodes, but {given} target rows: give one for each node"
            )
        super().__init__(target_probs, "target", made_here)
        self._tree = tree

    @classmethod
    def of(cls, tree: TokenTree, target_probs: Rows) -> "TargetRows":
        """Wrap `target_probs`; return it unchanged if it holds checked rows of this tree already."""
        if isinstance(target_probs, cls) and target_probs._tree is tree:
            return target_probs
        return cls(tree, target_probs)

    def __getitem__(self, node: int) -> Float[Tensor, "V"]:
        return self.read(node, node)

    def _find(self, row: int) -> Tensor:
        try:
            return self.given[row]
        except (IndexError, KeyError):
            size = self._tree.shape.size
            raise RefusedTree(f"{size} nodes, but there is no target row for node {row}") from None

    def greedy_token(self, node: int) -> int | None:
        """The token that holds all the mass of a node's row; None if no token does.

        Does not materialise the row if `Sampling` computes it at temperature 0.
        """
        given = self.given
        if self.vouched and isinstance(given, SampledRows) and given.sampling.greedy:
            self._fit(node, given.logits.shape[1])
            return given.greedy_token(node)
        mass, token = self[node].max(-1)
        return int(token) if mass == 1 else None

    def _fit(self, node: int, size: int) -> None:
        """Refuse children whose tokens lie beyond the node's row, and draft rows of another width."""
        ids = self._tree.token_ids
        for child in self._tree.shape.children[node]:
            if ids[child] >= size:
                raise RefusedTree(
                    f"node {child} has the token {ids[child]}, but the target's row of its parent, node "
                    f"{node}, ends at token {size - 1}"
                )
        require_width(self._tree, size)


def draft_row(
    tree: TokenTree, node: int, target_probs: Float[Tensor, "V"], row: int | None = None
) -> Float[Tensor, "V"]:
    """The draft's row of a node, or of a group of a mixed tree (`row`), as wide as the target's."""
    probs = tree.checked_draft_probs_of(node) if row is None else tree.checked_row(node, row)
    if probs.shape != target_probs.shape:
        raise RefusedTree(_other_width(node, len(probs), len(target_probs)))
    return probs


def require_width(tree: TokenTree, width: int) -> None:
    """Raise `RefusedTree` unless the draft rows, all in one tensor, have this width."""
    drafted, internal = tree.draft_probs, tree.shape.internal
    if drafted is not None and internal and drafted.shape[1] != width:
        raise RefusedTree(_other_width(internal[0], drafted.shape[1], width))


def _other_width(node: int, drafted: int, target: int) -> str:
    return (
        f"the draft distribution of node {node} has {drafted} tokens, the target's has {target}: cut or "
        "pad the draft's row to the target's vocabulary"
    )
