"""What a text source drafts at every position of texts, within all limits at once."""

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

    At a position there are as many drafts as there are strings that the source may go on from. Nodes stand
    in the order in which they are chosen, so that a budget gets the first of those that are not too deep
    and have no rank on their path that is too high. Of several drafts the one is proposed whose nodes are
    most probable together (counts by what was seen), of equal ones the first.

    A node takes 12 bytes, a draft 24, a position 8.

    Args:
        drafts: `[T + 1]`; drafts of position t are `drafts[t]` up to, not including, `drafts[t + 1]`.
        nodes: `[D + 1]`; nodes of draft d, the root left out, are `nodes[d]` up to `nodes[d + 1]`.
        seen: `[D]`, how often the string was seen that the draft goes on from.
        most: `[D]`, nodes of the draft that this string allows.
        parents: `[N]`, the node above, counted within the draft: 0 is the root, 1 the first node.
        tokens: `[N]`, what is drafted.
        counts: `[N]`, how often the path to the node was seen behind the string.
        limits: depth, size (the root included) and branching that were recorded; lower ones are known.

    Raises:
        InvalidTrace: if the parts do not fit together.
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
        for name, right in (
            ("seen", len(self.nodes) - 1), ("most", len(self.nodes) - 1),
            ("tokens", len(self.parents)), ("counts", len(self.parents)),
        ):  # fmt: skip
            if len(getattr(self, name)) != right:
                raise InvalidTrace(
                    f"{name} has {len(getattr(self, name))} entries instead of {right}"
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
        """Positions of all texts together."""
        return len(self.drafts) - 1

    @property
    def bytes(self) -> int:
        """How much a file holds, before it is packed."""
        return 12 * len(self.parents) + 24 * len(self.seen) + 8 * len(self.drafts)

    @property
    def budget(self) -> Budget:
        """The highest limits that are known."""
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
        """The place of each node's parent among all nodes; -1 for children of a root."""
        return np.where(self.parents > 0, self.nodes[self.draft_of] + self.parents - 1, -1)

    @cached_property
    def ranks(self) -> Int[np.ndarray, "N"]:
        """How many elder siblings each node has."""
        families = self.draft_of * (len(self.parents) + 1) + self.parents
        order = np.argsort(families, kind="stable")
        place = np.arange(len(order))
        first = np.concatenate([[True], np.diff(families[order]) > 0])[: len(order)]
        begins = np.maximum.accumulate(np.where(first, place, 0))
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = place - begins
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
        """The nodes that are proposed within these limits, of all positions.

        Raises:
            InvalidTrace: if the limits are higher than those recorded.
        """
        self.require_known(budget)
        allowed = (self.depths <= budget.depth) & (self.widest <= budget.branching)
        before = np.concatenate([[0], np.cumsum(allowed)])
        place = before[1:] - before[self.nodes[:-1]][self.draft_of]
        kept = allowed & (place <= np.minimum(self.most, budget.size - 1)[self.draft_of])
        counts = np.bincount(self.draft_of[kept], self.counts[kept], minlength=len(self.seen))
        worth = counts / self.seen
        best = np.zeros(self.positions)
        np.maximum.at(best, self.position_of, worth)
        wins = np.flatnonzero(worth == best[self.position_of])
        first = np.full(self.positions, -1)
        first[self.position_of[wins[::-1]]] = wins[::-1]
        chosen = first[self.position_of] == np.arange(len(self.seen))
        return kept & chosen[self.draft_of]

    def require_known(self, budget: Budget) -> None:
        """Refuse limits that were not recorded.

        Raises:
            InvalidTrace: naming them.
        """
        known = self.budget
        for name in ("depth", "size", "branching"):
            asked, there = getattr(budget, name), getattr(known, name)
            if asked > there:
                raise InvalidTrace(
                    f"{name} = {asked}, but drafts were recorded up to {name} {there}: record them again "
                    f"with a method of a higher {name}, or give less"
                )

    def on_text(
        self, tokens: Int[np.ndarray, "T"], ends: Int[np.ndarray, "T"]
    ) -> Bool[np.ndarray, "N"]:
        """Which nodes the text takes: all tokens of their paths are its own.

        Args:
            tokens: of the text at each position.
            ends: where the text of each position ends.
        """
        start = self.position_of[self.draft_of]
        at = start + self.depths - 1
        there = at < ends[start]
        fits = np.zeros(len(self.parents), dtype=bool)
        fits[there] = tokens[at[there]] == self.tokens[there]
        return self._down(np.logical_and, fits)

    @cached_property
    def _within(self) -> Int[np.ndarray, "N"]:
        """The place of each node within its draft, less one: as its parent's is counted."""
        return np.arange(len(self.parents)) - self.nodes[:-1][self.draft_of]

    def _down(self, join: Any, values: np.ndarray) -> np.ndarray:
        """What nodes have of their own, joined with what their parents have, level by level."""
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
    """The values in an array of their own that nobody writes to."""
    try:
        given = np.asarray(values)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise TypeError(given.dtype)
        array = np.array(given, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidTrace(f"{name} = {shown(values)}, but must be a row of integers") from error
    array.flags.writeable = False
    return array
