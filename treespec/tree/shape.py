"""The topology of a token tree: a parent array, its constructors and derived properties."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, repeat
from operator import lt
from typing import Any, SupportsIndex

from attention_masks._plain import plain_integer, plain_integers
from treespec.checks import instance, integer, sequence, shown
from treespec.errors import InvalidTree, Unreadable
from treespec.files import brief, parse_json
from treespec.tree.pictures import draw_svg, draw_text

LARGEST_TREE = 2**20
"""Largest number of nodes of a shape, the root included. A shape of this size takes seconds and some 300 MB
to build; the parts that run trees accept only far smaller ones."""

_JSON = ["version", "parents", "order"]


@dataclass(frozen=True)
class TreeShape:
    """The topology of a token tree, as a parent array.

    Frozen and hashable. Everything but `parents` is derived. Constructors number nodes breadth first;
    `from_parents` keeps any order in which parents come before their children.

    Args:
        parents: `parents[0] == -1` and `0 <= parents[i] < i` for every other node i.

    Raises:
        InvalidTree: if `parents` is not such an array.

    Example:
        >>> shape = TreeShape.expansion([2, 1])
        >>> shape.parents
        (-1, 0, 0, 1, 2)
        >>> shape.size, shape.depth, shape.leaves
        (5, 2, (3, 4))
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        parents = _parents(self.parents)
        if not parents:
            raise InvalidTree("a tree has at least its root: parents must not be empty")
        if parents[0] != -1:
            raise InvalidTree(f"parents[0] = {parents[0]}, but node 0 is the root: it must be -1")
        if min(parents[1:], default=0) < 0 or not all(map(lt, parents, count())):
            wrong = next(i for i, p in enumerate(parents) if i and not 0 <= p < i)
            raise InvalidTree(
                f"parents[{wrong}] = {parents[wrong]}, but a parent comes before its child: "
                f"it must be in 0..{wrong - 1}"
            )
        object.__setattr__(self, "parents", parents)

    @classmethod
    def from_parents(cls, parents: Iterable[SupportsIndex]) -> "TreeShape":
        """The shape with this parent array; numpy and torch integers become plain integers."""
        return cls(_parents(parents))

    @classmethod
    def chain(cls, depth: SupportsIndex) -> "TreeShape":
        """A root and `depth` nodes, each below the previous one."""
        edges = _integer("depth", depth, least=0)
        _require_size(edges + 1)
        return cls(tuple(range(-1, edges)))

    @classmethod
    def kary(cls, branching: SupportsIndex, depth: SupportsIndex) -> "TreeShape":
        """The tree in which every node above the last level has `branching` children."""
        edges = _integer("depth", depth, least=0)
        if edges and _integer("branching[0]", branching, least=1) == 1:
            return cls.chain(edges)
        return cls.expansion(repeat(branching, min(edges, LARGEST_TREE)))

    @classmethod
    def expansion(cls, branching: Iterable[SupportsIndex]) -> "TreeShape":
        """SpecInfer's expansion <k1, ..., km> (arXiv:2305.09781): step i gives each leaf k_i children.

        Raises:
            InvalidTree: if a k_i is not an integer of at least 1, or the tree would have more than
                `LARGEST_TREE` nodes; its size is computed before any node is made.
        """
        branching = sequence("branching", branching, "integers", InvalidTree)
        _require_size(expansion_size(branching))
        parents, level = [-1], [0]
        for i, wanted in enumerate(branching):
            k, start = _integer(f"branching[{i}]", wanted, least=1), len(parents)
            parents += [node for node in level for _ in range(k)]
            level = list(range(start, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def independent_chains(cls, width: SupportsIndex, depth: SupportsIndex) -> "TreeShape":
        """`width` chains of `depth` nodes that share only the root."""
        chains, edges = _integer("width", width, least=1), _integer("depth", depth, least=1)
        _require_size(1 + chains * edges)
        return cls.expansion([chains, *repeat(1, edges - 1)])

    @classmethod
    def spine(cls, depth: SupportsIndex, siblings: SupportsIndex) -> "TreeShape":
        """A chain of `depth` first children, each with `siblings` younger siblings, which are leaves."""
        edges, beside = _integer("depth", depth, least=0), _integer("siblings", siblings, least=0)
        _require_size(1 + edges * (1 + beside))
        step = 1 + beside
        parents = (max(0, 1 + (level - 1) * step) for level in range(edges) for _ in range(step))
        return cls((-1, *parents))

    @classmethod
    def from_paths(cls, paths: Iterable[Iterable[SupportsIndex]]) -> "TreeShape":
        """The tree of these paths of child ranks, the root implied (Medusa's choices).

        Nodes are numbered by (length, path). The list must contain the prefixes and elder siblings of each
        path: `(0, 1)` needs `(0,)` and `(0, 0)`, because the rank of a child is its position among its
        siblings.

        Raises:
            InvalidTree: if a prefix or an elder sibling is missing, a path appears twice, or a rank is not
                an integer of at least 0.
        """
        given = enumerate(sequence("paths", paths, "paths", InvalidTree))
        plain = (_path(f"paths[{i}]", path) for i, path in given)
        ordered = sorted(plain, key=lambda path: (len(path), path))
        index: dict[tuple[int, ...], int] = {(): 0}
        parents = [-1]
        for path in ordered:
            if not path:
                raise InvalidTree("the empty path is the root, which is implied: leave it out")
            if path in index:
                raise InvalidTree(f"path {path} appears twice")
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
        """Read a shape written by `to_json`.

        Raises:
            InvalidTree: if the text is anything else, or has an unknown key, version or order.
        """
        instance("a tree in JSON", text, (str, bytes), "text", InvalidTree)
        try:
            data = parse_json(text)
        except Unreadable as error:
            raise InvalidTree(f"not JSON: {error}") from None
        if not isinstance(data, dict) or set(data) - set(_JSON):
            given = list(data) if isinstance(data, dict) else data
            raise InvalidTree(f"a tree is an object with the keys {_JSON}, not {brief(given)}")
        for key, expected in (("version", 1), ("order", "node")):
            if data.get(key) != expected:
                raise InvalidTree(f"{key!r} must be {expected!r}, not {brief(data.get(key))}")
        parents = data.get("parents")
        if not isinstance(parents, list):
            raise InvalidTree(f'"parents" must be a list of integers, not {brief(parents)}')
        return cls(tuple(parents))

    def to_json(self) -> str:
        """The shape as JSON: format version, parents and node order, nothing derived."""
        return json.dumps({"version": 1, "parents": list(self.parents), "order": "node"})

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
        """The position of each node among its siblings, from 0; the root has rank 0."""
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
        counts = Counter(self.depths)
        return tuple(counts[depth] for depth in range(self.depth + 1))

    @cached_property
    def depth_first(self) -> tuple[int, ...]:
        """Nodes in depth-first pre-order, children in index order."""
        order, stack = [], [0]
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(reversed(self.children[node]))
        return tuple(order)

    def node(self, node: SupportsIndex) -> int:
        """The index of a node as a plain integer, checked to be in range.

        Raises:
            InvalidTree: if there is no such node; negative indices do not count from the end.
        """
        index = node if type(node) is int else plain_integer(node)
        if index is None or not 0 <= index < len(self.parents):
            raise InvalidTree(
                f"there is no node {shown(node)}: the tree has nodes 0..{self.size - 1}"
            )
        return index

    @property
    def is_chain(self) -> bool:
        """Whether no node has more than one child."""
        return all(len(children) <= 1 for children in self.children)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the root to `node`, both included.

        Raises:
            InvalidTree: if there is no such node.
        """
        path = [self.node(node)]
        while path[-1] != 0:
            path.append(self.parents[path[-1]])
        return tuple(reversed(path))

    def rank_path(self, node: int) -> tuple[int, ...]:
        """The child ranks that lead from the root to `node` (Medusa's name for the node)."""
        return tuple(self.ranks[i] for i in self.path(node)[1:])

    def breadth_first(self) -> "TreeShape":
        """The same tree numbered level by level, siblings in order, as drafters number nodes."""
        order = sorted(range(self.size), key=lambda node: (self.depths[node], self.rank_path(node)))
        index = {node: i for i, node in enumerate(order)}
        return TreeShape(tuple(-1 if n == 0 else index[self.parents[n]] for n in order))

    def draw(self, labels: Sequence[object] | None = None) -> str:
        """The tree as text, one node per line, labelled by node index or by `labels`.

        Raises:
            InvalidTree: if the number of labels is not the number of nodes.
        """
        given: Any = range(self.size) if labels is None else labels
        if not isinstance(given, str):
            given = sequence("labels", given, "labels", InvalidTree)
        if len(given) != self.size:
            raise InvalidTree(f"{len(given)} labels for {self.size} nodes: give one for each")
        return draw_text(self.children, given)

    def __str__(self) -> str:
        return self.draw()

    def _repr_svg_(self) -> str:
        return draw_svg(self.children, range(self.size))


def expansion_size(branching: Iterable[SupportsIndex]) -> int:
    """Number of nodes of the expansion <k1, ..., km>, capped at `LARGEST_TREE + 1`; no tree is built.

    Example:
        >>> expansion_size([2, 1]), expansion_size([1000] * 1000) > LARGEST_TREE
        (5, True)
    """
    size = level = 1
    for i, wanted in enumerate(branching):
        level *= _integer(f"branching[{i}]", wanted, least=1)
        size += level
        if size > LARGEST_TREE:
            return LARGEST_TREE + 1
    return size


def _require_size(size: int) -> None:
    if size > LARGEST_TREE:
        raise InvalidTree(
            f"the tree has more than {LARGEST_TREE:,} nodes, the largest size allowed"
        )


def _parents(parents: Any) -> tuple[int, ...]:
    given = sequence("parents", parents, "integers", InvalidTree)
    _require_size(len(given))
    plain = plain_integers(given)
    return plain or tuple(_integer(f"parents[{i}]", p) for i, p in enumerate(given))


def _integer(name: str, value: Any, least: int | None = None) -> int:
    return integer(name, value, least, InvalidTree, None)  # sizes have a message of their own


def _path(name: str, path: Any) -> tuple[int, ...]:
    ranks = sequence(name, path, "ranks", InvalidTree)
    return tuple(_integer(f"a rank in a path, {name}[{i}]", r, 0) for i, r in enumerate(ranks))
