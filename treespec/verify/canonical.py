"""Canonical decomposition: select one of the drafts by weights, then verify only that draft."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nlargest
from itertools import accumulate, combinations

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.sampling.distributions import residual
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.largest_flow import Number, largest_flow
from treespec.verify.rule import NodeChoice, Scope, ratio, rule, top_down

LP_TOKENS = 48
"""Number of tokens whose pairs get their weights from a linear programme: 1128 pairs, milliseconds."""
CACHED_TOURNAMENTS = 64
CACHED_VOCABULARY = 8192
"""Tournaments over larger vocabularies are not cached: their rows hardly ever recur."""


@dataclass(frozen=True)
class Round:
    """One comparison: the current winner against the next draft, its challenger.

    Tokens are identified by their places in the order of p / q.

    Args:
        takes: for each token, the probability that it replaces a winner of lower place when it challenges.
        weights: for pairs (i, j), i < j, of tokens in the linear programme, the probability that i is the
            next winner, whichever of the two challenges. `takes` applies to all other pairs.
    """

    takes: list[Number]
    weights: dict[tuple[int, int], Number]

    def replaces(self, winner: int, challenger: int) -> Number:
        """The probability that the challenger is the next winner, for two different places."""
        low, high = min(winner, challenger), max(winner, challenger)
        if (low, high) in self.weights:
            weight = self.weights[low, high]
            return weight if challenger == low else 1 - weight
        return self.takes[challenger] if challenger == high else 0


@dataclass(frozen=True)
class Tournament:
    """How one of k i.i.d. drafts is selected.

    Args:
        places: place of each token in the order of p / q.
        rounds: the k - 1 comparisons.
        law: distribution of the selected token, by token.
    """

    places: list[int]
    rounds: list[Round]
    law: Float[Tensor, "V"]


@rule(laws={Law.IID}, reference="arXiv:2410.18234", scope=Scope.SIBLINGS)
def canonical(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Select one draft, then verify it by min(1, p / r) and norm([p - r]+), r the selected draft's law.

    The canonical decomposition (Khisti et al., arXiv:2410.18234, Section 3): importance-weighted
    selection of a draft, followed by single-draft rejection, loses nothing against the optimal transport
    if draft i of each pair {i, j} is selected with a weight w(i, j) that maximises sum min(p, r), a linear
    programme. With more drafts, the current winner plays against the next draft: a tournament. For two
    drafts from at most `LP_TOKENS` tokens, acceptance is `optimal_acceptance`.

    Ours differs in the truncation of the programme (Section 4 of the paper also fixes the weights of all
    pairs except those among a few tokens) and in the rounds before the last. There a challenger, drawn
    from q, replaces a winner of smaller p / q with a probability that keeps the challenger's law from
    exceeding p, computed from the largest p / q down. (With probability 1 it overshoots, and acceptance
    *falls* with many drafts; a programme in every round is shortsighted.) In the last round, the weights
    among the `LP_TOKENS` tokens of largest draft mass solve the programme, written as a flow from pairs to
    what their tokens lack of p. The law r is computed by sums over one sorted order, in time V log V, from
    the weights actually used: the rule is lossless however far these are from optimal.

    Args:
        tree: children drawn i.i.d. from `draft_probs`; siblings may repeat.
        target_probs: `[V]` rows by node.
        coins: for each visited node, one coin for each comparison of two different tokens, one for the
            selected token, and at most one draw. A residual token that equals another child accepts that
            child: lossless, because the children were drawn before.

    Raises:
        RefusedTree: for children drawn by another law, or children that the draft could not have drawn.
    """
    return top_down(tree, target_probs, coins, _at_node)


def _at_node(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    assert draft_probs is not None
    for token in children:
        ratio(target_probs, draft_probs, token)
    # The winner's law is a sum of products of normalised rows: float32 would lose precision.
    target, draft = (row.double() / row.double().sum() for row in (target_probs, draft_probs))
    plan = tournament(target, draft, len(children))
    winner = children[0]
    for token, play in zip(children[1:], plan.rounds, strict=True):
        if token == winner:
            continue
        replaces = play.replaces(plan.places[winner], plan.places[token])
        if coins.accept(target.new_tensor(replaces)):
            winner = token
    if coins.accept(ratio(target, plan.law, winner)):
        return NodeChoice.of(winner, children)
    return NodeChoice.of(coins.draw(residual(target, plan.law)), children)


def tournament(
    target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "V"], k: int
) -> Tournament:
    """The weights that select one of k i.i.d. drafts, and the law of the selected draft.

    sum min(p, law) is the acceptance of the selected draft. The most recent tournaments are cached.

    Example:
        >>> p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
        >>> tournament(p, q, 2).law
        tensor([0.3600, 0.4400, 0.2000])
    """
    rows = target_probs, draft_probs
    if len(target_probs) > CACHED_VOCABULARY:
        return _play(*rows, k)
    numbers = tuple(tuple(row.tolist()) for row in rows)
    kind = f"{type(numbers[0][0])}, {target_probs.dtype}, {target_probs.device}"
    return _cached(_Rows(numbers, kind, rows), k)


@dataclass(frozen=True)
class _Rows:
    """Two rows as a cache key: equal if their numbers are."""

    numbers: tuple[tuple[Number, ...], ...]
    kind: str
    rows: tuple[Tensor, Tensor] = field(compare=False)


@lru_cache(maxsize=CACHED_TOURNAMENTS)
def _cached(given: _Rows, k: int) -> Tournament:
    return _play(*given.rows, k)


def _play(target_probs: Float[Tensor, "V"], draft_probs: Float[Tensor, "V"], k: int) -> Tournament:
    # Tokens that are never drafted never play: their places do not matter.
    drafted = torch.where(draft_probs > 0, draft_probs, torch.ones_like(draft_probs))
    order = (target_probs / drafted).argsort()
    target, draft = target_probs[order].tolist(), draft_probs[order].tolist()
    law, rounds = draft, []
    for number in range(k - 1):
        takes, law_after = _challenge(target, draft, law)
        weights = _weigh(target, draft, law, takes, law_after) if number == k - 2 else {}
        rounds.append(Round(takes, weights))
        law = law_after
    places = order.argsort()
    return Tournament(places.tolist(), rounds, target_probs.new_tensor(law)[places])


def _challenge(
    target: list[Number], draft: list[Number], winner: list[Number]
) -> tuple[list[Number], list[Number]]:
    """For a winner of this law: how challengers replace it, and the next winner's law; rows by place."""
    takes: list[Number] = [0] * len(winner)
    law: list[Number] = [0] * len(winner)
    lower, unable = [0, *accumulate(winner)], [*accumulate(draft)]
    declined: Number = 0
    for i in range(len(winner) - 1, -1, -1):
        # The mass it retains as winner, and the mass it can take from lower winners as challenger. Only
        # positive terms are summed: a difference could round a tiny law to 0.
        retained, offered = winner[i] * (unable[i] + declined), draft[i] * lower[i]
        lack = target[i] - retained
        take = 0 if lack <= 0 else 1 if lack >= offered else lack / offered
        takes[i], law[i] = take, retained + offered * take
        declined += draft[i] * (1 - take)
    return takes, law


def _weigh(
    target: list[Number],
    draft: list[Number],
    winner: list[Number],
    takes: list[Number],
    law: list[Number],
) -> dict[tuple[int, int], Number]:
    """The weights of pairs among the `LP_TOKENS` tokens of largest draft mass; updates `law` in place.

    All other comparisons are counted first. Then each pair's mass goes to its two tokens up to what they
    lack of the target, and what neither lacks goes to the token of lower place.
    """
    inside = sorted(nlargest(LP_TOKENS, range(len(draft)), key=draft.__getitem__))
    members = frozenset(inside)
    lower = [0, *accumulate(0 if i in members else r for i, r in enumerate(winner))]
    outside = [
        (0, 0) if i in members else (q, q * (1 - t))
        for i, (q, t) in enumerate(zip(draft, takes, strict=True))
    ]
    unable = [*accumulate(q for q, _ in outside)]
    declined = [*accumulate((q for _, q in reversed(outside)), initial=0)][::-1]
    for i in inside:
        retained = winner[i] * (draft[i] + unable[i] + declined[i])
        law[i] = retained + draft[i] * takes[i] * lower[i]
    pairs = list(combinations(range(len(inside)), 2))
    ends = [(inside[a], inside[b]) for a, b in pairs]
    masses = [winner[i] * draft[j] + winner[j] * draft[i] for i, j in ends]
    flows = largest_flow(masses, pairs, [max(target[i] - law[i], 0) for i in inside])
    weights: dict[tuple[int, int], Number] = {}
    for (i, j), mass, (_, to_high) in zip(ends, masses, flows, strict=True):
        weight = min(max(1 - to_high / mass, 0), 1) if mass > 0 else 1
        weights[i, j] = weight
        law[i] += mass * weight
        law[j] += mass * (1 - weight)
    return weights
