"""A tree of drafted tokens, and the law that its children were drawn by."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from treespec.door import instance, plainly_laid_out, sequence, shown, token_ids
from treespec.drawing import Look, captioned, draw_looks, draw_svg
from treespec.errors import InvalidTree
from treespec.probabilities import no_distributions, require_distribution
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

    __hash__ = (
        object.__hash__
    )  # that of `Enum` is written in Python, and laws are looked up by node

    def __str__(self) -> str:
        return self.value

    @property
    def together(self) -> bool:
        """Whether one child more changes how the others of its node are chosen."""
        return self in (Law.TOP_THEN_SAMPLE, Law.HUB)

    @classmethod
    def of(cls, given: "Law | str", name: str = "law") -> "Law":
        """The law itself, or the one of this name.

        Raises:
            InvalidTree: if there is none.
        """
        if isinstance(given, Law):
            return given
        try:
            return cls(given)
        except (ValueError, TypeError):  # the second: what has no hash
            names = ", ".join(map(str, cls))
            raise InvalidTree(f"{name} = {shown(given)} is no law: one of {names}") from None

    @classmethod
    def by_node(cls, given: "Law | str | Sequence[Law | str]", size: int) -> "tuple[Law, ...]":
        """The law of each of `size` nodes: one for all, or as many as there are nodes.

        Raises:
            InvalidTree: if there is no such law, or their number is another.
        """
        if isinstance(given, Law | str):
            return (cls.of(given),) * size
        laws = sequence("law", given, "laws, or one law", InvalidTree)
        if len(laws) != size:
            raise InvalidTree(f"{len(laws)} laws for {size} nodes")
        return tuple(cls.of(law, f"law[{node}]") for node, law in enumerate(laws))


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A tree of drafted tokens, with what an acceptance rule must know of how they were drawn.

    Args:
        shape: the topology.
        tokens: token id of every node, at least 0; `tokens[0]` is the last committed token. Drafted ids
            are columns of `draft_probs` where that is given.
        draft_probs: the *initial* distribution, after sampling settings, that the children of each node
            were drawn from: one row for each of the M nodes with children, in node order. None when every
            node is deterministic. Rules check that a row is a distribution when they first read it.
        law: how the children of each node were drawn; one law stands for all nodes, and the name of a
            law (`"iid"`) for the law. Children in index order are in draw order.

    Raises:
        InvalidTree: if a part is of another kind (tokens that are floats or truth values), lengths do not
            fit together, a law is unknown, a sampled law comes without its distributions, or a token id is
            out of range. Token ids on a device other than the CPU are
            checked when `token_ids` first reads them, so that making a tree does not wait for it.
    """

    shape: TreeShape
    tokens: Int[Tensor, "N"]
    draft_probs: Float[Tensor, "M V"] | None
    law: Law | str | Sequence[Law | str]

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        instance("shape", self.shape, TreeShape, "a TreeShape", InvalidTree)
        token_ids("tokens", self.tokens, InvalidTree)
        object.__setattr__(self, "law", Law.by_node(self.law, self.shape.size))
        if self.tokens.shape != (self.shape.size,):
            raise InvalidTree(
                f"a tree of {self.shape.size} nodes needs tokens of shape [{self.shape.size}], "
                f"not {list(self.tokens.shape)}"
            )
        self._require_draft_probs()
        if self.tokens.device.type == "cpu":
            _ = self.token_ids

    def _require_draft_probs(self) -> None:
        """Refuse rows that are not there, or of another kind or number; their numbers are not looked at."""
        if self.draft_probs is None:
            sampled = self.laws - {Law.DETERMINISTIC}
            if sampled:
                names = ", ".join(sorted(map(str, sampled)))
                raise InvalidTree(f"children drawn {names} need draft_probs: their distributions")
            return
        wanted = "a tensor of one row of probabilities for each node with children, or None"
        instance("draft_probs", self.draft_probs, Tensor, wanted, InvalidTree)
        plainly_laid_out("draft_probs", self.draft_probs, InvalidTree)
        rows = len(self.shape.internal)
        if not self.draft_probs.is_floating_point():
            raise InvalidTree(
                f"draft_probs is {self.draft_probs.dtype}, but probabilities are floating numbers"
            )
        if self.draft_probs.ndim != 2 or self.draft_probs.shape[0] != rows:
            raise InvalidTree(
                f"draft_probs has shape {list(self.draft_probs.shape)}, but needs one row for each of "
                f"the {rows} nodes that have children"
            )

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
        laws: Any = self.law  # a tuple since __post_init__
        return frozenset(laws[node] for node in self.shape.internal)

    def law_of(self, node: int) -> Law:
        """How the children of `node` were drawn.

        Raises:
            InvalidTree: if there is no such node.
        """
        return self.law[self.shape.node(node)]  # pyrefly: ignore[bad-index,bad-return]  (a tuple since __post_init__)

    def draft_probs_of(self, node: int) -> Float[Tensor, "V"]:
        """The initial distribution that the children of `node` were drawn from.

        Raises:
            InvalidTree: if the node has no children or the tree carries no distributions.
        """
        if self.draft_probs is None or not self.shape.children[self.shape.node(node)]:
            raise InvalidTree(f"node {node} has no draft distribution")
        return self.draft_probs[self._row[node]]

    def checked_draft_probs_of(self, node: int) -> Float[Tensor, "V"]:
        """The same, looked at: whether it is a distribution, once for each node.

        Raises:
            InvalidTree: see `draft_probs_of`.
            NotADistribution: naming node and value.
        """
        row = self.draft_probs_of(node)
        if node not in self._checked:
            require_distribution(row, f"the draft's row of node {node}")
            self._checked.add(node)
        return row

    def vouched(self) -> "TokenTree":
        """This tree, its rows taken for distributions without a look: for who has just computed them."""
        self._checked.update(self.shape.internal)
        return self

    def look_at_rows(self) -> bool:
        """Whether all rows are distributions, those of deterministic nodes apart; waits for the device."""
        if self.draft_probs is None or not self.draft_probs.numel():
            return True
        bad = no_distributions(self.draft_probs).tolist()
        wrong = [n for n in self.shape.internal if bad[self._row[n]]]
        fine = all(self.law_of(node) is Law.DETERMINISTIC for node in wrong)
        if fine:
            self.vouched()
        return fine

    @property
    def is_vouched(self) -> bool:
        """Whether every row of `draft_probs` has been looked at, or vouched for."""
        return self.draft_probs is None or self._checked.issuperset(self.shape.internal)

    @cached_property
    def _checked(self) -> set[int]:
        return set()

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
