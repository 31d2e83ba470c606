"""Trees of the most frequent continuations, built best first within limits, for all text sources."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, TypeVar

from treespec.checks import integer
from treespec.errors import InvalidArgument

Place = TypeVar("Place")


@dataclass(frozen=True)
class Limits:
    """The limits of a tree that a source fills with its own continuations.

    Args:
        depth: maximum depth, in edges from the root, at least 1.
        size: maximum number of nodes, the root included, at least 2; None for a chain of `depth`.
        branching: maximum number of children of a node, at least 1; with 1 the trees are chains.
    """

    depth: int
    size: int | None = None
    branching: int = 1

    def __post_init__(self) -> None:
        depth = integer("depth", self.depth, least=1)
        branching = integer("branching", self.branching, least=1)
        if self.size is None and branching > 1:
            raise InvalidArgument(
                f"branching = {branching} needs a size: the nodes of the tree, root included"
            )
        size = depth + 1 if self.size is None else integer("size", self.size, least=2)
        for name, value in (("depth", depth), ("size", size), ("branching", branching)):
            object.__setattr__(self, name, value)

    @property
    def drafted(self) -> int:
        """Maximum number of draft tokens: all nodes but the root."""
        assert self.size is not None
        return self.size - 1


class Follower(NamedTuple):
    """A token that was seen after a string.

    Args:
        token: token id.
        count: how often it was seen there.
        at: the place of the string extended by this token, whose followers can be looked up in turn.
    """

    token: int
    count: int
    at: Any


class Match(NamedTuple):
    """A string that was seen before, from which a draft may continue.

    Args:
        start: the place in the trie where the string ends.
        followers: returns the children of a place in the trie, each token once.
        order: a sort key of a follower and its depth; see `best_first`.
        seen: how often the string was seen.
        limits: the limits of a draft that continues it.
        search: a faster way to the tree of `best_first`: parents, and tokens of all nodes but the root. For
            a source with one match; None if there is none.
    """

    start: Any
    followers: Callable[[Any], Iterable[Follower]]
    order: Callable[[Follower, int], Any]
    seen: int
    limits: Limits
    search: Callable[[], tuple[Sequence[int], Sequence[int]]] | None = None


class Continuations(NamedTuple):
    """A tree without the token of its root.

    Args:
        parents: the parent of every node, starting with -1 for the root.
        tokens: the token of every node but the root.
        counts: for every node but the root, how often the path from the root was seen.
    """

    parents: list[int]
    tokens: list[int]
    counts: list[int]


def best_first(
    start: Place,
    followers: Callable[[Place], Iterable[Follower]],
    limits: Limits,
    order: Callable[[Follower, int], Any],
) -> Continuations:
    """The first nodes of a counted trie in a given order, within limits.

    A node's count is at most that of its parent, so an order by falling counts selects the most frequent
    prefixes. The conditional shares along a path multiply to the node's count divided by the count of the
    start, so best first by probability gives the same order.

    `followers`: returns the children of a place in the trie, each token once. `order`: a sort key of a
    follower and its depth, which must grow along each path. Smaller keys come first; of equal keys, the one
    found first. Returns the tree, its nodes in the order in which they were chosen.
    """
    continuations = Continuations([-1], [], [])
    candidates: list[tuple[Any, int, int, int, Follower]] = []  # a heap
    tick = count()

    def push_children(node: int, depth: int, place: Place) -> None:
        if depth == limits.depth:
            return
        ranked = sorted(
            ((order(follower, depth + 1), follower) for follower in followers(place)),
            key=lambda pair: pair[0],
        )
        for key, follower in ranked[: limits.branching]:
            heappush(candidates, (key, next(tick), node, depth + 1, follower))

    push_children(0, 0, start)
    while candidates and len(continuations.tokens) < limits.drafted:
        _, _, parent, depth, follower = heappop(candidates)
        continuations.parents.append(parent)
        continuations.tokens.append(follower.token)
        continuations.counts.append(follower.count)
        if len(continuations.tokens) < limits.drafted:
            push_children(len(continuations.tokens), depth, follower.at)
    return continuations


def all_within(match: Match) -> Continuations:
    """The nodes of all drafts of a match within its limits and any lower limits, in the order of choice.

    Lower limits do not change the order of the nodes that they allow. So the draft under lower limits
    consists of the first nodes, up to the size, that are not too deep and have no rank on their path that
    is too high. A node is included if the lowest limits that allow it have room for it.
    """
    limits, continuations = match.limits, Continuations([-1], [], [])
    # Number of nodes taken so far, by the lowest depth and branching that allow them.
    taken = [[0] * (limits.branching + 1) for _ in range(limits.depth + 1)]
    candidates: list[tuple[Any, int, int, int, int, Follower]] = []  # a heap
    tick = count()

    def push_children(node: int, depth: int, widest: int, place: Any) -> None:
        if depth == limits.depth:
            return
        ranked = sorted(
            ((match.order(follower, depth + 1), follower) for follower in match.followers(place)),
            key=lambda pair: pair[0],
        )
        for rank, (key, follower) in enumerate(ranked[: limits.branching], start=1):
            candidate = (key, next(tick), node, depth + 1, max(widest, rank), follower)
            heappush(candidates, candidate)

    push_children(0, 0, 1, match.start)
    while candidates:
        _, _, parent, depth, widest, follower = heappop(candidates)
        before = sum(sum(row[: widest + 1]) for row in taken[: depth + 1])
        if before < limits.drafted:
            taken[depth][widest] += 1
            continuations.parents.append(parent)
            continuations.tokens.append(follower.token)
            continuations.counts.append(follower.count)
            push_children(len(continuations.tokens), depth, widest, follower.at)
    return continuations
