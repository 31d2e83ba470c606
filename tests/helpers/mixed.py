"""A drafter of mixed trees over tables: at every level groups of its own, each from a source of its own."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from treespec import Law, Sampling, TokenTree, TreeShape
from treespec.sampling.distributions import without
from treespec.testing import TabularModel


@dataclass(frozen=True)
class Part:
    """A group of children.

    Args:
        law: that they are drawn by.
        count: of them.
        rows: of the model that draws them; None for deterministic ones.
        beside: whether drawn from what is left beside the deterministic children of the node.
        said: the model whose rows the tree tells of, if it is another: a mistake.
        said_whole: whether it tells of the whole row though they were drawn `beside`: a mistake.
    """

    law: Law
    count: int
    rows: TabularModel | None = None
    beside: bool = False
    said: TabularModel | None = None
    said_whole: bool = False


def sure(context: tuple[int, ...], count: int, vocab: int) -> list[int]:
    """Deterministic children: a function of the context."""
    return [(sum(context) + len(context) + i) % vocab for i in range(count)]


class Mixed:
    """Drafts the groups of `levels[depth]` below every node whose place among its siblings is grown.

    Args:
        levels: by depth, the groups of a node in the order of the children.
        grows: places of children that have children, by depth.
        tokens: gives the deterministic children of a context.
    """

    max_length = 10**6

    def __init__(
        self,
        *levels: tuple[Part, ...],
        grows: tuple[tuple[int, ...], ...] = (),
        tokens: Callable[[tuple[int, ...], int, int], list[int]] = sure,
        vocab: int = 3,
        sampling: Sampling | None = None,
    ) -> None:
        self.levels, self.grows, self.tokens, self.vocab = levels, grows, tokens, vocab
        self.sampling = sampling or Sampling()
        self.max_depth = len(levels)

    def prefill(self, tokens):
        self.text = tuple(tokens.tolist())

    def propose(self, coins):
        parents, ids, laws, rows = [-1], [self.text[-1]], [], []
        node = 0
        queue = {0: (0, self.text)}
        while node < len(parents):
            if node not in queue:
                laws.append(())
                node += 1
                continue
            depth, context = queue[node]
            parts = self.levels[depth]
            known = [
                t
                for p in parts
                if p.rows is None
                for t in self.tokens(context, p.count, self.vocab)
            ]
            place = 0
            for part in parts:
                if part.rows is None:
                    drawn = self.tokens(context, part.count, self.vocab)
                else:
                    row = self.sampling(part.rows.row(context))
                    left = without(row, torch.tensor(known)) if part.beside else row
                    drawn = coins.draw_many(left[None], part.count, part.law)[0].tolist()
                    said = row if part.said_whole else left
                    rows.append(self.sampling(part.said.row(context)) if part.said else said)
                for token in drawn:
                    if depth + 1 < len(self.levels) and place in self.grows[depth]:
                        queue[len(parents)] = depth + 1, (*context, token)
                    parents.append(node)
                    ids.append(token)
                    place += 1
            laws.append(tuple((part.law, part.count) for part in parts))
            node += 1
        stacked = torch.stack(rows) if rows else None
        return TokenTree(TreeShape(tuple(parents)), torch.tensor(ids), stacked, laws)

    def commit(self, step):
        path = (step.tree.token_ids[node] for node in step.verdict.path[1:])
        self.text += (*path, step.verdict.bonus)
