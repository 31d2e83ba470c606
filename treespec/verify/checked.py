"""Target and draft rows, validated when a rule first reads them."""

from jaxtyping import Float
from torch import Tensor

from treespec.checks import instance, shown
from treespec.errors import InvalidArgument, RefusedTree
from treespec.probabilities import require_distribution
from treespec.protocols import Rows
from treespec.sampling.distributions import SampledRows, Sampling
from treespec.tree import TokenTree


class CheckedRows:
    """Target rows of a tree, each checked at its first visit: a rule pays only for the nodes it visits.

    A row must be a distribution that contains the tokens of the node's children, and as wide as the draft
    rows, even those that the rule does not read. Rows that `Sampling` computes from finite logits are
    distributions by construction and are not summed.
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
        rows = target_probs.logits if isinstance(target_probs, SampledRows) else target_probs
        if isinstance(rows, Tensor) and len(rows) < tree.shape.size:
            raise RefusedTree(f"{tree.shape.size} nodes, but {len(rows)} target rows")
        self._tree, self._given = tree, target_probs
        self._made_here = (
            isinstance(target_probs, SampledRows) and type(target_probs.sampling) is Sampling
        )
        self._rows: dict[int, Tensor] = {}

    @classmethod
    def of(cls, tree: TokenTree, target_probs: Rows) -> "CheckedRows":
        """Wrap `target_probs`; return it unchanged if it holds checked rows of this tree already."""
        if isinstance(target_probs, cls) and target_probs._tree is tree:
            return target_probs
        return cls(tree, target_probs)

    def __getitem__(self, node: int) -> Float[Tensor, "V"]:
        row = self._rows.get(node)
        if row is None:
            row = self._rows[node] = self._read(node)
        return row

    def _read(self, node: int) -> Tensor:
        try:
            row = self._given[node]
        except (IndexError, KeyError):
            size = self._tree.shape.size
            raise RefusedTree(f"{size} nodes, but there is no target row for node {node}") from None
        if not self._made_here:
            require_distribution(row, f"the target's row of node {node}")
        self._require_children(node, row.shape[0])
        return row

    def greedy_token(self, node: int) -> int | None:
        """The token that holds all the mass of a node's row; None if no token does.

        Does not materialise the row if `Sampling` computes it at temperature 0.
        """
        given = self._given
        if self._made_here and isinstance(given, SampledRows) and given.sampling.greedy:
            self._require_children(node, given.logits.shape[1])
            return given.greedy_token(node)
        mass, token = self[node].max(-1)
        return int(token) if mass == 1 else None

    def _require_children(self, node: int, size: int) -> None:
        """Refuse children whose tokens lie beyond the node's row, and draft rows of another width."""
        ids = self._tree.token_ids
        for child in self._tree.shape.children[node]:
            if ids[child] >= size:
                raise RefusedTree(
                    f"node {child} has the token {ids[child]}, but the target's row of its parent, node "
                    f"{node}, ends at token {size - 1}"
                )
        require_width(self._tree, size)


def draft_row(tree: TokenTree, node: int, target_probs: Float[Tensor, "V"]) -> Float[Tensor, "V"]:
    """The draft's row of a node, checked against the target's."""
    row = tree.checked_draft_probs_of(node)
    require_rows(node, target_probs, row)
    return row


def require_rows(
    node: int, target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "W"]
) -> None:
    """Raise `RefusedTree` unless the two rows of a node have the same vocabulary."""
    if draft_probs.shape != target_probs.shape:
        raise RefusedTree(_other_width(node, len(draft_probs), len(target_probs)))


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
