"""The children of each node while a tree is drafted, and the rows they were chosen from."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.errors import InvalidTree
from treespec.protocols import Coins
from treespec.sampling.children import next_child, require_children, top_k
from treespec.sampling.distributions import Sampling
from treespec.tree import Law, TreeShape

LEAST_MASS = 1e-30
"""Mass of a token that is drawn only once the support of its row is used up: far below rounding."""


def ranking_of(sampling: Sampling) -> Sampling:
    """The sampling by which deterministic children are ranked.

    Greedy settings are replaced by temperature 1, because a one-hot row cannot rank children.
    """
    if not sampling.greedy:
        return sampling
    return sampling.untruncated


class DrawnChildren:
    """Chooses children by one law, and remembers rows so that a node can get further children later."""

    def __init__(self, law: Law, sampling: Sampling) -> None:
        self._law, self._sampling = law, sampling
        # For each pass, the rows that children are chosen from (logits for deterministic children).
        self._passes: list[Tensor] = []
        # By node: index of its pass and of its row in that pass; the tokens of its children; its row.
        self._place: dict[int, tuple[int, int]] = {}
        self._children: dict[int, list[int]] = {}
        self._rows: dict[int, Tensor] = {}
        self._node_probs: Tensor | None = None

    @cached_property
    def _ranking(self) -> Sampling:
        return ranking_of(self._sampling)

    def add(
        self,
        nodes: Sequence[int],
        logits: Float[Tensor, "T V"],
        wanted: Mapping[int, Collection[int]] = MappingProxyType({}),
        avoided: Mapping[int, Collection[int]] = MappingProxyType({}),
    ) -> None:
        """Add the logits after these nodes, which a pass has just run.

        `avoided`: by node, tokens that are never drawn; `wanted` then holds all children of these nodes.
        """
        pass_index = len(self._passes)
        apart = [i for i, node in enumerate(nodes) if avoided.get(node)]
        logits = logits.clone() if apart else logits
        for i in apart:
            logits[i, list(avoided[nodes[i]])] = -torch.inf
        rows = logits if self._law is Law.DETERMINISTIC else self._sampling(logits)
        for i in apart if self._law is Law.WITHOUT_REPLACEMENT else ():
            # Once its support is used up, a row becomes uniform over all other tokens (`without`), which
            # would include the avoided ones: those that are allowed get a mass.
            if 1 < len(wanted[nodes[i]]) > int(rows[i].count_nonzero()):
                rows[i] = rows[i].masked_fill((rows[i] == 0) & (logits[i] > -torch.inf), LEAST_MASS)
        self._passes.append(rows)
        for i, node in enumerate(nodes):
            self._place[node], self._children[node] = (pass_index, i), []

    def draw(self, places: Sequence[tuple[int, int]], coins: Coins) -> list[list[int]]:
        """The tokens of the new children of each node, in draw order.

        Nodes without children are drawn first; those with equal numbers of new children are drawn together.

        `places`: nodes whose rows are known, each with a number of children to add.
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
        """Children of nodes that have none yet; all these nodes were run in the last pass."""
        rows, counts = self._passes[-1], {k for _, k in places}
        if len(places) < rows.shape[0]:
            rows = rows[[self._place[node][1] for node, _ in places]]
        if self._law is Law.DETERMINISTIC:
            best_tokens = top_k(rows, max(counts)).tolist()
            return {node: best[:k] for (node, k), best in zip(places, best_tokens, strict=True)}
        drawn: dict[int, list[int]] = {}
        for k in sorted(counts):
            group = [i for i, (_, count) in enumerate(places) if count == k]
            group_rows = rows if len(counts) == 1 else rows[group]
            nodes = [places[i][0] for i in group]
            drawn |= zip(nodes, coins.draw_many(group_rows, k, self._law).tolist(), strict=True)
        return drawn

    def _further_children(self, node: int, k: int, coins: Coins) -> list[int]:
        """k children of a node after those that it already has."""
        row, elder = self.row(node)[None], self._children[node]
        if self._law.together:
            raise InvalidTree(
                f"node {node} already has {len(elder)} of its children and would get {k} more, but the law "
                f"'{self._law}' chooses all children of a node together: request all of them at once"
            )
        require_children(len(elder) + k, row.shape[-1], self._law)
        if self._law is Law.DETERMINISTIC:
            # With a larger k, `top_k` may order tied tokens differently: exclude the elder ones by id.
            best = top_k(row, len(elder) + k)[0].tolist()
            return [token for token in best if token not in elder][:k]
        siblings = list(elder)
        for _ in range(k):
            taken = torch.tensor([siblings], device=row.device)
            siblings.append(coins.draw(next_child(row, taken, self._law)[0]))
        return siblings[len(elder) :]

    def row(self, node: int) -> Float[Tensor, "V"]:
        """The row that the children of a node are chosen from."""
        if node not in self._rows:
            pass_index, i = self._place[node]
            self._rows[node] = self._passes[pass_index][i]
        return self._rows[node]

    def node_probs(
        self, parents: Sequence[int], tokens: Sequence[int], device: torch.device
    ) -> Float[Tensor, "N"]:
        """Draft probability of each node's token given its parent; 1 for the root.

        With greedy settings, deterministic children are scored by the model's own distribution at
        temperature 1. Each node is scored once.
        """
        known = self._node_probs
        parts = [] if known is None else [known]
        new = range(1 if known is None else len(known), len(parents))
        for pass_index, group in groupby(new, key=lambda node: self._place[parents[node]][0]):
            nodes = list(group)
            rows = [self._place[parents[node]][1] for node in nodes]
            parts.append(self._probs_in_pass(pass_index, rows, [tokens[node] for node in nodes]))
        if known is None:
            dtype = parts[0].dtype if parts else None
            parts.insert(0, torch.ones(1, device=device, dtype=dtype))
        self._node_probs = torch.cat(parts)
        return self._node_probs

    def _probs_in_pass(
        self, pass_index: int, rows: list[int], tokens: list[int]
    ) -> Float[Tensor, "T"]:
        """The probability of each token in its row of one pass."""
        probs = self._passes[pass_index]
        if self._law is Law.DETERMINISTIC:
            used = sorted(set(rows))
            probs = self._ranking(probs if len(used) == len(probs) else probs[used])
            index = {row: i for i, row in enumerate(used)}
            rows = [index[row] for row in rows]
        return probs[rows, tokens]

    def stacked(self, shape: TreeShape) -> Float[Tensor, "M V"] | None:
        """One row for each node with children, in node order; None if nothing was drawn."""
        if self._law is Law.DETERMINISTIC or not self._passes:
            return None
        if tuple(self._place) == shape.internal:  # the nodes were run in node order
            return torch.cat(self._passes)
        return torch.stack([self.row(node) for node in shape.internal])
