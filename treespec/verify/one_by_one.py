"""Children tested in turn, each against the distribution it was drawn from: shared by several rules."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.sampling.distributions import residual, without
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.tree.law import Group
from treespec.verify.checked import draft_row
from treespec.verify.rule import NodeChoice, ratio, walk_down

MIXES = frozenset({Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC})
"""Laws whose children can be tested in turn: each child has its own row, given its earlier siblings."""


class Sibling(NamedTuple):
    """A child as a draw.

    Args:
        token: its id.
        draft_probs: the distribution that it was drawn from, given its earlier siblings; None if it is
            deterministic, which is a draw from a one-hot row.
    """

    token: int
    draft_probs: Float[Tensor, "V"] | None


def one_by_one(tree: TokenTree, target_probs: Rows, coins: Coins) -> Verdict:
    """Walk down; at each node test the children group by group with `accept_in_turn`.

    `target_probs`: `[V]` rows by node.
    """
    return walk_down(tree, target_probs, coins, partial(_at_node, tree, coins))


def _at_node(
    tree: TokenTree, coins: Coins, node: int, target_probs: Float[Tensor, "V"]
) -> NodeChoice:
    return accept_in_turn(target_probs, siblings(tree, node, target_probs), coins)


def accept_in_turn(
    target_probs: Float[Tensor, "V"], children: Iterable[Sibling], coins: Coins
) -> NodeChoice:
    """Test each child with min(1, p / q), q its own row; after a rejection p <- norm([p - q]+).

    Lossless if each child was drawn from its row, given its earlier siblings. If none is accepted, the
    bonus is drawn from the remaining p.

    `children`: in test order; consumed lazily.
    """
    left = target_probs
    for child, (token, draft_probs) in enumerate(children):
        odds = left[token] if draft_probs is None else ratio(left, draft_probs, token)
        if coins.accept(odds):
            return NodeChoice(child=child)
        left = _without_token(left, token) if draft_probs is None else residual(left, draft_probs)
    return NodeChoice(token=coins.draw(left))


def siblings(tree: TokenTree, node: int, target_probs: Float[Tensor, "V"]) -> Iterator[Sibling]:
    """Yield the children of a node as draws, in index order; their rows are computed lazily.

    `target_probs`: its target row, against which the width of draft rows is checked.
    """
    for group in tree.groups_of(node):
        yield from _of_group(tree, node, group, target_probs)


def _of_group(
    tree: TokenTree, node: int, group: Group, target_probs: Float[Tensor, "V"]
) -> Iterator[Sibling]:
    tokens = [tree.token_ids[child] for child in group.children]
    if group.row is None:
        yield from (Sibling(token, None) for token in tokens)
        return
    draft_probs = draft_row(tree, node, target_probs, group.row)
    for i, token in enumerate(tokens):
        if i and group.law is Law.WITHOUT_REPLACEMENT:
            elders = torch.tensor(tokens[:i], device=draft_probs.device)
            yield Sibling(token, without(draft_probs, elders))
        else:
            yield Sibling(token, draft_probs)


def _without_token(probs: Float[Tensor, "V"], token: int) -> Float[Tensor, "V"]:
    """The row without a token, renormalised; unchanged if rounding leaves no mass (p(x) just below 1)."""
    rest = probs.clone()
    rest[token] = 0
    mass = rest.sum()
    return rest / mass if mass > 0 else probs
