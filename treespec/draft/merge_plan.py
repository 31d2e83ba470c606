"""Which nodes a tree of several sources has: best first by rates, or those of each source's own budget."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from treespec.draft.rates import Rates, rate
from treespec.tree import TokenTree

__all__ = ["DrawingSource", "Node", "Room", "Trie", "numbered", "planned", "side_by_side"]


class Room(NamedTuple):
    """The limits of a tree.

    Args:
        size: most nodes, the root included.
        depth: most edges from the root.
        branching: most children of a node.
    """

    size: int
    depth: int
    branching: int


class DrawingSource(NamedTuple):
    """A source that draws where it is told to.

    Args:
        name: of the source.
        rates: its own.
        depth: most edges from the root that it drafts.
    """

    name: str
    rates: Rates
    depth: int


@dataclass(eq=False)
class Node:
    """A node that the tree will have.

    Args:
        parent: its place in the plan; -1 for the root.
        depth: edges from the root.
        value: how probably it is accepted, by the rates; 1 where there are none.
        drawn_by: the source that drew it or will; None for deterministic nodes.
        token: its id; None if it is drawn later.
        entry: its place in the trie, or -1.
        tree_place: its place in the tree that `drawn_by` has proposed, or -1.
        children: their places in the plan, in the order in which they were chosen.
    """

    parent: int
    depth: int
    value: float
    drawn_by: str | None = None
    token: int | None = None
    entry: int = -1
    tree_place: int = -1
    children: list[int] = field(default_factory=list)


class Trie:
    """The deterministic trees of several sources, united by prefix.

    Equal children of a node are one entry; its value is the largest that a source gives it. Places of
    entries rise along each path.
    """

    def __init__(self) -> None:
        self.parents, self.tokens, self.values = [-1], [-1], [1.0]
        self.sources: list[list[str]] = [[]]
        self.children: list[list[int]] = [[]]
        self.whole: set[int] = set()
        self._entries: dict[tuple[int, int], int] = {}

    def unite(self, source: str, tree: TokenTree, most: int) -> list[int]:
        """Unite the first nodes of a tree with the others.

        Args:
            source: its name.
            tree: as it proposed it.
            most: nodes of it, the root left out.

        Returns:
            The entry of each of these nodes, the root first.
        """
        entries = [0]
        for node in range(1, min(tree.shape.size, most + 1)):
            entry = self._entry(entries[tree.shape.parents[node]], tree.token_ids[node])
            if source not in self.sources[entry]:
                self.sources[entry].append(source)
            entries.append(entry)
        return entries

    def add(self, source: str, tree: TokenTree, rates: Rates, whole: bool) -> list[int]:
        """Unite a tree with the others, and value its nodes.

        Args:
            source: its name.
            tree: as it proposed it.
            rates: of the source.
            whole: whether all its nodes must be kept.

        Returns:
            The entry of each of its nodes.
        """
        shape, values = tree.shape, [1.0]
        entries = self.unite(source, tree, shape.size)
        for node, entry in enumerate(entries[1:], start=1):
            value = rate(rates, shape.depths[node], shape.ranks[node])
            values.append(values[shape.parents[node]] * value)
            self.values[entry] = max(self.values[entry], values[node])
        if whole:
            self.whole.update(entries[1:])
        return entries

    def _entry(self, parent: int, token: int) -> int:
        entry = self._entries.setdefault((parent, token), len(self.parents))
        if entry == len(self.parents):
            self.parents.append(parent)
            self.tokens.append(token)
            self.values.append(0.0)
            self.sources.append([])
            self.children.append([])
            self.children[parent].append(entry)
        return entry


class _Candidate(NamedTuple):
    """A child that a planned node may get: from the trie, a proposed drawn tree, or a drawing source."""

    parent: int
    entry: int = -1
    proposed: str | None = None
    tree_place: int = -1
    draws: DrawingSource | None = None


def planned(
    trie: Trie,
    proposed: Mapping[str, tuple[TokenTree, Rates]],
    drawing: Collection[DrawingSource],
    room: Room,
) -> list[Node]:
    """The nodes of the tree, each after its parent.

    The node of largest value that has a parent is taken next; a value is the product of rates along the
    path. A drawing source's next child of a node has the rank of all children that the node has by then;
    any other node has its rank in its own source's tree. What is drawn is chosen by depth and rank alone
    and the elder child of a group before the younger: no choice depends on a drawn token.

    Args:
        trie: the deterministic nodes to choose from; those that must be kept whole come first.
        proposed: drawn trees to choose from, each with the rates of its source.
        drawing: sources that draw what the plan gives them, below deterministic nodes and their own.
        room: for the tree.
    """
    return _Planner(trie, proposed, drawing, room).run()


def side_by_side(trie: Trie, drawn: Mapping[str, tuple[TokenTree, int]]) -> list[Node]:
    """All nodes of the trie, and of each drawn tree the first ones, below one root.

    What is taken of a drawn tree is what its source had drawn when it had drawn so many: nodes are numbered
    in that order. So whether a node is taken does not depend on its token.

    Args:
        trie: the deterministic nodes.
        drawn: by source, its tree, and how many of its nodes are taken, the root left out.
    """
    nodes = [Node(-1, 0, 1.0, entry=0)]

    def add(parent: int, **facts: Any) -> int:
        nodes.append(Node(parent, nodes[parent].depth + 1, 1.0, **facts))
        nodes[parent].children.append(len(nodes) - 1)
        return len(nodes) - 1

    places = [0]
    for entry in range(1, len(trie.parents)):
        places.append(add(places[trie.parents[entry]], token=trie.tokens[entry], entry=entry))
    for name, (tree, most) in drawn.items():
        places = [0]
        for node in range(1, min(tree.shape.size, most + 1)):
            parent, token = places[tree.shape.parents[node]], tree.token_ids[node]
            places.append(add(parent, drawn_by=name, token=token, tree_place=node))
    return nodes


class _Planner:
    def __init__(
        self,
        trie: Trie,
        proposed: Mapping[str, tuple[TokenTree, Rates]],
        drawing: Collection[DrawingSource],
        room: Room,
    ) -> None:
        self._trie, self._proposed, self._drawing, self._room = trie, proposed, drawing, room
        self._nodes: list[Node] = []
        self._waiting: list[tuple[float, int, _Candidate]] = []
        self._tick = count()

    def run(self) -> list[Node]:
        self._take(Node(-1, 0, 1.0, entry=0))
        of_entry = {0: 0}
        for entry in sorted(self._trie.whole):
            of_entry[entry] = len(self._nodes)
            self._take(self._of_entry(of_entry[self._trie.parents[entry]], entry))
        while self._waiting and len(self._nodes) < self._room.size:
            value, _, candidate = heappop(self._waiting)
            parent = self._nodes[candidate.parent]
            if len(parent.children) >= self._room.branching:
                continue
            now = self._value(candidate)
            if now < -value:  # siblings have come before it since
                self._offer(candidate)
                continue
            self._take(self._node(candidate, now))
            self._offer_younger(candidate)
        return self._nodes

    def _take(self, node: Node) -> None:
        place = len(self._nodes)
        self._nodes.append(node)
        if node.parent >= 0:
            self._nodes[node.parent].children.append(place)
        if node.depth >= self._room.depth:
            return
        if node.entry >= 0:
            for entry in self._trie.children[node.entry]:
                if entry not in self._trie.whole:
                    self._offer(_Candidate(place, entry=entry))
        for name, (tree, _) in self._proposed.items():
            children = tree.shape.children[node.tree_place if node.drawn_by == name else 0]
            if children and (place == 0 or (node.drawn_by == name and node.tree_place >= 0)):
                self._offer(_Candidate(place, proposed=name, tree_place=children[0]))
        for source in self._drawing:
            if node.drawn_by in (None, source.name) and node.depth < source.depth:
                self._offer(_Candidate(place, draws=source))

    def _offer(self, candidate: _Candidate) -> None:
        value = self._value(candidate)
        if value > 0:
            heappush(self._waiting, (-value, next(self._tick), candidate))

    def _offer_younger(self, candidate: _Candidate) -> None:
        """After a drawn child: the next of its group."""
        if candidate.draws is not None:
            self._offer(candidate)
        if candidate.proposed is not None:
            shape = self._proposed[candidate.proposed][0].shape
            siblings = shape.children[shape.parents[candidate.tree_place]]
            rank = shape.ranks[candidate.tree_place] + 1
            if rank < len(siblings):
                self._offer(candidate._replace(tree_place=siblings[rank]))

    def _value(self, candidate: _Candidate) -> float:
        """As far as the siblings go that are there now."""
        parent = self._nodes[candidate.parent]
        if candidate.entry >= 0:
            return self._trie.values[candidate.entry]
        if candidate.proposed is not None:
            tree, rates = self._proposed[candidate.proposed]
            return parent.value * rate(
                rates, parent.depth + 1, tree.shape.ranks[candidate.tree_place]
            )
        source = candidate.draws
        assert source is not None
        return parent.value * rate(source.rates, parent.depth + 1, len(parent.children))

    def _node(self, candidate: _Candidate, value: float) -> Node:
        depth = self._nodes[candidate.parent].depth + 1
        if candidate.entry >= 0:
            return self._of_entry(candidate.parent, candidate.entry)
        if candidate.proposed is not None:
            token = self._proposed[candidate.proposed][0].token_ids[candidate.tree_place]
            return Node(
                candidate.parent,
                depth,
                value,
                candidate.proposed,
                token,
                tree_place=candidate.tree_place,
            )
        assert candidate.draws is not None
        return Node(candidate.parent, depth, value, candidate.draws.name)

    def _of_entry(self, parent: int, entry: int) -> Node:
        depth, value = self._nodes[parent].depth + 1, self._trie.values[entry]
        return Node(parent, depth, value, token=self._trie.tokens[entry], entry=entry)


def numbered(nodes: Sequence[Node], groups: Sequence[str]) -> list[int]:
    """The planned nodes breadth first, the children of each by the order of their groups.

    Args:
        nodes: as planned.
        groups: names of the sources that draw, in the order in which their groups are decided; the
            deterministic children come last.
    """
    place = {name: i for i, name in enumerate(groups)}
    order = [0]
    for at in order:  # grows meanwhile
        children = nodes[at].children
        order += sorted(children, key=lambda c: place.get(nodes[c].drawn_by or "", len(place)))
    return order
