"""The drafts of a text source at every position of texts, recorded once for all limits."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from treespec.plugins import Budget
from treespec.search.errors import InvalidTrace
from treespec.search.traces.draft_rows import whole_numbers


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
        """Copy the arrays, and check that they fit together."""
        for field in fields(self):
            name = field.name
            object.__setattr__(
                self, name, whole_numbers(f"text_drafts.{name}", getattr(self, name))
            )
        drafts, nodes = len(self.nodes) - 1, len(self.parents)
        lengths = {"seen": drafts, "most": drafts, "tokens": nodes, "counts": nodes, "limits": 3}
        wrong = [name for name, length in lengths.items() if len(getattr(self, name)) != length]
        for name, end in (("drafts", drafts), ("nodes", nodes)):
            ends = getattr(self, name)
            if not len(ends) or ends[0] or ends[-1] != end or (np.diff(ends) < 0).any():
                wrong.append(name)
        if not wrong:
            within = np.arange(nodes) - self.nodes[:-1][self.draft_of]
            valid = {
                "parents": (self.parents >= 0) & (self.parents <= within),
                "seen": self.seen >= 1,
                "most": self.most >= 1,
                "tokens": self.tokens >= 0,
                "counts": (self.counts >= 1) & (self.counts <= self.seen[self.draft_of]),
                "limits": self.limits >= 1,
            }
            wrong = [name for name, holds in valid.items() if not holds.all()]
        if not wrong and not self._nodes_within(self.budget).all():
            wrong = ["limits"]
        if wrong:
            raise InvalidTrace(
                f"text_drafts.{wrong[0]} does not fit the other arrays: record the trace again"
            )

    @property
    def positions(self) -> int:
        """Number of positions of all texts together."""
        return len(self.drafts) - 1

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
        for name in ("depth", "size", "branching"):
            asked, recorded = getattr(budget, name), getattr(self.budget, name)
            if asked > recorded:
                raise InvalidTrace(
                    f"{name} = {asked}, but drafts were recorded up to {name} {recorded}: record them "
                    f"again with a method of a higher {name}, or give less"
                )
        allowed = self._nodes_within(budget)
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

    def on_text(
        self, tokens: Int[np.ndarray, "T"], ends: Int[np.ndarray, "T"]
    ) -> Bool[np.ndarray, "N"]:
        """Whether the text takes each node: all tokens of the node's path are the text's.

        `ends` is the end of the text that each position belongs to.
        """
        start = self.position_of[self.draft_of]
        position = start + self.depths - 1
        inside = position < ends[start]
        matches = np.zeros(len(self.parents), dtype=bool)
        matches[inside] = tokens[position[inside]] == self.tokens[inside]
        return self._down(np.logical_and, matches)

    def _nodes_within(self, budget: Budget) -> Bool[np.ndarray, "N"]:
        return (self.depths <= budget.depth) & (self.widest <= budget.branching)

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
