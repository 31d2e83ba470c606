"""The per-node rule of largest acceptance, for vocabularies small enough for a linear programme."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from jaxtyping import Float
from torch import Tensor

from treespec.errors import RefusedTree
from treespec.protocols import Coins, Rows
from treespec.sampling.children import require_children
from treespec.step import Verdict
from treespec.tree import Law, TokenTree, TreeShape
from treespec.tree.law import LawOfNode
from treespec.verify.drafted_sets import count_sets, drafted_sets
from treespec.verify.largest_flow import Number, largest_flow
from treespec.verify.rrs import in_draw_order
from treespec.verify.rule import NodeChoice, Scope, require_number, rule, top_down

LARGEST_PROGRAMME = 100_000
"""Largest number of variables, pairs of a set and a token in it, of a linear programme: takes seconds."""
CACHED_PLANS = 32


@dataclass(frozen=True)
class Plan:
    """A coupling of a target's row with the law of the drafted tokens.

    Args:
        sets: index into `probs` and `masses` of each set of distinct tokens that can be drafted; the
            tokens of a set are ascending.
        probs: the probability that each set is drafted.
        masses: for each set and each of its tokens, the probability that the set is drafted *and* the
            token is the output.
        residual: the part of the target's row that the drafts do not supply, not normalised.
    """

    sets: dict[tuple[int, ...], int]
    probs: tuple[Number, ...]
    masses: tuple[tuple[Number, ...], ...]
    residual: tuple[Number, ...]

    @property
    def value(self) -> Number:
        """The probability that the output is one of the drafts."""
        return sum(map(sum, self.masses))


def _both_laws(shape: TreeShape, laws: Sequence[LawOfNode]) -> str | None:
    if len({laws[node] for node in shape.internal if len(shape.children[node]) > 1}) > 1:
        return "needs one law at all nodes with several children, but the tree has both of its laws"
    return None


@rule(
    laws={Law.IID, Law.WITHOUT_REPLACEMENT},
    reference="arXiv:2310.15141",
    needs=_both_laws,
    distinct=True,
    scope=Scope.SIBLINGS,
)
def optimal_transport(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """At each node, draw the output from the coupling of target and drafts with the largest acceptance.

    SpecTr's optimal transport with membership cost (arXiv:2310.15141), solved as a linear programme.
    Ours reduces a tuple of drafts to its set of distinct tokens, which leaves the optimum unchanged, and
    states the plan only for outputs among the drafts: all other outputs come from the target's residual,
    whatever was drafted. The solver's plan is repaired (see `largest_flow`) and the residual computed from
    the repaired plan, so the rule is lossless whatever the solver's tolerance. Acceptance at a node is
    `optimal_acceptance`.

    Args:
        tree: children drawn i.i.d. (siblings may repeat) or without replacement from `draft_probs`.
        target_probs: `[V]` rows by node.
        coins: for each visited node, one coin for each distinct child that may be accepted, in the order
            of their ids, and one draw from the residual if none is. A residual token that equals a child
            accepts that child.

    Raises:
        RefusedTree: for children drawn by another law or by both of these laws, children that could not
            have been drawn, or a programme of more than `LARGEST_PROGRAMME` variables.
    """
    branching = [n for n in tree.shape.internal if len(tree.shape.children[n]) > 1]
    law = tree.law_of(branching[0]) if branching else Law.IID  # for one child both laws coincide

    return top_down(tree, target_probs, coins, partial(_at_node, law))


def _at_node(
    law: Law,
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    assert draft_probs is not None
    require_number(target_probs.sum() + draft_probs.sum())
    if len(children) == 1:  # the optimum needs no programme, for any vocabulary
        return in_draw_order(target_probs, draft_probs, children, coins)
    plan = transport_plan(target_probs, draft_probs, len(children), law)
    tokens = tuple(sorted(set(children)))
    if tokens not in plan.sets:
        raise RefusedTree("they cannot have been drawn together: their draft probability is 0")
    place = plan.sets[tokens]
    left: Number = 1
    for token, mass in zip(tokens, plan.masses[place], strict=True):
        # Relative to the set's probability, which can be too small for the rows' dtype.
        share = mass / plan.probs[place]
        chance = share / left if left > share else 1.0
        # Floats stay floats: the rows' dtype could round a chance just below 1 up to 1.
        coin = chance if isinstance(chance, float) else target_probs.new_tensor(chance)
        if share > 0 and coins.accept(coin):
            return NodeChoice.of(token, children)
        left -= share
    # If the residual is empty, only rounding rejected: draw from the target.
    residual = target_probs.new_tensor(plan.residual)
    return NodeChoice.of(coins.draw(residual if residual.sum() > 0 else target_probs), children)


def transport_plan(
    target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "V"], k: int, law: Law
) -> Plan:
    """The coupling of the target's row with the drafted tokens that maximises P(output among drafts).

    Computed in plain numbers: floats, or fractions for rows whose `tolist` returns fractions. The most
    recent plans are cached.

    Example:
        >>> import torch
        >>> p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
        >>> transport_plan(p, q, 2, Law.IID).value
        0.9375
    """
    if law not in optimal_transport.laws:
        raise RefusedTree(
            f"no transport plan for children of law {law}: the laws covered are iid and without_replacement"
        )
    require_children(k, len(draft_probs), law)
    # A float32 row may sum to 1 - 1e-8; the missing mass would end up on the residual's rarest tokens.
    target, draft = (_normalised(row.tolist()) for row in (target_probs, draft_probs))
    # The type is part of the key: 1/2 and 0.5 are equal, but give different kinds of plans.
    return _plan(tuple(target), tuple(draft), k, law, type(target[0]))


def _normalised(row: list[Number]) -> list[Number]:
    total = sum(row)
    return [p / total for p in row]


@lru_cache(maxsize=CACHED_PLANS)
def _plan(
    target: tuple[Number, ...], draft: tuple[Number, ...], k: int, law: Law, kind: type
) -> Plan:
    count, variables = count_sets(draft, k, law)
    if variables > LARGEST_PROGRAMME:
        raise RefusedTree(
            f"the transport of {k} children out of {sum(q > 0 for q in draft)} tokens has {count} sets of "
            f"drafts and {variables} variables, but at most {LARGEST_PROGRAMME} are solved: use another "
            "rule, or `optimal_acceptance` for the value at any size"
        )
    sets = drafted_sets(draft, k, law)
    probs = tuple(sets.values())
    masses = largest_flow(probs, list(sets), target)
    residual = list(target)
    for tokens, supplied in zip(sets, masses, strict=True):
        for token, mass in zip(tokens, supplied, strict=True):
            residual[token] -= mass
    return Plan(
        {tokens: place for place, tokens in enumerate(sets)},
        probs,
        tuple(map(tuple, masses)),
        tuple(max(mass, 0) for mass in residual),
    )
