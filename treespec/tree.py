"""The tree type: a shape without tokens, and a tree of drafted tokens.

Node 0 is the root, the last committed token. `size` counts it; draft tokens = size - 1. `depth` counts
edges. A chain is a tree with one child per node.
"""

import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from treespec.drawing import draw_svg, draw_text
from treespec.errors import InvalidTree

__all__ = ["Law", "TokenTree", "TreeShape"]


@dataclass(frozen=True)
class TreeShape:
    """The topology of a token tree, as a parent array.

    Frozen and hashable. Everything but `parents` is derived. Constructors number nodes breadth first;
    `from_parents` keeps any order in which parents come before their children.

    Args:
        parents: `parents[0] == -1` and `0 <= parents[i] < i` for every other node i.

    Raises:
        InvalidTree: if `parents` is no such array.

    Example:
        >>> shape = TreeShape.expansion([2, 1])
        >>> shape.parents
        (-1, 0, 0, 1, 2)
        >>> shape.size, shape.depth, shape.leaves
        (5, 2, (3, 4))
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse arrays that are no tree."""
        parents = tuple(self.parents)
        if not parents:
            raise InvalidTree("a tree has at least its root: parents must not be empty")
        for i, parent in enumerate(parents):
            if isinstance(parent, bool) or not isinstance(parent, int):
                raise InvalidTree(f"parents[{i}] = {parent!r} is no integer")
            if i == 0 and parent != -1:
                raise InvalidTree(f"parents[0] = {parent}, but node 0 is the root: it must be -1")
            if i > 0 and not 0 <= parent < i:
                raise InvalidTree(
                    f"parents[{i}] = {parent}, but a parent comes before its child: "
                    f"it must be in 0..{i - 1}"
                )
        object.__setattr__(self, "parents", parents)

    # -- constructors ---------------------------------------------------------------------------

    @classmethod
    def from_parents(cls, parents: Iterable[int]) -> "TreeShape":
        """The shape with this parent array."""
        return cls(tuple(parents))

    @classmethod
    def chain(cls, depth: int) -> "TreeShape":
        """A root and `depth` nodes, one below the other."""
        return cls.expansion([1] * _budget("depth", depth, least=0))

    @classmethod
    def kary(cls, branching: int, depth: int) -> "TreeShape":
        """Every node above the last level has `branching` children."""
        return cls.expansion([branching] * _budget("depth", depth, least=0))

    @classmethod
    def expansion(cls, branching: Sequence[int]) -> "TreeShape":
        """SpecInfer's expansion <k1, ..., km> (arXiv:2305.09781): level i gives each leaf k_i children."""
        parents, level = [-1], [0]
        for i, k in enumerate(branching):
            _budget(f"branching[{i}]", k, least=1)
            start = len(parents)
            parents += [node for node in level for _ in range(k)]
            level = list(range(start, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def independent_chains(cls, width: int, depth: int) -> "TreeShape":
        """`width` chains of `depth` nodes that share only the root."""
        _budget("width", width, least=1)
        _budget("depth", depth, least=1)
        return cls.expansion([width] + [1] * (depth - 1))

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> "TreeShape":
        """The tree that holds these paths of child ranks, the root implied (Medusa's choices).

        Nodes are numbered by (length, path). The list must be prefix-closed: `(0, 1)` needs `(0,)`, and
        `(1,)` needs `(0,)`, because the rank of a child is its place among its siblings.

        Raises:
            InvalidTree: if a prefix or an elder sibling is missing, or a path stands twice.
        """
        ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
        index: dict[tuple[int, ...], int] = {(): 0}
        parents = [-1]
        for path in ordered:
            if not path:
                raise InvalidTree("the empty path is the root, which is implied: leave it out")
            if path in index:
                raise InvalidTree(f"path {path} stands twice")
            if path[:-1] not in index:
                raise InvalidTree(f"path {path} has no parent: {path[:-1]} is missing")
            if path[-1] != 0 and (*path[:-1], path[-1] - 1) not in index:
                raise InvalidTree(
                    f"path {path} has no elder sibling: {(*path[:-1], path[-1] - 1)} is missing"
                )
            index[path] = len(parents)
            parents.append(index[path[:-1]])
        return cls(tuple(parents))

    @classmethod
    def from_json(cls, text: str) -> "TreeShape":
        """Read what `to_json` wrote.

        Raises:
            InvalidTree: if the text is no JSON of version 1, or its parents are no tree.
        """
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidTree(f"not JSON: {error}") from error
        if not isinstance(data, dict) or data.get("version") != 1:
            raise InvalidTree('expected {"version": 1, "parents": [...], "order": "node"}')
        parents = data.get("parents")
        if not isinstance(parents, list):
            raise InvalidTree(f'"parents" must be a list of integers, not {parents!r}')
        return cls(tuple(parents))

    def to_json(self) -> str:
        """JSON with the version, the parents, and nothing that can be derived from them."""
        return json.dumps({"version": 1, "parents": list(self.parents), "order": "node"})

    # -- derived facts --------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of nodes, the root included."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Edges between the root and each node."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """Edges between the root and the deepest node; levels = depth + 1."""
        return max(self.depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node, in index order (for sampled laws: in draw order)."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The place of each node among its siblings, from 0; the root has 0."""
        ranks = [0] * self.size
        for siblings in self.children:
            for rank, node in enumerate(siblings):
                ranks[node] = rank
        return tuple(ranks)

    @cached_property
    def internal(self) -> tuple[int, ...]:
        """Nodes that have children, in node order."""
        return tuple(node for node, children in enumerate(self.children) if children)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, in node order."""
        return tuple(node for node, children in enumerate(self.children) if not children)

    @cached_property
    def level_sizes(self) -> tuple[int, ...]:
        """Number of nodes at each depth, the root's level first."""
        return tuple(self.depths.count(depth) for depth in range(self.depth + 1))

    @cached_property
    def depth_first(self) -> tuple[int, ...]:
        """Nodes in depth-first pre-order, children in index order."""
        order, stack = [], [0]
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(reversed(self.children[node]))
        return tuple(order)

    @property
    def is_chain(self) -> bool:
        """Whether no node has more than one child."""
        return all(len(children) <= 1 for children in self.children)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root to `node`, both included."""
        path = [node]
        while path[-1] != 0:
            path.append(self.parents[path[-1]])
        return tuple(reversed(path))

    def rank_path(self, node: int) -> tuple[int, ...]:
        """The child ranks that lead from the root to `node` (Medusa's name for it)."""
        return tuple(self.ranks[i] for i in self.path(node)[1:])

    def breadth_first(self) -> "TreeShape":
        """The same tree numbered level by level, siblings in their order: how drafters number nodes."""
        order = sorted(range(self.size), key=lambda node: (self.depths[node], self.rank_path(node)))
        place = {node: i for i, node in enumerate(order)}
        return TreeShape(tuple(-1 if n == 0 else place[self.parents[n]] for n in order))

    # -- pictures -------------------------------------------------------------------------------

    def draw(self, labels: Sequence[object] | None = None) -> str:
        """The tree as lines of text, one node a line, labelled by node index or by `labels`."""
        return draw_text(self.children, range(self.size) if labels is None else labels)

    def __str__(self) -> str:
        return self.draw()

    def _repr_svg_(self) -> str:
        return draw_svg(self.children, range(self.size))


class Law(enum.Enum):
    """How the children of a node were chosen. Whether a rule is lossless depends on it."""

    IID = "iid"
    """Drawn independently from the node's draft distribution; siblings may repeat."""
    WITHOUT_REPLACEMENT = "without_replacement"
    """Drawn one after the other from the draft distribution, each token at most once."""
    DETERMINISTIC = "deterministic"
    """Chosen without chance (the k most probable, a lookup): distinct, whatever the coins."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A tree of drafted tokens, with what an acceptance rule must know of how they were drawn.

    Args:
        shape: the topology.
        tokens: token id of every node; `tokens[0]` is the last committed token.
        draft_probs: the *initial* distribution, after sampling settings, that the children of each node
            were drawn from: one row for each of the M nodes with children, in node order. None when every
            node is deterministic.
        law: how the children of each node were drawn; one law stands for all nodes. Children in index
            order are in draw order.

    Raises:
        InvalidTree: if lengths do not fit together, or a sampled law comes without its distributions.
    """

    shape: TreeShape
    tokens: Int[Tensor, "N"]
    draft_probs: Float[Tensor, "M V"] | None
    law: Law | Sequence[Law]

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        laws = (self.law,) * self.shape.size if isinstance(self.law, Law) else tuple(self.law)
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

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens as plain integers, read from the device once."""
        return tuple(self.tokens.tolist())

    @cached_property
    def laws(self) -> frozenset[Law]:
        """The laws that occur at nodes with children."""
        return frozenset(self.law_of(node) for node in self.shape.internal)

    def law_of(self, node: int) -> Law:
        """How the children of `node` were drawn."""
        return self.law[node]  # pyrefly: ignore[bad-index]  (a tuple since __post_init__)

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


def _budget(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidTree(f"{name} = {value!r}, but must be an integer of at least {least}")
    return value
