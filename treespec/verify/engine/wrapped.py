"""Base class of verifiers that decide as a rule does, but by other means or on another device."""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.errors import InvalidArgument
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify.rule import Rule


class WrappedRule:
    """A verifier with the name and the attributes of its rule.

    `rule`: one of `treespec.verify`, or your own, made with `treespec.verify.rule`.
    """

    __name__: str
    laws: Collection[Law]
    mixes: Collection[Law]
    settings: Mapping[str, float]

    def __init__(self, rule: Rule) -> None:
        if not isinstance(rule, Rule):
            raise InvalidArgument(
                f"{rule!r} is a {type(rule).__name__}, not an acceptance rule: give a rule of "
                "treespec.verify, such as verify.rrs (by name: verify.RULES['rrs'])"
            )
        self.rule, self.__name__ = rule, str(rule)
        self.laws, self.mixes, self.lossless = rule.laws, rule.mixes, rule.lossless
        self.one_hot = rule.one_hot
        self.reference, self.settings = rule.reference, rule.settings
        self.scope, self.child_acceptance = rule.scope, rule.child_acceptance
        self.on_trees, self.by_member = rule.on_trees, rule.by_member

    def covers(
        self,
        shape: TreeShape,
        law: Law | str | Sequence[Law | str | Sequence[tuple[Law | str, int]]],
        vocabulary: int | None = None,
    ) -> str | None:
        """Say why the rule cannot decide on trees of this shape and law; None if it can."""
        return self.rule.covers(shape, law, vocabulary)

    def require(self, tree: TokenTree) -> None:
        """Raise `RefusedTree` unless the rule covers this tree; reads the tree's tokens."""
        self.rule.require(tree)

    def using(self, **settings: float | int) -> "WrappedRule":
        """Return this verifier with other settings of the rule."""
        changed = copy(self)
        WrappedRule.__init__(changed, self.rule.using(**settings))
        return changed

    def __str__(self) -> str:
        return self.__name__


@lru_cache(maxsize=256)
def plan_of(shape: TreeShape) -> Int[Tensor, "4 N"]:
    """First child, next sibling, previous sibling and row of `draft_probs` of each node; -1 for none.

    Int32, on the CPU. Cached and shared between callers: do not write to it.
    """
    plan = torch.full((4, shape.size), -1, dtype=torch.int32, device="cpu")
    for row, node in enumerate(shape.internal):
        children = shape.children[node]
        plan[0, node], plan[3, node] = children[0], row
        for elder, child in pairwise(children):
            plan[1, elder], plan[2, child] = child, elder
    return plan
