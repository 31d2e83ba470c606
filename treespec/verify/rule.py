"""What an acceptance rule says about itself, and the two shapes that rules come in."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from treespec.errors import RefusedTree
from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree

__all__ = [
    "NodeChoice",
    "NodeRule",
    "Rule",
    "ratio",
    "repeated_children",
    "rule",
    "top_down",
]


@dataclass(frozen=True)
class NodeChoice:
    """What a per-node rule decided: which child (its place among the siblings), or which token instead.

    Exactly one of the two is given.
    """

    child: int | None = None
    token: int | None = None


@runtime_checkable
class NodeRule(Protocol):
    """An acceptance rule at one node."""

    def __call__(
        self,
        target_probs: Float[Tensor, "V"],
        draft_probs: Float[Tensor, "V"] | None,
        children: Sequence[int],
        coins: Coins,
        /,
    ) -> NodeChoice:
        """Choose among the tokens of the children, in draw order, or a token of the target's own."""
        ...


class Rule:
    """A verifier that knows what it covers.

    Calling it checks the tree first, then decides. `rule.__wrapped__` is the plain function.

    Attributes:
        laws: how children may have been drawn for the rule to be lossless.
        lossless: whether the emitted tokens follow the target's own law.
        one_hot: whether target rows must be one-hot (temperature 0).
        reference: where the rule was published.
    """

    def __init__(
        self,
        decide: Callable[[TokenTree, Rows, Coins], Verdict],
        laws: Collection[Law],
        reference: str,
        lossless: bool = True,
        one_hot: bool = False,
        needs: Callable[[TokenTree], str | None] = lambda tree: None,
    ) -> None:
        wraps(decide)(self)
        self._decide, self._needs = decide, needs
        self.laws, self.reference = frozenset(laws), reference
        self.lossless, self.one_hot = lossless, one_hot

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """The rule's verdict on a tree.

        Raises:
            RefusedTree: if children were drawn by a law, or the tree has a shape, that the rule does not
                cover.
        """
        self.require(tree)
        return self._decide(tree, target_probs, coins)

    def require(self, tree: TokenTree) -> None:
        """Raise `RefusedTree` unless the rule covers this tree."""
        foreign = tree.laws - self.laws
        if foreign:
            given, covered = (", ".join(sorted(map(str, laws))) for laws in (foreign, self.laws))
            raise RefusedTree(
                f"rule '{self}' does not cover children drawn {given}: "
                f"it is lossless for {covered} only"
            )
        complaint = self._needs(tree)
        if complaint:
            raise RefusedTree(f"rule '{self}' {complaint}")

    def __reduce__(self) -> str:
        """Pickled by its name, as functions are: a rule lives at the top of a module."""
        return self.__qualname__  # pyrefly: ignore[missing-attribute]  (set by wraps)

    def __str__(self) -> str:
        return self.__name__  # pyrefly: ignore[missing-attribute]  (set by wraps)

    def __repr__(self) -> str:
        laws = ", ".join(sorted(map(str, self.laws)))
        return f"<acceptance rule {self}: {laws}; {'lossless' if self.lossless else 'lossy'}>"


def rule(
    *,
    laws: Collection[Law],
    reference: str,
    lossless: bool = True,
    one_hot: bool = False,
    needs: Callable[[TokenTree], str | None] = lambda tree: None,
) -> Callable[[Callable[[TokenTree, Rows, Coins], Verdict]], Rule]:
    """Make a `Rule` of a function `(tree, target_probs, coins) -> Verdict`.

    Args:
        laws: the laws that it covers.
        reference: where it was published.
        lossless: whether it keeps the target's law.
        one_hot: whether it needs one-hot target rows.
        needs: says what is wrong with a tree's shape, or None.
    """
    return lambda decide: Rule(decide, laws, reference, lossless, one_hot, needs)


def top_down(tree: TokenTree, target_probs: Rows, coins: Coins, node_rule: NodeRule) -> Verdict:
    """Walk from the root, deciding node by node, until a token is not drafted or a leaf is reached.

    At a leaf the bonus is a draw from the target's distribution there. Only rows of visited nodes are
    read. `node_rule` gets no draft distribution at a node whose children are deterministic, whatever row
    the tree holds for it.

    Raises:
        RefusedTree: if draft and target distributions of a visited node have different lengths, or
            `node_rule` refuses its children; the error names the node.
    """
    path = [0]
    while True:
        node = path[-1]
        children = tree.shape.children[node]
        if not children:
            return Verdict(tuple(path), coins.draw(target_probs[node]))
        draft_probs = None if tree.law_of(node) is Law.DETERMINISTIC else tree.draft_probs_of(node)
        tokens = [tree.token_ids[child] for child in children]
        row = target_probs[node]
        if draft_probs is not None and draft_probs.shape != row.shape:
            raise RefusedTree(
                f"the draft distribution of node {node} has {len(draft_probs)} tokens, the target's has "
                f"{len(row)}: cut or pad the draft's to the target's vocabulary"
            )
        try:
            choice = node_rule(row, draft_probs, tokens, coins)
        except RefusedTree as error:
            raise RefusedTree(
                f"the children of node {node}, in draw order {tokens}: {error}"
            ) from None
        if choice.token is not None:
            return Verdict(tuple(path), choice.token)
        assert choice.child is not None
        path.append(children[choice.child])


def ratio(target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "V"], token: int) -> float:
    """The target's over the draft's probability of a drawn token.

    Raises:
        RefusedTree: if the draft could not have drawn the token. Its ratio would be infinite, so that it
            would always be accepted, whatever the target thinks of it.
    """
    value = float(target_probs[token] / draft_probs[token])
    # A ratio of tiny probabilities can overflow honestly, so only then is the draft's read by itself.
    if not math.isfinite(value) and draft_probs[token] == 0:
        raise RefusedTree(f"token {token} cannot have been drawn: its draft probability is 0")
    return value


def repeated_children(tree: TokenTree) -> str | None:
    """What is wrong with a tree in which siblings repeat a token, for rules that need distinct ones."""
    for node in tree.shape.internal:
        tokens = [tree.token_ids[child] for child in tree.shape.children[node]]
        if len(set(tokens)) < len(tokens):
            return f"needs distinct children, but node {node} has the tokens {tokens}"
    return None
