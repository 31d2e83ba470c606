"""What an acceptance rule says about itself, and the two shapes that rules come in."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.door import able, instance, number, shown
from treespec.errors import InvalidArgument, InvalidSetting, NotADistribution, RefusedTree
from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.checked import CheckedRows, draft_row, require_rows

__all__ = [
    "NodeChoice",
    "NodeRule",
    "Rule",
    "branches",
    "ratio",
    "repeated_children",
    "require_number",
    "require_rows",
    "rule",
    "top_down",
]


LARGEST = 1e30
"""Ratios of probabilities end here."""


@dataclass(frozen=True)
class NodeChoice:
    """What a per-node rule decided: which child (its place among the siblings), or which token instead.

    Exactly one of the two is given.
    """

    child: int | None = None
    token: int | None = None

    @classmethod
    def of(cls, token: int, children: Sequence[int]) -> "NodeChoice":
        """The output is this token: the child that has it, if there is one.

        Going on below a child that was not accepted as such is lossless too: the subtree was drafted
        without regard to this draw.
        """
        return cls(child=children.index(token)) if token in children else cls(token=token)


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
        laws: how children may have been drawn for the rule to be lossless (lossy rules: to be run).
        lossless: whether the emitted tokens follow the target's own law.
        one_hot: whether target rows must be one-hot (temperature 0).
        reference: where the rule was published.
        settings: of a rule that has some; the keyword-only arguments of the plain function.
    """

    def __init__(
        self,
        decide: Callable[..., Verdict],
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
        parameters = signature(decide).parameters.values()
        self.settings: Mapping[str, float] = {
            p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY
        }
        self._plain = self

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """The rule's verdict on a tree.

        Every row that the rule visits is looked at first (`treespec.verify.checked`). `__wrapped__`, the
        plain function, looks at less.

        Raises:
            InvalidArgument: if these are no tree, rows and coins.
            RefusedTree: if children were drawn by a law, or the tree has a shape, that the rule does not
                cover; if a visited row is missing or over another vocabulary.
            NotADistribution: if a visited row of target or draft is none; it names the node.
        """
        rows = CheckedRows.of(tree, target_probs)
        able("coins", coins, "accept draw", "coins, such as TorchCoins(0)")
        self.require(tree)
        return self._decide(tree, rows, coins, **self.settings)

    def using(self, **settings: float | int) -> "Rule":
        """The same rule with other settings.

        Raises:
            InvalidSetting: if the rule has no such setting, or the value is not in [0, 1].
        """
        for name, value in settings.items():
            if name not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise InvalidSetting(f"rule '{self}' has no setting {name!r} (settings: {known})")
            if not 0 <= number(f"{name} of rule '{self}'", value, InvalidSetting) <= 1:
                raise InvalidSetting(f"{name} = {value!r} of rule '{self}', but must be in [0, 1]")
        other = object.__new__(Rule)  # `copy` would give this very object: see __reduce__
        other.__dict__.update(self.__dict__)
        other.settings = {**self.settings, **{k: float(v) for k, v in settings.items()}}
        return other

    def require(self, tree: TokenTree) -> None:
        """Raise `RefusedTree` unless the rule covers this tree."""
        instance("tree", tree, TokenTree, "a TokenTree")
        foreign = tree.laws - self.laws
        if foreign:
            given, covered = (", ".join(sorted(map(str, laws))) for laws in (foreign, self.laws))
            raise RefusedTree(
                f"rule '{self}' does not cover children drawn {given}: "
                f"it is made for {covered} only"
            )
        complaint = self._needs(tree)
        if complaint:
            raise RefusedTree(f"rule '{self}' {complaint}")

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by its name, as functions are: a rule lives at the top of a module."""
        if self is self._plain:
            return self.__qualname__  # pyrefly: ignore[missing-attribute]  (set by wraps)
        return _with_settings, (self._plain, dict(self.settings))

    def __str__(self) -> str:
        return self.__name__  # pyrefly: ignore[missing-attribute]  (set by wraps)

    def __repr__(self) -> str:
        laws = ", ".join(sorted(map(str, self.laws)))
        settings = "".join(f", {name}={value:g}" for name, value in self.settings.items())
        kind = "lossless" if self.lossless else "lossy"
        return f"<acceptance rule {self}{settings}: {laws}; {kind}>"


def _with_settings(plain: Rule, settings: Mapping[str, float]) -> Rule:
    return plain.using(**settings)


def rule(
    *,
    laws: Collection[Law],
    reference: str,
    lossless: bool = True,
    one_hot: bool = False,
    needs: Callable[[TokenTree], str | None] = lambda tree: None,
) -> Callable[[Callable[..., Verdict]], Rule]:
    """Make a `Rule` of a function `(tree, target_probs, coins) -> Verdict`.

    Keyword-only arguments of the function, numbers in [0, 1] with defaults, are the rule's settings.

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
        NotADistribution: if a visited row is none; likewise.
    """
    rows, path = CheckedRows.of(tree, target_probs), [0]
    able("coins", coins, "accept draw", "coins, such as TorchCoins(0)")
    if not callable(node_rule):
        raise InvalidArgument(f"node_rule = {shown(node_rule)} is no function: see NodeRule")
    while True:
        node = path[-1]
        children = tree.shape.children[node]
        if not children:
            return Verdict(tuple(path), coins.draw(rows[node]))
        tokens = [tree.token_ids[child] for child in children]
        row = rows[node]
        sure = tree.law_of(node) is Law.DETERMINISTIC
        draft_probs = None if sure else draft_row(tree, node, row)
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


def ratio(
    target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "V"], token: int
) -> Float[Tensor, ""]:
    """The target's over the draft's probability of a drawn token.

    Raises:
        RefusedTree: if the draft could not have drawn the token. Its ratio would be infinite, so that it
            would always be accepted, whatever the target thinks of it.
    """
    draft = draft_probs[token]
    if not draft > 0:
        raise RefusedTree(
            f"token {token} cannot have been drawn: its draft probability is {float(draft):g}"
        )
    # Probabilities can be so small that their ratio overflows honestly.
    return (target_probs[token] / draft).clamp_max(min(LARGEST, torch.finfo(draft.dtype).max))


def require_number(value: Float[Tensor, ""], node: int | None = None) -> None:
    """Raise `NotADistribution` if a value computed from the rows of a node is NaN."""
    if value != value:
        where = "a node" if node is None else f"node {node}"
        raise NotADistribution(f"the target's or the draft's row of {where} holds NaN")


def branches(tree: TokenTree) -> str | None:
    """What is wrong with a tree that is no chain, for rules that need one."""
    return None if tree.shape.is_chain else "needs a chain, but the tree has siblings"


def repeated_children(tree: TokenTree, law: Law | None = None) -> str | None:
    """What is wrong with a tree in which siblings repeat a token, for rules that need distinct ones.

    Args:
        tree: the tree.
        law: look only at children drawn by this law.
    """
    for node in tree.shape.internal:
        tokens = [tree.token_ids[child] for child in tree.shape.children[node]]
        if len(set(tokens)) < len(tokens) and law in (None, tree.law_of(node)):
            return f"needs distinct children, but node {node} has the tokens {tokens}"
    return None
