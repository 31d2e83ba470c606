"""Drafting a shape that is known beforehand: nothing is read from the device before the tree is there.

What a growth decides while it drafts needs tokens and probabilities as plain numbers, level by level. Of a
shape that stays, everything but the tokens is known: which rows get how many children, in which order
they stand in the tree, which of them are run next, and the parents that the model is told. That is worked
out once (`Levels`), and tokens go from one pass to the next as tensors. They are read once, together with
the extremes of all logits, so a device is waited for once a tree, however deep it is.
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

from treespec.children import top_k
from treespec.coins import on_device
from treespec.distributions import require_finite
from treespec.protocols import TreeModel
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["Head", "Level", "Levels", "draft_levels", "levels_of"]

Draw = Callable[[Tensor, int, Law], Tensor]
"""From rows, a number of children and a law to tokens."""


@runtime_checkable
class Head(Protocol):
    """What becomes of the logits of a tree, level after level.

    Attributes:
        law: by which children are chosen.
    """

    law: Law

    def children(self, level: "Level", logits: Float[Tensor, "T V"]) -> Int[Tensor, " C"]:
        """The tokens of all children of a level, in node order."""
        ...

    def probs(self) -> Float[Tensor, "M V"] | None:
        """What they were drawn from: the rows of all levels; None if they were not drawn."""
        ...

    def extremes(self) -> Float[Tensor, " E"]:
        """Numbers of which one at least is not finite if a logit is not."""
        ...


class Level(NamedTuple):
    """The nodes of one depth that get children.

    Args:
        nodes: in the order in which they are run.
        groups: a number of children, and the rows that get so many, None for all; fewest children first.
        drawn_order: where the children of all nodes, in node order, stand among those of all groups; None
            if they stand so.
        most: children of one node.
        best_order: where they stand among the `most` best of each row, likewise.
        run_next: which of the children get children themselves; None for all, and where none do.
        size: children of all nodes.
        plan: of each node how many children it gets, and where the first of their uniforms and the first
            of them stand among those of the level.
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
        """Children drawn by a law, in node order; all nodes of one number of children together."""
        drawn = [
            draw(probs if rows is None else probs[rows], k, law).flatten()
            for k, rows in self.groups
        ]
        if self.drawn_order is None:
            return drawn[0]
        return torch.cat(drawn)[self.drawn_order]


class Levels:
    """What drafting a shape needs, level by level.

    Args:
        shape: numbered breadth first.
        device: where the rows are.
    """

    def __init__(self, shape: TreeShape, device: torch.device) -> None:
        self.shape = shape
        inner = [[node for node in level if shape.children[node]] for level in _by_depth(shape)]
        self.levels = [
            _level(shape, nodes, after, device)
            for nodes, after in zip(inner, [*inner[1:], []], strict=True)
            if nodes
        ]
        self._told: dict[int, tuple[list[tuple[int, ...]], dict[int, int]]] = {}

    def told(self, pending: int) -> tuple[list[tuple[int, ...]], dict[int, int]]:
        """What the model is told of the passes over a tree, below some pending tokens.

        Args:
            pending: committed tokens above the root that the first pass runs too.

        Returns:
            For each level the parents of all rows so far, in the numbering of rows that are run; and by
            node its row.
        """
        if pending not in self._told:
            above, rows, told = list(range(-1, pending - 1)), {}, []
            for level in self.levels:
                for node in level.nodes:
                    rows[node] = len(above)
                    above.append(rows[self.shape.parents[node]] if node else pending - 1)
                told.append(tuple(above))
            self._told[pending] = told, rows
        return self._told[pending]


@lru_cache(maxsize=256)
def levels_of(shape: TreeShape, device: torch.device) -> Levels:
    """The levels of a shape, worked out once."""
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
    """A tree of a shape, by one pass for each level that gets children.

    Args:
        levels: of the shape; there is one at least.
        model: that drafts.
        head: makes children of logits.
        committed: tokens that the model has not run, the root last.
        device: where tokens are.
        stage: gives a context for each `level`, of an observer.

    Returns:
        The tree, and by node the row that the model ran it in.

    Raises:
        NonFiniteLogits: if the model returns NaN or infinite logits.
    """
    told, rows = levels.told(len(committed) - 1)
    tokens = on_device(committed, torch.long, device)
    drafted, given, first = [tokens[-1:]], [], 0
    for level, parents in zip(levels.levels, told, strict=True):
        with stage("level"):
            logits = model.run(tokens, parents, first)
            if len(parents) - first > len(level.nodes):
                logits = logits[-len(level.nodes) :]
            first = len(parents)
            given.append(logits)
            children = head.children(level, logits)
            drafted.append(children)
            tokens = children if level.run_next is None else children[level.run_next]
    ids = torch.cat(drafted)
    extremes = head.extremes()
    on_cpu = device.type == "cpu"
    numbers = (extremes if on_cpu else torch.cat([extremes.double(), ids.double()])).tolist()
    if not all(map(math.isfinite, numbers)):
        for level, logits in zip(levels.levels, given, strict=True):
            require_finite(logits, "draft", level.nodes)
    tree = TokenTree(levels.shape, ids, head.probs(), head.law)
    if not on_cpu:
        tree.know_token_ids(map(int, numbers[len(extremes) :]))
    return tree, rows


def _by_depth(shape: TreeShape) -> list[list[int]]:
    ends = list(accumulate(shape.level_sizes))
    return [list(range(end - size, end)) for end, size in zip(ends, shape.level_sizes, strict=True)]


def _level(
    shape: TreeShape, nodes: Sequence[int], after: Sequence[int], device: torch.device
) -> Level:
    counts = [len(shape.children[node]) for node in nodes]
    children = [child for node in nodes for child in shape.children[node]]
    sizes = sorted(set(counts))
    members = {k: [i for i, count in enumerate(counts) if count == k] for k in sizes}
    by_group = [child for k in sizes for i in members[k] for child in shape.children[nodes[i]]]
    among_best = [i * sizes[-1] + j for i, count in enumerate(counts) for j in range(count)]

    def places(numbers: Sequence[Any]) -> Tensor:
        return torch.tensor(numbers, device=device)

    one = len(sizes) == 1
    at = {child: place for place, child in enumerate(by_group)}
    first = [shape.children[node][0] for node in nodes]
    plan = [counts, [at[child] for child in first], [child - children[0] for child in first]]
    return Level(
        tuple(nodes),
        tuple((k, None if one else places(members[k])) for k in sizes),
        None if one else places([at[child] for child in children]),
        sizes[-1],
        None if one else places(among_best),
        None
        if not after or list(after) == children
        else places([child - children[0] for child in after]),
        len(children),
        places(plan),
    )
