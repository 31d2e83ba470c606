"""A tree of drafted tokens, and the law that its children were drawn by."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from treespec.drawing import Look, captioned, draw_looks, draw_svg
from treespec.errors import InvalidTree
from treespec.shape import TreeShape

__all__ = ["Law", "TokenTree"]


class Law(enum.Enum):
    """How the children of a node were chosen. Whether a rule is lossless depends on it."""

    IID = "iid"
    """Drawn independently from the node's draft distribution; siblings may repeat."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Drawn one after the other from the draft distribution, each token at most once."""
    DETERMINISTIC = "deterministic"
    """Chosen without chance (the k most probable, a lookup): distinct, whatever the coins."""
    TOP_THEN_SAMPLE = "top_then_sample"
    """The k - 1 most probable tokens, best first, then one drawn from the rest (arXiv:2502.18779)."""
    HUB = "hub"
    """A pair (i, a) with probability q(i), or (a, i) with q(a) q(i) / (1 - q(a)), where a is the most
    probable token and i any other (SpecHub, arXiv:2411.05289). A single child is drawn from q."""

    def __str__(self) -> str:
        return self.value

    @classmethod
    def of(cls, given: "Law | str", name: str = "law") -> "Law":
        """The law itself, or the one of this name.

        Raises:
            InvalidTree: if there is none.
        """
        try:
            return cls(given)
        except ValueError:
            names = ", ".join(map(str, cls))
            raise InvalidTree(f"{name} = {given!r} is no law: one of {names}") from None


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A tree of drafted tokens, with what an acceptance rule must know of how they were drawn.

    Args:
        shape: the topology.
        tokens: token id of every node, at least 0; `tokens[0]` is the last committed token. Drafted ids
            are columns of `draft_probs` where that is given.
        draft_probs: the *initial* distribution, after sampling settings, that the children of each node
            were drawn from: one row for each of the M nodes with children, in node order. None when every
            node is deterministic.
        law: how the children of each node were drawn; one law stands for all nodes, and the name of a
            law (`"iid"`) for the law. Children in index order are in draw order.

    Raises:
        InvalidTree: if lengths do not fit together, a law is unknown, a sampled law comes without its
            distributions, or a token id is out of range. Token ids on a device other than the CPU are
            checked when `token_ids` first reads them, so that making a tree does not wait for it.
    """

    shape: TreeShape
    tokens: Int[Tensor, "N"]
    draft_probs: Float[Tensor, "M V"] | None
    law: Law | str | Sequence[Law | str]

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        if isinstance(self.law, Law | str):
            laws = (Law.of(self.law),) * self.shape.size
        else:
            laws = tuple(Law.of(law, f"law[{node}]") for node, law in enumerate(self.law))
        object.__setattr__(self, "law", laws)
        if self.tokens.shape != (self.shape.size,):
            raise InvalidTree(
                f"a tree of {self.shape.size} nodes needs tokens of shape [{self.shape.size}], "
                f"not {list(self.tokens.shape)}"
            )
        if len(laws) != self.shape.size:
            raise InvalidTree(f"{len(laws)} laws for {self.shape.size} nodes")
        rows = len(self.shape.internal)
        if self.draft_probs is None:
            sampled = self.laws - {Law.DETERMINISTIC}
            if sampled:
                names = ", ".join(sorted(map(str, sampled)))
                raise InvalidTree(f"children drawn {names} need draft_probs: their distributions")
        elif self.draft_probs.ndim != 2 or self.draft_probs.shape[0] != rows:
            raise InvalidTree(
                f"draft_probs has shape {list(self.draft_probs.shape)}, but needs one row for each of "
                f"the {rows} nodes that have children"
            )
        if self.tokens.device.type == "cpu":
            _ = self.token_ids

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens as plain integers, read from the device once.

        Raises:
            InvalidTree: if an id is negative, or a drafted one is no column of `draft_probs`.
        """
        tokens = tuple(self.tokens.tolist())
        if min(tokens) < 0:
            node = next(node for node, token in enumerate(tokens) if token < 0)
            raise InvalidTree(f"node {node} has the token {tokens[node]}, but ids start at 0")
        if self.draft_probs is not None and max(tokens[1:], default=0) >= self.draft_probs.shape[1]:
            width = self.draft_probs.shape[1]
            node = next(node for node, token in enumerate(tokens) if node and token >= width)
            raise InvalidTree(
                f"node {node} has the token {tokens[node]}, but the rows of draft_probs end at token "
                f"{width - 1}"
            )
        return tokens

    @cached_property
    def laws(self) -> frozenset[Law]:
        """The laws that occur at nodes with children."""
        return frozenset(self.law_of(node) for node in self.shape.internal)

    def law_of(self, node: int) -> Law:
        """How the children of `node` were drawn."""
        return self.law[node]  # pyrefly: ignore[bad-index,bad-return]  (a tuple since __post_init__)

    def draft_probs_of(self, node: int) -> Float[Tensor, "V"]:
        """The initial distribution that the children of `node` were drawn from.

        Raises:
            InvalidTree: if the node has no children or the tree carries no distributions.
        """
        if self.draft_probs is None or not self.shape.children[node]:
            raise InvalidTree(f"node {node} has no draft distribution")
        return self.draft_probs[self._row[node]]

    @cached_property
    def _row(self) -> dict[int, int]:
        return {node: row for row, node in enumerate(self.shape.internal)}

    def __str__(self) -> str:
        return self.shape.draw([f"{node}:{token}" for node, token in enumerate(self.token_ids)])

    def _repr_svg_(self) -> str:
        return draw_svg(self.shape.children, self.token_ids)

    def _repr_html_(self) -> str:
        laws = ", ".join(sorted(map(str, self.laws))) or "none"
        svg = draw_looks(self.shape.children, [Look(str(token)) for token in self.token_ids])
        return captioned(
            svg,
            f"{self.shape.size - 1} draft tokens, depth {self.shape.depth}; law of the children: {laws}. "
            "Numbers are token ids.",
        )
