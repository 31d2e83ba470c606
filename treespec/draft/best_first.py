"""Trees of what was seen most often: best first, within limits. The counted trie of all text sources."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, TypeVar

from treespec.door import integer
from treespec.errors import InvalidArgument

__all__ = ["Continuations", "Follower", "Limits", "Match", "all_within", "best_first"]

At = TypeVar("At")


@dataclass(frozen=True)
class Limits:
    """How large a tree may be that a source fills with continuations of its own.

    Args:
        depth: most edges from the root, at least 1.
        size: most nodes, the root included, at least 2; None for a chain of `depth`.
        branching: most children of a node, at least 1; with 1 the trees are chains.

    Raises:
        InvalidArgument: if one of them is no such integer, or a branching above 1 comes without a size.
    """

    depth: int
    size: int | None = None
    branching: int = 1

    def __post_init__(self) -> None:
        """Plain integers, the size too."""
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
        """Most draft tokens: all nodes but the root."""
        assert self.size is not None
        return self.size - 1


class Follower(NamedTuple):
    """A token that was seen after a string.

    Args:
        token: its id.
        count: how often it was.
        at: where it was: what is asked for followers of its own.
    """

    token: int
    count: int
    at: Any


class Match(NamedTuple):
    """A string that was seen before, from which a draft may go on.

    Args:
        start: where it ends in the trie.
        followers: the children of a place in the trie; each token once.
        order: a sort key of a follower and its depth, see `best_first`.
        seen: how often the string was.
        limits: of a draft that goes on from it.
    """

    start: Any
    followers: Callable[[Any], Iterable[Follower]]
    order: Callable[[Follower, int], Any]
    seen: int
    limits: Limits


class Continuations(NamedTuple):
    """A tree below a root whose token is not told.

    Args:
        parents: of every node, the root's -1 first.
        tokens: of every node but the root.
        counts: likewise, how often the path from the root was seen.
    """

    parents: list[int]
    tokens: list[int]
    counts: list[int]


def best_first(
    start: At,
    followers: Callable[[At], Iterable[Follower]],
    limits: Limits,
    order: Callable[[Follower, int], Any],
) -> Continuations:
    """The nodes of a trie with counts that come first in an order, within limits.

    A node's count is at most that of its parent, so with an order by falling counts these are the most
    frequent prefixes of all. The share of a node in its parent, multiplied along a path, is the node's
    count by that of the start: best-first by probability is the same order.

    Args:
        start: where the root is in the trie.
        followers: the children of a place in the trie; each token once.
        limits: of the tree.
        order: a sort key of a follower and its depth; what is smaller comes first, and of equals what was
            found first. It grows along each path.

    Returns:
        The tree, its nodes in the order in which they were chosen.
    """
    continuations = Continuations([-1], [], [])
    waiting: list[tuple[Any, int, int, int, Follower]] = []
    tick = count()

    def look_below(node: int, depth: int, at: At) -> None:
        if depth == limits.depth:
            return
        ranked = sorted(
            ((order(follower, depth + 1), follower) for follower in followers(at)),
            key=lambda pair: pair[0],
        )
        for key, follower in ranked[: limits.branching]:
            heappush(waiting, (key, next(tick), node, depth + 1, follower))

    look_below(0, 0, start)
    while waiting and len(continuations.tokens) < limits.drafted:
        _, _, parent, depth, follower = heappop(waiting)
        continuations.parents.append(parent)
        continuations.tokens.append(follower.token)
        continuations.counts.append(follower.count)
        if len(continuations.tokens) < limits.drafted:
            look_below(len(continuations.tokens), depth, follower.at)
    return continuations


def all_within(match: Match) -> Continuations:
    """The nodes of the drafts of a match within its limits and all lower ones, in the order of choice.

    Lower limits leave the order of what they allow as it is. So the draft of lower limits is the first
    nodes, as many as there is room for, of those that are not too deep and have no rank on their path that
    is too high. A node is among them if the lowest limits that allow it have room for it.

    Args:
        match: whose limits are the highest.
    """
    limits, continuations = match.limits, Continuations([-1], [], [])
    # Nodes before, by the lowest depth and branching that allow them.
    taken = [[0] * (limits.branching + 1) for _ in range(limits.depth + 1)]
    waiting: list[tuple[Any, int, int, int, int, Follower]] = []
    tick = count()

    def look_below(node: int, depth: int, widest: int, at: Any) -> None:
        if depth == limits.depth:
            return
        ranked = sorted(
            ((match.order(follower, depth + 1), follower) for follower in match.followers(at)),
            key=lambda pair: pair[0],
        )
        for rank, (key, follower) in enumerate(ranked[: limits.branching], start=1):
            place = next(tick), node, depth + 1, max(widest, rank), follower
            heappush(waiting, (key, *place))

    look_below(0, 0, 1, match.start)
    while waiting:
        _, _, parent, depth, widest, follower = heappop(waiting)
        before = sum(sum(row[: widest + 1]) for row in taken[: depth + 1])
        if before < limits.drafted:
            taken[depth][widest] += 1
            continuations.parents.append(parent)
            continuations.tokens.append(follower.token)
            continuations.counts.append(follower.count)
            look_below(len(continuations.tokens), depth, widest, follower.at)
    return continuations
