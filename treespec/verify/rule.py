"""`Rule`, a verifier that knows what it covers, and `top_down`, the walk of rules that decide per node."""

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.checks import instance, number
from treespec.errors import InvalidSetting, NotADistribution, RefusedTree
from treespec.protocols import Coins, Rows
from treespec.sampling.children import too_many
from treespec.step import Verdict
from treespec.tree import Law, TokenTree, TreeShape
from treespec.tree.law import LawOfNode, laws_by_node
from treespec.verify.checked import TargetRows, draft_row

LARGEST_RATIO = 1e30
"""Upper bound on ratios of probabilities."""


@dataclass(frozen=True)
class NodeChoice:
    """The decision of a per-node rule: accept a child, or emit a token in place of the children.

    Exactly one of the two is set.

    Args:
        child: index of the accepted child among its siblings.
        token: the token to emit instead.
    """

    child: int | None = None
    token: int | None = None

    @classmethod
    def of(cls, token: int, children: Sequence[int]) -> "NodeChoice":
        """Emit `token`: by accepting the first child that holds it, or as a token if no child does.

        Continuing below a child that a draw happens to hit is lossless too, because its subtree was
        drafted independently of that draw.
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
        """Accept one of `children` (token ids in draw order), or emit a token of the target's own."""


class Scope(enum.Enum):
    """What the acceptance of a child depends on, besides the rows of its ancestors."""

    ELDERS = "elders"
    """The siblings before it. Later siblings and subtrees have no influence."""
    SIBLINGS = "siblings"
    """All its siblings, hence also their number."""
    TREE = "tree"
    """The subtree below it, or other branches as well."""


ChildAcceptance = Callable[
    [Float[Tensor, "V"], Float[Tensor, "V"] | None, Sequence[int]], list[float]
]
"""`(target_probs, draft_probs, children in draw order) -> acceptance probability of each child`."""

OffTarget = Callable[..., float]
"""`(target_probs, draft_probs, children in draw order, accepted child, **settings)` -> the total variation
between the law of the token that follows a node, and the target's row."""

Needs = Callable[[TreeShape, Sequence[LawOfNode]], str | None]
"""`(shape, law of each node) -> why the rule cannot decide on such a tree, or None if it can`."""


class Rule:
    """A verifier that knows what it covers: a call first checks the tree, then decides.

    Its attributes are the arguments of `rule`, which explains them, and `settings`: the keyword-only
    arguments of the plain function, `rule.__wrapped__`, and their values.
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
        off_target: OffTarget | None = None,
    ) -> None:
        wraps(decide)(self)
        self._decide, self._needs, self._distinct = decide, needs, distinct
        self.laws, self.mixes, self.reference = frozenset(laws), frozenset(mixes), reference
        self.lossless, self.one_hot = lossless, one_hot
        self.scope, self.child_acceptance = scope, child_acceptance
        self.on_trees: Mapping[Law, Rule] = on_trees or {}
        self.by_member, self._off_target = by_member, off_target
        parameters = signature(decide).parameters.values()
        self.settings: Mapping[str, float] = {
            p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY
        }
        self._plain = self

    def __call__(self, tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
        """Decide on a tree.

        Each row is checked when the rule first reads it (`treespec.tree.checked_rows`). `__wrapped__`, the
        plain function, checks less.

        Raises:
            InvalidArgument: if an argument is not a tree or rows.
            RefusedTree: if the rule does not cover the tree's shape or the law of its children, or if a
                visited row is missing or has another vocabulary.
            NotADistribution: if a visited row of target or draft is not a distribution; names the node.
        """
        rows = TargetRows.of(tree, target_probs)
        self.require(tree)
        return self._decide(tree, rows, coins, **self.settings)

    def off_target(self, tree: TokenTree, target_probs: Rows, verdict: Verdict) -> float | None:
        """How far a step departs from the target: the price of a lossy rule, beside its speed.

        The total variation between the law of each emitted token and the target's row, added up over the
        visited rows; divided by the emitted tokens, it is the smallest share of tokens that must differ
        from what the target would have chosen. At temperature 0 that is the share that does differ.

        Returns:
            The sum; 0 for a lossless rule, None for a lossy one that does not say.
        """
        if self.lossless:
            return 0.0
        if self._off_target is None:
            return None
        ids, total = tree.token_ids, 0.0
        for node, child in zip(verdict.path, (*verdict.path[1:], None), strict=True):
            children = [ids[c] for c in tree.shape.children[node]]
            if children:
                drawn = tree.law_of(node) is not Law.DETERMINISTIC
                draft_probs = tree.draft_probs_of(node) if drawn else None
                total += self._off_target(
                    target_probs[node],
                    draft_probs,
                    children,
                    None if child is None else ids[child],
                    **self.settings,
                )
        return total

    def using(self, **settings: float | int) -> "Rule":
        """Return the rule with other settings.

        Raises:
            InvalidSetting: if the rule has no such setting, or a value is not in [0, 1].
        """
        for name, value in settings.items():
            if name not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise InvalidSetting(f"rule '{self}' has no setting {name!r} (settings: {known})")
            if not 0 <= number(f"{name} of rule '{self}'", value, InvalidSetting) <= 1:
                raise InvalidSetting(f"{name} = {value!r} of rule '{self}', but must be in [0, 1]")
        changed = object.__new__(type(self))  # `copy` would return this very object: see __reduce__
        changed.__dict__.update(self.__dict__)
        changed.settings = {**self.settings, **{k: float(v) for k, v in settings.items()}}
        return changed

    def covers(
        self,
        shape: TreeShape,
        law: Law | str | Sequence[Law | str | Sequence[tuple[Law | str, int]]],
        vocabulary: int | None = None,
    ) -> str | None:
        """Say why the rule cannot decide on trees of this shape and law; None if it can.

        A reason is also given if no such tree exists because the law cannot draw that many children.

        Args:
            shape: the tree.
            law: how children are drawn: one law for all nodes, or, as in `TokenTree`, a law or the groups
                of each node.
            vocabulary: number of tokens to draw from; None for as many as needed.
        """
        return self._refusal(shape, laws_by_node(law, shape), vocabulary)

    def require(self, tree: TokenTree) -> None:
        """Raise `RefusedTree` unless the rule covers this tree: its shape, its laws and its tokens."""
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
                f"rule '{self}' does not cover children of law {given}"
                f"{' in mixed trees' if mixed else ''}: it is made for {covered} only"
            )
        for law, count in groups:
            reason = too_many(count, vocabulary, law)
            if reason:
                return reason
        reason = self._needs(shape, laws)
        return reason and f"rule '{self}' {reason}"

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by name, as functions are: a rule is defined at the top of a module."""
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
    """`Rule._refusal`, cached: a run decides on the same few shapes again and again."""
    return rule._refusal(shape, laws)


def _groups(law: LawOfNode, shape: TreeShape, node: int) -> tuple[tuple[Law, int], ...]:
    """The law and the number of children of each group of a node."""
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
    off_target: OffTarget | None = None,
) -> Callable[[Callable[..., Verdict]], Rule]:
    """Decorate a function `(tree, target_probs, coins) -> Verdict` to make it a `Rule`.

    The function's keyword-only arguments, numbers in [0, 1] with defaults, become the rule's settings.

    Args:
        laws: the laws for which the rule is lossless; for a lossy rule, for which it runs.
        reference: where it was published.
        lossless: whether it preserves the target's distribution.
        one_hot: whether it needs one-hot target rows.
        needs: function that says what is wrong with a tree's shape, or None.
        distinct: whether siblings must be distinct, except those drawn independently.
        scope: what the acceptance of a child depends on; by default the whole tree.
        child_acceptance: closed form for the probability, over the coins, that each child of a node is
            accepted; for rules of scope `ELDERS`.
        on_trees: for a rule that needs chains, by law: the rule for any tree that equals it on chains.
        mixes: the laws that it covers in groups of mixed trees; empty if it does not cover such trees.
        by_member: whether it accepts a deterministic child if and only if the text continues with it, so
            that acceptance can be read off the text alone.
        off_target: for a lossy rule, how far it departs from the target at one node (`Rule.off_target`).
    """
    facts = (
        lossless, one_hot, needs, distinct, scope, child_acceptance, on_trees, mixes, by_member, off_target,
    )  # fmt: skip
    return lambda decide: Rule(decide, laws, reference, *facts)


def top_down(tree: TokenTree, target_probs: Rows, coins: Coins, node_rule: NodeRule) -> Verdict:
    """Walk down from the root, applying `node_rule` at each node, until it emits a token or reaches a leaf.

    At a leaf the bonus is drawn from the target's distribution there. Only rows of visited nodes are
    read. `node_rule` receives None as `draft_probs` at nodes with deterministic children, whatever row
    the tree holds for them, and at every node of a mixed tree.

    Raises:
        RefusedTree: if draft and target distributions of a visited node differ in length, or if
            `node_rule` refuses its children; names the node.
        NotADistribution: if a visited row is not a distribution; names the node.
    """
    return walk_down(tree, target_probs, coins, partial(_at_node, tree, node_rule, coins))


def _at_node(
    tree: TokenTree, node_rule: NodeRule, coins: Coins, node: int, row: Float[Tensor, "V"]
) -> NodeChoice:
    without_draft = tree.is_mixed or tree.law_of(node) is Law.DETERMINISTIC
    draft_probs = None if without_draft else draft_row(tree, node, row)
    return node_rule(row, draft_probs, _tokens(tree, node), coins)


def walk_down(
    tree: TokenTree,
    target_probs: Rows,
    coins: Coins,
    decide: Callable[[int, Float[Tensor, "V"]], NodeChoice],
) -> Verdict:
    """The walk of `top_down`, for decisions that look up children and draft rows in the tree themselves.

    `target_probs`: `[V]` rows by node.
    """
    rows, path = TargetRows.of(tree, target_probs), [0]
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
    """The target's probability of a drawn token divided by the draft's."""
    draft = draft_probs[token]
    if not draft.item() > 0:
        raise RefusedTree(
            f"token {token} cannot have been drawn: its draft probability is {float(draft):g}"
        )
    # With a tiny draft probability the ratio can overflow legitimately.
    return (target_probs[token] / draft).clamp_max(min(LARGEST_RATIO, torch.finfo(draft.dtype).max))


def require_number(value: Float[Tensor, ""], node: int | None = None) -> None:
    """Raise `NotADistribution` if a value computed from the rows of a node is NaN."""
    if value != value:
        where = "a node" if node is None else f"node {node}"
        raise NotADistribution(f"the target's or the draft's row of {where} holds NaN")


def branches(shape: TreeShape, laws: Sequence[LawOfNode]) -> str | None:
    """`needs` of rules for chains: the complaint about a tree that branches."""
    return None if shape.is_chain else "needs a chain, but the tree has siblings"
