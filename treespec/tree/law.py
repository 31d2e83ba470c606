"""How the children of a node were chosen: all by one law, or in groups with a law each."""

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from treespec.checks import plain_integer, sequence, shown
from treespec.errors import InvalidTree
from treespec.tree.shape import TreeShape


class Law(enum.Enum):
    """How the children of a node were chosen. Whether an acceptance rule is lossless depends on it."""

    IID = "iid"
    """Drawn independently from the node's draft distribution; siblings may repeat."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Drawn one after another from the draft distribution, each token at most once."""
    DETERMINISTIC = "deterministic"
    """Chosen without randomness (the k most probable tokens, a lookup) and distinct."""
    TOP_THEN_SAMPLE = "top_then_sample"
    """The k - 1 most probable tokens, best first, then one drawn from the rest (arXiv:2502.18779)."""
    HUB = "hub"
    """A pair (i, a) with probability q(i), or (a, i) with q(a) q(i) / (1 - q(a)), where a is the most
    probable token and i any other (SpecHub, arXiv:2411.05289). A single child is drawn from q."""

    __hash__ = object.__hash__
    """Faster than the hash of `Enum`, which is written in Python: laws are looked up for every node."""

    def __str__(self) -> str:
        return self.value

    @property
    def together(self) -> bool:
        """Whether an additional child changes how the other children of its node are chosen."""
        return self in (Law.TOP_THEN_SAMPLE, Law.HUB)

    @classmethod
    def of(cls, given: "Law | str", name: str = "law") -> "Law":
        """The given law, or the law with the given name.

        Raises:
            InvalidTree: if there is no such law.
        """
        if isinstance(given, Law):
            return given
        try:
            return cls(given)
        except (ValueError, TypeError):  # TypeError: an unhashable value
            names = ", ".join(map(str, cls))
            raise InvalidTree(
                f"{name} = {shown(given)} is not a law: choose one of {names}"
            ) from None


LawOfNode = Law | tuple[tuple[Law, int], ...]
"""The law of all children of a node, or one pair (law, number of children) per group in child order."""


class Group(NamedTuple):
    """Siblings that were chosen together.

    Args:
        law: the law they were chosen by.
        children: their nodes, in draw order.
        row: index of the row of `TokenTree.draft_probs` that they were drawn from; None if they are
            deterministic.
    """

    law: Law
    children: tuple[int, ...]
    row: int | None


def laws_by_node(given: Any, shape: TreeShape) -> tuple[LawOfNode, ...]:
    """For each node of a shape, how its children were chosen.

    `given`: one law, or its name, for all nodes; or for each node a law or a sequence of groups, which are
    pairs of a law and a number of children.
    """
    if isinstance(given, Law | str):
        return (Law.of(given),) * shape.size
    entries = sequence("law", given, "laws, or one law", InvalidTree)
    if len(entries) != shape.size:
        raise InvalidTree(f"{len(entries)} laws for {shape.size} nodes")
    return tuple(_of_node(node, entry, shape) for node, entry in enumerate(entries))


def _of_node(node: int, entry: Any, shape: TreeShape) -> LawOfNode:
    if not isinstance(entry, Sequence) or isinstance(entry, str):
        return Law.of(entry, f"law[{node}]")
    pairs = []
    for i, pair in enumerate(entry):
        count = None
        if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
            count = plain_integer(pair[1])
        if count is None or count < 1:
            raise InvalidTree(
                f"law[{node}][{i}] = {shown(pair)}, but a group of children must be a pair: a law and the "
                "number of children, at least 1"
            )
        pairs.append((Law.of(pair[0], f"law[{node}][{i}]"), count))
    children, grouped = len(shape.children[node]), sum(count for _, count in pairs)
    if grouped != children:
        raise InvalidTree(
            f"law[{node}] has groups of {grouped} children in all, but the node has {children}"
        )
    return tuple(pairs)
