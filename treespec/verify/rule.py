"""What an acceptance rule says about itself, and the two shapes that rules come in."""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.children import too_many
from treespec.door import able, instance, number, shown
from treespec.errors import InvalidArgument, InvalidSetting, NotADistribution, RefusedTree
from treespec.law import LawOfNode, laws_by_node
from treespec.protocols import Coins, Rows
from treespec.step import Verdict
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify.checked import CheckedRows, draft_row, require_rows

__all__ = [
    "ChildAcceptance",
    "NodeChoice",
    "NodeRule",
    "Rule",
    "Scope",
    "branches",
    "ratio",
    "require_number",
    "require_rows",
    "rule",
    "top_down",
    "walk_down",
]


LARGEST_RATIO = 1e30
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


class Scope(enum.Enum):
    """What decides whether a child is accepted, besides the rows above it."""

    ELDERS = "elders"
    """The siblings before it: those that come after it, and what hangs below, change nothing."""
    SIBLINGS = "siblings"
    """All its siblings, so that it matters how many there are."""
    TREE = "tree"
    """What hangs below, or other branches too."""


ChildAcceptance = Callable[
    [Float[Tensor, "V"], Float[Tensor, "V"] | None, Sequence[int]], list[float]
]
"""From the target's row, the draft's and the children, in draw order: how probably each is accepted."""

Needs = Callable[[TreeShape, Sequence[LawOfNode]], str | None]
"""From the shape of a tree and the law of each node: what is wrong with it, or None."""


class Rule:
    """A verifier that knows what it covers.

    Calling it checks the tree first, then decides. `rule.__wrapped__` is the plain function.

    Attributes:
        laws: how children may have been drawn for the rule to be lossless (lossy rules: to be run).
        mixes: the same of the groups of a mixed tree; empty if the rule decides on no such trees.
        lossless: whether the emitted tokens follow the target's own law.
        one_hot: whether target rows must be one-hot (temperature 0).
        reference: where the rule was published.
        settings: of a rule that has some; the keyword-only arguments of the plain function.
        scope: what the acceptance of a child depends on.
        child_acceptance: of some rules of scope `ELDERS`, the exact probability that each child of a node
            is accepted, over the coins, by a formula.
        on_trees: of a rule for chains, by law: the rule for any tree that is this one on a chain.
        by_member: whether a deterministic child is accepted if and only if the text goes on with it, which
            the text alone tells.
    """

    def __init__(
        self,
        decide: Callable[..., Verdict],
        laws: Collection[Law],
        reference: str,
        lossless: bool = True,
        one_hot: bool = False,
        needs: Needs = lambda shape, laws: None,
        distinct: bool = False,
        scope: Scope = Scope.TREE,
        child_acceptance: ChildAcceptance | None = None,
        on_trees: Mapping[Law, "Rule"] | None = None,
        mixes: Collection[Law] = (),
        by_member: bool = False,
    ) -> None:
        wraps(decide)(self)
        self._decide, self._needs, self._distinct = decide, needs, distinct
        self.laws, self.mixes, self.reference = frozenset(laws), frozenset(mixes), reference
        self.lossless, self.one_hot = lossless, one_hot
        self.scope, self.child_acceptance = scope, child_acceptance
        self.on_trees: Mapping[Law, Rule] = on_trees or {}
        self.by_member = by_member
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

    def covers(
        self,
        shape: TreeShape,
        law: Law | str | Sequence[Law | str | Sequence[tuple[Law | str, int]]],
        vocabulary: int | None = None,
    ) -> str | None:
        """Why the rule cannot decide on trees of this shape and law, or None: then it can.

        Also if there are no such trees, because the law does not give so many children.

        Args:
            shape: the tree.
            law: how children are drawn: one law for all nodes, or for each node one or its groups, as a
                `TokenTree` has them.
            vocabulary: tokens to draw from; None for as many as it takes.
        """
        return self._refusal(shape, laws_by_node(law, shape), vocabulary)

    def require(self, tree: TokenTree) -> None:
        """Raise `RefusedTree` unless the rule covers this tree; its tokens count besides its shape."""
        instance("tree", tree, TokenTree, "a TokenTree")
        laws: Any = tree.law  # a tuple since __post_init__
        reason = _refusal_once(self, tree.shape, laws)
        if reason:
            raise RefusedTree(reason)
        ids = tree.token_ids
        for node in tree.shape.internal if self._distinct or tree.is_mixed else ():
            if len(tree.shape.children[node]) < 2:
                continue
            for group in tree.groups_of(node):
                tokens = [ids[child] for child in group.children]
                if len(set(tokens)) < len(tokens) and group.law is not Law.IID:
                    raise RefusedTree(
                        f"rule '{self}' needs distinct children, but node {node} has the tokens {tokens}"
                    )

    def _refusal(
        self, shape: TreeShape, laws: Sequence[LawOfNode], vocabulary: int | None = None
    ) -> str | None:
        mixed = not all(isinstance(law, Law) for law in laws)
        if mixed and not self.mixes:
            return f"rule '{self}' does not cover mixed trees, whose nodes have children of several groups"
        groups = [group for node in shape.internal for group in _groups(laws[node], shape, node)]
        covers = self.mixes if mixed else self.laws
        foreign = {law for law, _ in groups} - covers
        if foreign:
            given, covered = (", ".join(sorted(map(str, laws))) for laws in (foreign, covers))
            return (
                f"rule '{self}' does not cover children drawn {given}"
                f"{' in mixed trees' if mixed else ''}: it is made for {covered} only"
            )
        for law, count in groups:
            reason = too_many(count, vocabulary, law)
            if reason:
                return reason
        reason = self._needs(shape, laws)
        return reason and f"rule '{self}' {reason}"

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


@lru_cache(maxsize=1024)
def _refusal_once(rule: Rule, shape: TreeShape, laws: tuple[LawOfNode, ...]) -> str | None:
    """Why a rule does not cover trees of a shape and laws: most are decided on over and over."""
    return rule._refusal(shape, laws)


def _groups(law: LawOfNode, shape: TreeShape, node: int) -> tuple[tuple[Law, int], ...]:
    """Law and number of children of each group of a node."""
    return ((law, len(shape.children[node])),) if isinstance(law, Law) else law


def _with_settings(plain: Rule, settings: Mapping[str, float]) -> Rule:
    return plain.using(**settings)


def rule(
    *,
    laws: Collection[Law],
    reference: str,
    lossless: bool = True,
    one_hot: bool = False,
    needs: Needs = lambda shape, laws: None,
    distinct: bool = False,
    scope: Scope = Scope.TREE,
    child_acceptance: ChildAcceptance | None = None,
    on_trees: Mapping[Law, Rule] | None = None,
    mixes: Collection[Law] = (),
    by_member: bool = False,
) -> Callable[[Callable[..., Verdict]], Rule]:
    """Make a `Rule` of a function `(tree, target_probs, coins) -> Verdict`.

    Keyword-only arguments of the function, numbers in [0, 1] with defaults, are the rule's settings.

    Args:
        laws: the laws that it covers.
        reference: where it was published.
        lossless: whether it keeps the target's law.
        one_hot: whether it needs one-hot target rows.
        needs: says what is wrong with a tree's shape, or None.
        distinct: whether siblings must be distinct, but for those drawn independently.
        scope: what the acceptance of a child depends on; by default the whole tree.
        child_acceptance: how probably each child is accepted; for rules of scope `ELDERS`.
        on_trees: of a rule for chains, by law: the rule for any tree that is this one on a chain.
        mixes: the laws that it covers in groups of mixed trees; none if it does not decide on them.
        by_member: whether it accepts a deterministic child if and only if the text goes on with it.
    """
    facts = lossless, one_hot, needs, distinct, scope, child_acceptance, on_trees, mixes, by_member
    return lambda decide: Rule(decide, laws, reference, *facts)


def top_down(tree: TokenTree, target_probs: Rows, coins: Coins, node_rule: NodeRule) -> Verdict:
    """Walk from the root, deciding node by node, until a token is not drafted or a leaf is reached.

    At a leaf the bonus is a draw from the target's distribution there. Only rows of visited nodes are
    read. `node_rule` gets no draft distribution at a node whose children are deterministic, whatever row
    the tree holds for it, nor at any node of a mixed tree.

    Raises:
        RefusedTree: if draft and target distributions of a visited node have different lengths, or
            `node_rule` refuses its children; the error names the node.
        NotADistribution: if a visited row is none; likewise.
    """
    if not callable(node_rule):
        raise InvalidArgument(f"node_rule = {shown(node_rule)} is no function: see NodeRule")
    return walk_down(tree, target_probs, coins, partial(_at_node, tree, node_rule, coins))


def _at_node(
    tree: TokenTree, node_rule: NodeRule, coins: Coins, node: int, row: Float[Tensor, "V"]
) -> NodeChoice:
    sure = tree.is_mixed or tree.law_of(node) is Law.DETERMINISTIC
    draft_probs = None if sure else draft_row(tree, node, row)
    return node_rule(row, draft_probs, _tokens(tree, node), coins)


def walk_down(
    tree: TokenTree,
    target_probs: Rows,
    coins: Coins,
    decide: Callable[[int, Float[Tensor, "V"]], NodeChoice],
) -> Verdict:
    """The walk of `top_down`, with a decision that reads the tree itself.

    Args:
        tree: what was drafted.
        target_probs: `[V]` rows by node.
        coins: for the draw at a leaf.
        decide: from a node with children and its target row.
    """
    rows, path = CheckedRows.of(tree, target_probs), [0]
    able("coins", coins, "accept draw", "coins, such as TorchCoins(0)")
    while True:
        node = path[-1]
        children = tree.shape.children[node]
        if not children:
            return Verdict(tuple(path), coins.draw(rows[node]))
        row = rows[node]
        try:
            choice = decide(node, row)
        except RefusedTree as error:
            raise RefusedTree(
                f"the children of node {node}, in draw order {_tokens(tree, node)}: {error}"
            ) from None
        if choice.token is not None:
            return Verdict(tuple(path), choice.token)
        assert choice.child is not None
        path.append(children[choice.child])


def _tokens(tree: TokenTree, node: int) -> list[int]:
    return [tree.token_ids[child] for child in tree.shape.children[node]]


def ratio(
    target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "V"], token: int
) -> Float[Tensor, ""]:
    """The target's over the draft's probability of a drawn token.

    Raises:
        RefusedTree: if the draft could not have drawn the token. Its ratio would be infinite, so that it
            would always be accepted, whatever the target thinks of it.
    """
    draft = draft_probs[token]
    if not draft.item() > 0:
        raise RefusedTree(
            f"token {token} cannot have been drawn: its draft probability is {float(draft):g}"
        )
    # Probabilities can be so small that their ratio overflows honestly.
    return (target_probs[token] / draft).clamp_max(min(LARGEST_RATIO, torch.finfo(draft.dtype).max))


def require_number(value: Float[Tensor, ""], node: int | None = None) -> None:
    """Raise `NotADistribution` if a value computed from the rows of a node is NaN."""
    if value != value:
        where = "a node" if node is None else f"node {node}"
        raise NotADistribution(f"the target's or the draft's row of {where} holds NaN")


def branches(shape: TreeShape, laws: Sequence[LawOfNode]) -> str | None:
    """What is wrong with a tree that is no chain, for rules that need one."""
    return None if shape.is_chain else "needs a chain, but the tree has siblings"
