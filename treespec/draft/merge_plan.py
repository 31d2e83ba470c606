"""Plan the nodes of a merged tree: best first by rates, or the first nodes of each source's tree."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from treespec.draft.rates import Rates, rate
from treespec.tree import TokenTree

LEAST_REST = 0.01
"""Least probability that none of a source's children of a node is accepted, whatever the rates say."""


class Room(NamedTuple):
    """The limits of a tree; unlike those of a source, its depth may be 0."""

    size: int
    depth: int
    branching: int


class DrawingSource(NamedTuple):
    """A source that draws where the plan asks for it."""

    name: str
    rates: Rates
    depth: int


@dataclass(eq=False)
class Node:
    """A planned node of the merged tree.

    Args:
        parent: index of its parent in the plan; -1 for the root.
        depth: edges from the root.
        value: estimated probability that it is accepted, by the rates; 1 without rates.
        drawn_by: the source that drew or will draw it; None for deterministic nodes.
        token: token id; None if it is drawn later.
        entry: index of its entry in the trie, or -1.
        tree_place: index of the node in the tree that `drawn_by` has proposed, or -1.
        children: indices of its children in the plan, in the order in which they were chosen.
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

    Equal children of a node are one entry. At most one child of a node can be accepted, so children of
    different sources lower each other's values. A source says of each of its children that it is accepted
    with probability r, and none of them with probability q = 1 - (sum of r). If sources err independently,
    then, given what all of them propose, each child is accepted with a probability in proportion to r / q,
    and none of them in proportion to 1. With one source, r / q / (1 + sum of r / q) is r. Rates of siblings
    that sum to more than 1 - `LEAST_REST` are lowered by this, in proportion.

    A child that several sources propose has the product of their r / q, of which those below 1 are left
    out: a source that agrees makes nothing less likely. If all are below 1, it has the largest. Sources
    that agree often err together, for which the product makes no allowance. A child that one source
    proposes twice has the larger rate. Indices of entries increase along each path.
    """

    def __init__(self) -> None:
        self.parents, self.tokens, self.odds = [-1], [-1], [0.0]
        self.sources: list[list[str]] = [[]]
        self.children: list[list[int]] = [[]]
        self.whole: set[int] = set()
        self._entries: dict[tuple[int, int], int] = {}

    def unite(self, source: str, tree: TokenTree, most: int) -> list[int]:
        """Add the first nodes of a tree to the trie.

        `most`: maximum number of nodes to add, without the root. Returns the entry of each of these nodes,
        the root first.
        """
        entries = [0]
        for node in range(1, min(tree.shape.size, most + 1)):
            entry = self._entry(entries[tree.shape.parents[node]], tree.token_ids[node])
            if source not in self.sources[entry]:
                self.sources[entry].append(source)
            entries.append(entry)
        return entries

    def add(self, source: str, tree: TokenTree, rates: Rates, whole: bool) -> list[int]:
        """Add a tree to the trie, with what the rates of its source say of its nodes."""
        shape = tree.shape
        entries = self.unite(source, tree, shape.size)
        accepted: dict[int, float] = {}  # by entry, because a source may draft a token twice
        for node, entry in enumerate(entries[1:], start=1):
            one = rate(rates, shape.depths[node], shape.ranks[node])
            accepted[entry] = max(accepted.get(entry, 0.0), one)
        by_parent = defaultdict[int, float](float)
        for entry, one in accepted.items():
            by_parent[self.parents[entry]] += one
        for entry, one in accepted.items():
            rest = max(1 - by_parent[self.parents[entry]], LEAST_REST)
            lower, upper = sorted((self.odds[entry], one / rest))
            self.odds[entry] = upper * max(1.0, lower)
        if whole:
            self.whole.update(entries[1:])
        return entries

    def values(self) -> list[float]:
        """The estimated probability of each entry that it is accepted."""
        values = [1.0] * len(self.parents)
        for entry, children in enumerate(self.children):
            total = 1 + sum(self.odds[child] for child in children)
            for child in children:
                values[child] = values[entry] * self.odds[child] / total
        return values

    def _entry(self, parent: int, token: int) -> int:
        entry = self._entries.setdefault((parent, token), len(self.parents))
        if entry == len(self.parents):
            self.parents.append(parent)
            self.tokens.append(token)
            self.odds.append(0.0)
            self.sources.append([])
            self.children.append([])
            self.children[parent].append(entry)
        return entry


class _Candidate(NamedTuple):
    """A possible child of a planned node: from the trie, a proposed drawn tree, or a drawing source."""

    parent: int
    entry: int = -1
    proposed: str | None = None
    tree_place: int = -1
    draws: DrawingSource | None = None


def side_by_side(trie: Trie, drawn: Mapping[str, tuple[TokenTree, int]]) -> list[Node]:
    """Plan all nodes of the trie and the first nodes of each drawn tree, below one root.

    The nodes of a drawn tree are numbered in the order of drawing, so the first nodes are those that its
    source drew first. Whether a node is taken does therefore not depend on its token.

    `drawn`: for each source, its tree and the maximum number of nodes to take, without the root.
    """
    nodes = [Node(-1, 0, 1.0, entry=0)]

    def add(parent: int, **facts: Any) -> int:
        nodes.append(Node(parent, nodes[parent].depth + 1, 1.0, **facts))
        nodes[parent].children.append(len(nodes) - 1)
        return len(nodes) - 1

    indices = [0]
    for entry in range(1, len(trie.parents)):
        indices.append(add(indices[trie.parents[entry]], token=trie.tokens[entry], entry=entry))
    for name, (tree, most) in drawn.items():
        indices = [0]
        for node in range(1, min(tree.shape.size, most + 1)):
            parent, token = indices[tree.shape.parents[node]], tree.token_ids[node]
            indices.append(add(parent, drawn_by=name, token=token, tree_place=node))
    return nodes


class Planner:
    """Plans the nodes of a tree, each after its parent.

    Among the candidates whose parent is planned, the one with the largest value is taken next. The value
    of a deterministic node is that of its entry in the trie; the value of a drawn node is that of its
    parent times its rate, and does not depend on what other sources propose beside it. The next child
    that a drawing source adds to a node has as its rank the number of children that the node has by then;
    any other node has its rank in its source's own tree. Drawn nodes are chosen by depth and rank alone,
    elder siblings of a group before younger ones: no choice depends on a drawn token.

    `trie`: the deterministic nodes to choose from; those that must be kept whole come first. `proposed`:
    drawn trees to choose from, each with the rates of its source. `drawing`: sources that draw the nodes
    that the plan gives them, below deterministic nodes and their own nodes.
    """

    def __init__(
        self,
        trie: Trie,
        proposed: Mapping[str, tuple[TokenTree, Rates]],
        drawing: Collection[DrawingSource],
        room: Room,
    ) -> None:
        self._trie, self._proposed, self._drawing, self._room = trie, proposed, drawing, room
        self._values = trie.values()
        self._nodes: list[Node] = []
        self._candidates: list[tuple[float, int, _Candidate]] = []  # a heap, by falling value
        self._tick = count()

    def planned(self) -> list[Node]:
        """The nodes, those of the trie that must be kept whole first."""
        self._take(Node(-1, 0, 1.0, entry=0))
        index_of_entry = {0: 0}
        for entry in sorted(self._trie.whole):
            index_of_entry[entry] = len(self._nodes)
            self._take(self._of_entry(index_of_entry[self._trie.parents[entry]], entry))
        while self._candidates and len(self._nodes) < self._room.size:
            negative_value, _, candidate = heappop(self._candidates)
            parent = self._nodes[candidate.parent]
            if len(parent.children) >= self._room.branching:
                continue
            value = self._value(candidate)
            if value < -negative_value:  # its rank has grown, because siblings were taken since
                self._offer(candidate)
                continue
            self._take(self._node(candidate, value))
            self._offer_next_sibling(candidate)
        return self._nodes

    def _take(self, node: Node) -> None:
        index = len(self._nodes)
        self._nodes.append(node)
        if node.parent >= 0:
            self._nodes[node.parent].children.append(index)
        if node.depth >= self._room.depth:
            return
        if node.entry >= 0:
            for entry in self._trie.children[node.entry]:
                if entry not in self._trie.whole:
                    self._offer(_Candidate(index, entry=entry))
        for name, (tree, _) in self._proposed.items():
            children = tree.shape.children[node.tree_place if node.drawn_by == name else 0]
            if children and (index == 0 or (node.drawn_by == name and node.tree_place >= 0)):
                self._offer(_Candidate(index, proposed=name, tree_place=children[0]))
        for source in self._drawing:
            if node.drawn_by in (None, source.name) and node.depth < source.depth:
                self._offer(_Candidate(index, draws=source))

    def _offer(self, candidate: _Candidate) -> None:
        value = self._value(candidate)
        if value > 0:
            heappush(self._candidates, (-value, next(self._tick), candidate))

    def _offer_next_sibling(self, candidate: _Candidate) -> None:
        """Offer the drawn child that follows a taken one in its group."""
        if candidate.draws is not None:
            self._offer(candidate)
        if candidate.proposed is not None:
            shape = self._proposed[candidate.proposed][0].shape
            siblings = shape.children[shape.parents[candidate.tree_place]]
            rank = shape.ranks[candidate.tree_place] + 1
            if rank < len(siblings):
                self._offer(candidate._replace(tree_place=siblings[rank]))

    def _value(self, candidate: _Candidate) -> float:
        """The value of a candidate, given the children that its parent has now."""
        parent = self._nodes[candidate.parent]
        if candidate.entry >= 0:
            return self._values[candidate.entry]
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
        depth, value = self._nodes[parent].depth + 1, self._values[entry]
        return Node(parent, depth, value, token=self._trie.tokens[entry], entry=entry)


def numbered(nodes: Sequence[Node], groups: Sequence[str]) -> list[int]:
    """Indices of the planned nodes breadth first, the children of each node in the order of their groups.

    `groups`: names of the sources in the order in which their groups are decided; deterministic children
    come last.
    """
    group_rank = {name: i for i, name in enumerate(groups)}

    def rank(child: int) -> int:
        return group_rank.get(nodes[child].drawn_by or "", len(group_rank))

    order = [0]
    for index in order:  # the list grows during the loop
        order += sorted(nodes[index].children, key=rank)
    return order
