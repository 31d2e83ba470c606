"""The drafts of a text source at every position of texts, recorded once for all limits."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from treespec.plugins import Budget
from treespec.search.arguments import shown
from treespec.search.errors import InvalidTrace

__all__ = ["TextDrafts"]


@dataclass(frozen=True, eq=False)
class TextDrafts:
    """The drafts of a text source, whose trees are a function of the text alone (`MatchingSource.drafts`).

    A position has one draft for each string that the source may continue from. Nodes are in the order in
    which they are chosen, so a budget keeps the first ones that are within its depth and whose path has no
    rank beyond its branching. Among several drafts, the one with the largest sum of node probabilities
    (counts over `seen`) is proposed; among equal ones, the first.

    A node takes 12 bytes, a draft 24, a position 8.

    Args:
        drafts: `[T + 1]`; drafts of position t are `drafts[t]` up to, not including, `drafts[t + 1]`.
        nodes: `[D + 1]`; nodes of draft d, without the root, are `nodes[d]` up to `nodes[d + 1]`.
        seen: `[D]`, how often the string that the draft continues was seen.
        most: `[D]`, maximum number of nodes that this string allows.
        parents: `[N]`, each node's parent, counted within the draft: 0 is the root, 1 the first node.
        tokens: `[N]`, the drafted tokens.
        counts: `[N]`, how often the path to the node was seen after the string.
        limits: recorded depth, size (the root included) and branching; lower limits can be derived.

    Raises:
        InvalidTrace: if the parts are inconsistent.
    """

    drafts: Int[np.ndarray, "T_1"]
    nodes: Int[np.ndarray, "D_1"]
    seen: Int[np.ndarray, "D"]
    most: Int[np.ndarray, "D"]
    parents: Int[np.ndarray, "N"]
    tokens: Int[np.ndarray, "N"]
    counts: Int[np.ndarray, "N"]
    limits: Int[np.ndarray, "3"]

    def __post_init__(self) -> None:
        """Copy and check all arrays."""
        for name in ("drafts", "nodes", "seen", "most", "parents", "tokens", "counts", "limits"):
            object.__setattr__(self, name, _array(name, getattr(self, name)))
        if len(self.limits) != 3 or self.limits.min() < 1:
            raise InvalidTrace(
                f"limits = {self.limits.tolist()}, but must be depth, size and branching"
            )
        for name, ends in (("drafts", len(self.nodes) - 1), ("nodes", len(self.parents))):
            offsets = getattr(self, name)
            rises = len(offsets) and not offsets[0] and not (np.diff(offsets) < 0).any()
            if not rises or offsets[-1] != ends:
                raise InvalidTrace(f"{name} must rise from 0 to {ends}")
        for name, length in (
            ("seen", len(self.nodes) - 1), ("most", len(self.nodes) - 1),
            ("tokens", len(self.parents)), ("counts", len(self.parents)),
        ):  # fmt: skip
            if len(getattr(self, name)) != length:
                raise InvalidTrace(
                    f"{name} has {len(getattr(self, name))} entries instead of {length}"
                )
        self._check()

    def _check(self) -> None:
        if not ((self.parents >= 0) & (self.parents <= self._within)).all():
            raise InvalidTrace("parents must come before their children")
        if (self.seen < 1).any() or (self.most < 1).any():
            raise InvalidTrace("seen and most must be at least 1")
        if (self.tokens < 0).any():
            raise InvalidTrace(f"tokens hold {self.tokens.min()}, but ids start at 0")
        if (self.counts < 1).any() or (self.counts > self.seen[self.draft_of]).any():
            raise InvalidTrace("counts must be at least 1, and at most what was seen")
        depth, _, branching = self.limits
        if (self.depths > depth).any() or (self.widest > branching).any():
            raise InvalidTrace(f"a node is beyond the limits {self.limits.tolist()}")

    @property
    def positions(self) -> int:
        """Number of positions of all texts together."""
        return len(self.drafts) - 1

    @property
    def bytes(self) -> int:
        """Bytes in a file, before compression."""
        return 12 * len(self.parents) + 24 * len(self.seen) + 8 * len(self.drafts)

    @property
    def budget(self) -> Budget:
        """The recorded limits, which are the highest known ones."""
        depth, size, branching = self.limits.tolist()
        return Budget(size, depth, branching)

    @cached_property
    def draft_of(self) -> Int[np.ndarray, "N"]:
        """The draft that each node belongs to."""
        return np.repeat(np.arange(len(self.seen)), np.diff(self.nodes))

    @cached_property
    def position_of(self) -> Int[np.ndarray, "D"]:
        """The position that each draft belongs to."""
        return np.repeat(np.arange(self.positions), np.diff(self.drafts))

    @cached_property
    def above(self) -> Int[np.ndarray, "N"]:
        """The index of each node's parent among all nodes; -1 for children of a root."""
        return np.where(self.parents > 0, self.nodes[self.draft_of] + self.parents - 1, -1)

    @cached_property
    def ranks(self) -> Int[np.ndarray, "N"]:
        """The number of elder siblings of each node."""
        families = self.draft_of * (len(self.parents) + 1) + self.parents
        order = np.argsort(families, kind="stable")
        place = np.arange(len(order))
        first = np.concatenate([[True], np.diff(families[order]) > 0])[: len(order)]
        family_starts = np.maximum.accumulate(np.where(first, place, 0))
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = place - family_starts
        return ranks

    @cached_property
    def depths(self) -> Int[np.ndarray, "N"]:
        """Edges between each node and its root."""
        return self._down(lambda above, value: above + value, np.ones(len(self.parents), np.int64))

    @cached_property
    def widest(self) -> Int[np.ndarray, "N"]:
        """The least branching that allows each node: the highest rank on its path, plus one."""
        return self._down(np.maximum, self.ranks + 1)

    def drafted(self, budget: Budget) -> Bool[np.ndarray, "N"]:
        """Whether each node, at any position, is proposed within these limits.

        Raises:
            InvalidTrace: if the limits exceed the recorded ones.
        """
        self.require_known(budget)
        allowed = (self.depths <= budget.depth) & (self.widest <= budget.branching)
        before = np.concatenate([[0], np.cumsum(allowed)])
        place = before[1:] - before[self.nodes[:-1]][self.draft_of]
        kept = allowed & (place <= np.minimum(self.most, budget.size - 1)[self.draft_of])
        counts = np.bincount(self.draft_of[kept], self.counts[kept], minlength=len(self.seen))
        probability = counts / self.seen
        best = np.zeros(self.positions)
        np.maximum.at(best, self.position_of, probability)
        winners = np.flatnonzero(probability == best[self.position_of])
        first = np.full(self.positions, -1)
        first[self.position_of[winners[::-1]]] = winners[::-1]
        chosen = first[self.position_of] == np.arange(len(self.seen))
        return kept & chosen[self.draft_of]

    def require_known(self, budget: Budget) -> None:
        """Refuse limits that exceed the recorded ones.

        Raises:
            InvalidTrace: with the limit and its recorded value.
        """
        known = self.budget
        for name in ("depth", "size", "branching"):
            asked, recorded = getattr(budget, name), getattr(known, name)
            if asked > recorded:
                raise InvalidTrace(
                    f"{name} = {asked}, but drafts were recorded up to {name} {recorded}: record them "
                    f"again with a method of a higher {name}, or give less"
                )

    def on_text(
        self, tokens: Int[np.ndarray, "T"], ends: Int[np.ndarray, "T"]
    ) -> Bool[np.ndarray, "N"]:
        """Whether the text takes each node: all tokens of the node's path are the text's.

        Args:
            tokens: the text's token at each position.
            ends: end of the text that each position belongs to.
        """
        start = self.position_of[self.draft_of]
        position = start + self.depths - 1
        inside = position < ends[start]
        matches = np.zeros(len(self.parents), dtype=bool)
        matches[inside] = tokens[position[inside]] == self.tokens[inside]
        return self._down(np.logical_and, matches)

    @cached_property
    def _within(self) -> Int[np.ndarray, "N"]:
        """The index of each node within its draft, less one: at most this may be its entry of `parents`."""
        return np.arange(len(self.parents)) - self.nodes[:-1][self.draft_of]

    def _down(self, join: Any, values: np.ndarray) -> np.ndarray:
        """Combine each node's value with the combined value of its parent, level by level."""
        joined, waiting = values.copy(), np.flatnonzero(self.above >= 0)
        done = self.above < 0
        while len(waiting):
            ready = done[self.above[waiting]]
            level = waiting[ready]
            joined[level] = join(joined[self.above[level]], values[level])
            done[level] = True
            waiting = waiting[~ready]
        return joined


def _array(name: str, values: Any) -> np.ndarray:
    """A read-only copy of the values as an array."""
    try:
        given = np.asarray(values)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise TypeError(given.dtype)
        array = np.array(given, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidTrace(f"{name} = {shown(values)}, but must be a row of integers") from error
    array.flags.writeable = False
    return array
