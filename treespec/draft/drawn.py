"""The children of each node while a tree is drafted, and what they were chosen from."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.children import next_child, require_children, top_k
from treespec.distributions import Sampling
from treespec.errors import InvalidTree
from treespec.protocols import Coins
from treespec.tree import Law, TreeShape

__all__ = ["DrawnChildren", "ranking_of"]


def ranking_of(sampling: Sampling) -> Sampling:
    """What deterministic children are ranked by: a one-hot row could not rank them."""
    if not sampling.greedy:
        return sampling
    return replace(sampling, temperature=1.0, top_k=None, top_p=None, min_p=None)


class DrawnChildren:
    """Chooses children by one law, and remembers rows so that a node can get further ones.

    Args:
        law: how children are chosen.
        sampling: what makes distributions of logits.
    """

    def __init__(self, law: Law, sampling: Sampling) -> None:
        self._law, self._sampling = law, sampling
        # By pass: the rows that children are chosen by (logits if they are deterministic).
        self._passes: list[Tensor] = []
        self._place: dict[int, tuple[int, int]] = {}
        self._children: dict[int, list[int]] = {}
        self._rows: dict[int, Tensor] = {}
        self._scored: Tensor | None = None

    @cached_property
    def _ranking(self) -> Sampling:
        return ranking_of(self._sampling)

    def add(self, nodes: Sequence[int], logits: Float[Tensor, "T V"]) -> None:
        """Take the logits after these nodes, which a pass has just run."""
        at = len(self._passes)
        rows = logits if self._law is Law.DETERMINISTIC else self._sampling(logits)
        self._passes.append(rows)
        for i, node in enumerate(nodes):
            self._place[node], self._children[node] = (at, i), []

    def draw(self, places: Sequence[tuple[int, int]], coins: Coins) -> list[list[int]]:
        """The tokens of the new children of each node, in draw order.

        Coins are used for the nodes without children first, all of one number of children together.

        Args:
            places: nodes whose rows are known, each with a number of children to add.
            coins: for the laws that draw.

        Raises:
            InvalidTree: if the law cannot give a node so many children, or none after its first ones.
        """
        first = [place for place in places if not self._children[place[0]]]
        drawn = self._first_children(first, coins) if first else {}
        for node, k in places:
            if node not in drawn:
                drawn[node] = self._further_children(node, k, coins)
            self._children[node] += drawn[node]
        return [drawn[node] for node, _ in places]

    def _first_children(
        self, places: Sequence[tuple[int, int]], coins: Coins
    ) -> dict[int, list[int]]:
        """Children of nodes that have none. All were run in the last pass: a place draws at once."""
        rows, counts = self._passes[-1], {k for _, k in places}
        if len(places) < rows.shape[0]:
            rows = rows[[self._place[node][1] for node, _ in places]]
        if self._law is Law.DETERMINISTIC:
            widest = top_k(rows, max(counts)).tolist()
            return {node: best[:k] for (node, k), best in zip(places, widest, strict=True)}
        drawn: dict[int, list[int]] = {}
        for k in sorted(counts):
            group = [i for i, (_, wanted) in enumerate(places) if wanted == k]
            group_rows = rows if len(counts) == 1 else rows[group]
            nodes = [places[i][0] for i in group]
            drawn |= zip(nodes, coins.draw_many(group_rows, k, self._law).tolist(), strict=True)
        return drawn

    def _further_children(self, node: int, k: int, coins: Coins) -> list[int]:
        """What follows the children that a node has."""
        row, elder = self.row(node)[None], list(self._children[node])
        if self._law.together:
            raise InvalidTree(
                f"children to a node twice: node {node} has {len(elder)} and would get {k} more, but the "
                f"law '{self._law}' chooses all children of a node together: ask for all of them at once"
            )
        require_children(len(elder) + k, row.shape[-1], self._law)
        if self._law is Law.DETERMINISTIC:
            # Of tied tokens a wider search may find others first: the elder ones are left out by name.
            best = top_k(row, len(elder) + k)[0].tolist()
            return [token for token in best if token not in elder][:k]
        have = len(elder)
        for _ in range(k):
            taken = torch.tensor([elder], device=row.device)
            elder.append(coins.draw(next_child(row, taken, self._law)[0]))
        return elder[have:]

    def row(self, node: int) -> Float[Tensor, "V"]:
        """What the children of a node are chosen by."""
        if node not in self._rows:
            at, i = self._place[node]
            self._rows[node] = self._passes[at][i]
        return self._rows[node]

    def node_probs(
        self, parents: Sequence[int], tokens: Sequence[int], device: torch.device
    ) -> Float[Tensor, "N"]:
        """Draft probability of each node's token given its parent; 1 for the root.

        Deterministic children are scored by the model's own distribution at temperature 1 if the
        settings are greedy. Each node is scored once.
        """
        scored = [] if self._scored is None else [self._scored]
        new = range(1 if self._scored is None else len(self._scored), len(parents))
        for at, group in groupby(new, key=lambda node: self._place[parents[node]][0]):
            nodes = list(group)
            rows = [self._place[parents[node]][1] for node in nodes]
            scored.append(self._scores(at, rows, [tokens[node] for node in nodes]))
        if self._scored is None:
            scored.insert(
                0, torch.ones(1, device=device, dtype=scored[0].dtype if scored else None)
            )
        self._scored = torch.cat(scored)
        return self._scored

    def _scores(self, at: int, rows: list[int], tokens: list[int]) -> Float[Tensor, "T"]:
        """Probabilities of tokens in rows of one pass."""
        probs = self._passes[at]
        if self._law is Law.DETERMINISTIC:
            used = sorted(set(rows))
            probs = self._ranking(probs if len(used) == len(probs) else probs[used])
            place = {row: i for i, row in enumerate(used)}
            rows = [place[row] for row in rows]
        return probs[rows, tokens]

    def stacked(self, shape: TreeShape) -> Float[Tensor, "M V"] | None:
        """One row for each node with children, in node order; None if nothing was drawn."""
        if self._law is Law.DETERMINISTIC or not self._passes:
            return None
        if tuple(self._place) == shape.internal:  # run in node order: a level, then the next
            return torch.cat(self._passes)
        return torch.stack([self.row(node) for node in shape.internal])
