"""Draft a fixed shape without reading anything from the device before the tree is complete.

A growth that decides while drafting needs tokens and probabilities as plain numbers at every level. For a
fixed shape everything but the tokens is known beforehand: how many children each row gets, their order in
the tree, which of them are run next, and the parents to give the model. All this is computed once
(`Levels`), and tokens go from one pass to the next as tensors. They are read once at the end, together with
the extremes of all logits, so drafting waits for the device once per tree, however deep the tree is.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.protocols import TreeModel
from treespec.sampling.children import top_k
from treespec.sampling.coins import on_device
from treespec.sampling.distributions import require_finite
from treespec.tree import Law, TokenTree, TreeShape

Draw = Callable[[Tensor, int, Law], Tensor]
"""Maps rows, a number of children and a law to tokens."""


@runtime_checkable
class Head(Protocol):
    """Turns the logits of a tree into children, level by level."""

    law: Law

    def children(self, level: "Level", logits: Float[Tensor, "T V"]) -> Int[Tensor, " C"]:
        """The tokens of all children of a level, in node order."""

    def probs(self) -> Float[Tensor, "M V"] | None:
        """The rows that children were drawn from, of all levels; None if they were not drawn."""

    def extremes(self) -> Float[Tensor, " E"]:
        """Numbers of which at least one is not finite if any logit is not."""


class Level(NamedTuple):
    """The nodes of one depth that get children.

    Args:
        nodes: in the order in which they are run.
        groups: pairs of a number of children and the rows that get this many (None for all rows), fewest
            children first.
        drawn_order: index of each child, in node order, among the children drawn group by group; None if
            the two orders are equal.
        most: largest number of children of a node.
        best_order: index of each child, in node order, among the `most` best tokens of all rows; None if
            the two orders are equal.
        run_next: indices of the children that get children themselves; None if all or none of them do.
        size: number of children of all nodes.
        plan: for each node its number of children, and the positions in this level of the first uniform of
            these children and of the first child.
    """

    nodes: tuple[int, ...]
    groups: tuple[tuple[int, Int[Tensor, " R"] | None], ...]
    drawn_order: Int[Tensor, " C"] | None
    most: int
    best_order: Int[Tensor, " C"] | None
    run_next: Int[Tensor, " T"] | None
    size: int
    plan: Int[Tensor, "3 T"]

    def best(self, logits: Float[Tensor, "T V"]) -> Int[Tensor, " C"]:
        """The best tokens of each row as children, in node order."""
        best = top_k(logits, self.most).flatten()
        return best if self.best_order is None else best[self.best_order]

    def drawn(self, probs: Float[Tensor, "T V"], law: Law, draw: Draw) -> Int[Tensor, " C"]:
        """Children drawn by a law, in node order; nodes with equal numbers of children draw together."""
        drawn = [
            draw(probs if rows is None else probs[rows], k, law).flatten()
            for k, rows in self.groups
        ]
        if self.drawn_order is None:
            return drawn[0]
        return torch.cat(drawn)[self.drawn_order]


class Levels:
    """Everything that drafting a fixed shape needs, level by level."""

    def __init__(self, shape: TreeShape, device: torch.device) -> None:
        self.shape = shape
        internal = [[node for node in level if shape.children[node]] for level in _by_depth(shape)]
        self.levels = [
            _level(shape, nodes, next_nodes, device)
            for nodes, next_nodes in zip(internal, [*internal[1:], []], strict=True)
            if nodes
        ]
        self._passes: dict[int, tuple[list[tuple[int, ...]], dict[int, int]]] = {}

    def passes(self, pending: int) -> tuple[list[tuple[int, ...]], dict[int, int]]:
        """The parents to give the model in each pass over a tree below some pending tokens.

        `pending`: number of committed tokens above the root that the first pass runs as well. Returns for
        each level, the parents of all rows run so far, as row indices; and the row of each node.
        """
        if pending not in self._passes:
            row_parents, rows, parents_by_level = list(range(-1, pending - 1)), {}, []
            for level in self.levels:
                for node in level.nodes:
                    rows[node] = len(row_parents)
                    row_parents.append(rows[self.shape.parents[node]] if node else pending - 1)
                parents_by_level.append(tuple(row_parents))
            self._passes[pending] = parents_by_level, rows
        return self._passes[pending]


@lru_cache(maxsize=256)
def levels_of(shape: TreeShape, device: torch.device) -> Levels:
    """The levels of a shape, computed once."""
    with torch.inference_mode(False):
        return Levels(shape, device)


def draft_levels(
    levels: Levels,
    model: TreeModel,
    head: Head,
    committed: Sequence[int],
    device: torch.device,
    stage: Callable[[str], AbstractContextManager[object]],
) -> tuple[TokenTree, dict[int, int]]:
    """Draft a tree of a fixed shape, with one pass for each level that gets children.

    `levels`: the levels of the shape, at least one. `committed`: committed tokens that the model has not
    run, the root last. `stage`: the observer's method that returns a context for each `level`. Returns the
    tree, and the model's row of each node that was run.
    """
    parents_by_level, rows = levels.passes(len(committed) - 1)
    tokens = on_device(committed, torch.long, device)
    drafted, level_logits, first = [tokens[-1:]], [], 0
    for level, parents in zip(levels.levels, parents_by_level, strict=True):
        with stage("level"):
            logits = model.run(tokens, parents, first).logits
            if len(parents) - first > len(level.nodes):
                logits = logits[-len(level.nodes) :]
            first = len(parents)
            level_logits.append(logits)
            children = head.children(level, logits)
            drafted.append(children)
            tokens = children if level.run_next is None else children[level.run_next]
    ids = torch.cat(drafted)
    extremes = head.extremes()
    on_cpu = device.type == "cpu"
    numbers = (extremes if on_cpu else torch.cat([extremes.double(), ids.double()])).tolist()
    if not all(map(math.isfinite, numbers)):
        for level, logits in zip(levels.levels, level_logits, strict=True):
            require_finite(logits, "draft", level.nodes)
    tree = TokenTree(levels.shape, ids, head.probs(), head.law)
    if not on_cpu:
        tree.know_token_ids(map(int, numbers[len(extremes) :]))
    return tree, rows


def _by_depth(shape: TreeShape) -> list[list[int]]:
    ends = list(accumulate(shape.level_sizes))
    return [list(range(end - size, end)) for end, size in zip(ends, shape.level_sizes, strict=True)]


def _level(
    shape: TreeShape, nodes: Sequence[int], next_nodes: Sequence[int], device: torch.device
) -> Level:
    counts = [len(shape.children[node]) for node in nodes]
    children = [child for node in nodes for child in shape.children[node]]
    sizes = sorted(set(counts))
    members = {k: [i for i, count in enumerate(counts) if count == k] for k in sizes}
    by_group = [child for k in sizes for i in members[k] for child in shape.children[nodes[i]]]
    among_best = [i * sizes[-1] + j for i, count in enumerate(counts) for j in range(count)]

    def indices(numbers: Sequence[Any]) -> Tensor:
        return torch.tensor(numbers, device=device)

    one_group = len(sizes) == 1
    drawn_at = {child: i for i, child in enumerate(by_group)}
    first_children = [shape.children[node][0] for node in nodes]
    plan = [
        counts,
        [drawn_at[child] for child in first_children],
        [child - children[0] for child in first_children],
    ]
    run_next = None
    if next_nodes and list(next_nodes) != children:
        run_next = indices([child - children[0] for child in next_nodes])
    return Level(
        nodes=tuple(nodes),
        groups=tuple((k, None if one_group else indices(members[k])) for k in sizes),
        drawn_order=None if one_group else indices([drawn_at[child] for child in children]),
        most=sizes[-1],
        best_order=None if one_group else indices(among_best),
        run_next=run_next,
        size=len(children),
        plan=indices(plan),
    )
