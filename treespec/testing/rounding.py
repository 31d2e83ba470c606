"""How far honest rounding can move the law of a step, and whether a law is further off than that.

Notation: u is half of a dtype's epsilon, gamma(n) = n u / (1 - n u) bounds the relative error of n
roundings in a row (Higham, Accuracy and Stability of Numerical Algorithms, Lemma 3.1), a sum of V positive
numbers being V - 1 of them. V is the vocabulary, N the nodes of the tree. The rows as given are exact;
coins weigh their branches in float64.

**Roundings.** At a node the rows of target and draft came from a softmax (2 V: they do not sum to 1
exactly) and the last draw is normalised (V). Every child tried costs a rule at most the draft's row without
the elder siblings (a sum and a quotient: V), a residual (a difference, a sum and a quotient: V + 1) and a
ratio (1). Besides, an implementation may go over the rows `PASSES` times more at every node and for
every child, a pass being a sum and two operations on each entry (V + 1): to normalise both rows again,
say, or to multiply by a reciprocal. So

    n = N (3 V + E) + (N - 1) (2 V + 2 + E),   E = PASSES (V + 1) more roundings of each entry.

**Any token.** A difference of two entries is as exact as these are: its error is relative to the entries,
not to what is left of them. Summed over a row it is gamma(n) of the row's mass, and a rejection of
probability rho, computed as 1 minus a sum of mass at most 1, is off by gamma(n) and not by gamma(n) rho.
What a rejection leaves and its probability telescope, so that errors of children add up, and no probability
of a token *given the tokens before it* is off by more than

    unit = gamma(n),

however improbable these tokens are: what is below a token is decided after it, and rounding above changes
how often one gets there, not what happens there.

**The first token, by what the coins were seen to do.** `unit` says nothing of a token less probable than
that. Products and quotients are off by gamma(n) of themselves, and so are the entries of a residual, of
the target's entries that they are left of: token y by gamma(n) p(y) in all. What is more comes from
chances that are computed as 1 minus something, and from what is divided by the mass S of a residual, the
probability of the rejection before it. S is off by gamma(n) of the row's mass and so by gamma(n) / S of
itself, and with it all that follows: y by gamma(n) l(y), where l is the law of what follows. S l(y) is a
part of p(y), so that l(y) <= p(y) / S. The same holds of an acceptance that is 1 minus a probability near
1. With r the least such chance that the rule has been seen to meet,

    error of y  <=  gamma(n) min(1, p(y) / r).

r is the least, over the coins up to the first draw, of the chances of heads and of tails given the sides of
the coins before and the tokens of as many nodes (a rule that tries its children in turn knows just these),
averaged over what else was drafted; and of the chance that all coins up to this one show tails, over all
trees (for rules that take one residual after the last child). Where all is rejected or accepted but for
rounding, r is of the size of rounding, and no more than the first bound is asked: there float32 honestly
loses improbable tokens. That r suffices is argued here to first order, for the ways to write a rule that
are known, and measured for the rules of this package and for others
(`tests/treespec/testing/test_rounding.py`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.testing.coins import Choice, Weight

__all__ = ["PASSES", "Chances", "Deviation", "Rounding"]

PASSES = 2
"""How often a rule may go over its rows at a node, and for a child, beyond the least it has to."""


_State = tuple[tuple[int, ...], tuple[bool, ...]]
"""Tokens of the first nodes, and the sides of as many coins."""


@dataclass(frozen=True)
class Deviation:
    """Where a law is most off, compared with what rounding can do.

    Args:
        share: the error there as a share of its bound; more than 1 is no rounding. Infinite for a token
            that the target never gives.
        prefix: the tokens before.
        token: the token.
    """

    share: float
    prefix: tuple[int, ...]
    token: int


@dataclass(frozen=True)
class Rounding:
    """What rounding can do to the law of a step.

    Args:
        dtype: of the rows.
        size: nodes of the largest tree.
        vocab: V.
        passes: that the rule may make over its rows beyond the least; see `PASSES`.
    """

    dtype: torch.dtype
    size: int
    vocab: int
    passes: int = PASSES

    @property
    def roundings(self) -> int:
        """n: how many can add up in a probability of a token given those before it."""
        extra = self.passes * (self.vocab + 1)
        at_nodes = self.size * (3 * self.vocab + extra)
        return at_nodes + (self.size - 1) * (2 * self.vocab + 2 + extra)

    @property
    def unit(self) -> float:
        """gamma(n), the largest error of the probability of a token given those before it."""
        whole = self.roundings * torch.finfo(self.dtype).eps / 2
        return whole / (1 - whole)

    def deviation(
        self,
        emitted: Float[Tensor, "..."],
        right: Float[Tensor, "..."],
        chance: float = 0.0,
    ) -> Deviation:
        """The worst place of the first token whose law is further off than rounding, or else of all.

        Args:
            emitted: joint law of the tokens, `[V, ..., V]`.
            right: the target's.
            chance: r, from `Chances`; at 0 `unit` is all that is asked of the first token too.
        """
        worst = Deviation(0.0, (), 0)
        for place in range(right.ndim):
            least = 0.0 if place else chance
            share = self._shares(_marginal(emitted, place), _marginal(right, place), least)
            largest = float(share.max())
            if not largest <= worst.share:
                index = [int(i) for i in torch.unravel_index(share.argmax(), share.shape)]
                worst = Deviation(largest, tuple(index[:-1]), index[-1])
            if not worst.share <= 1:
                break
        return worst

    def _shares(self, emitted: Tensor, right: Tensor, chance: float) -> Tensor:
        """Error of each token's probability given the tokens before it, by its bound."""
        met = (emitted.sum(-1, keepdim=True) > 0) & (right.sum(-1, keepdim=True) > 0)
        was, should = (
            torch.where(met, law / law.sum(-1, keepdim=True), 0) for law in (emitted, right)
        )
        parts = (should / chance).clamp_max(1) if chance > 0 else torch.ones_like(should)
        allowed = torch.where(should > 0, self.unit * parts, 0)
        error = (was - should).abs()
        return torch.where(error > 0, error / allowed, 0)


class Chances:
    """The least chance of heads or tails at the coins of a rule: r, gathered walk by walk."""

    def __init__(self) -> None:
        self._met: dict[_State, _Sides] = defaultdict(_Sides)
        self._rejected: dict[int, float] = defaultdict(float)

    def add(self, weight: Weight, tokens: Sequence[int], choices: Iterable[Choice]) -> None:
        """Count a walk.

        Args:
            weight: its probability, that of its tree included.
            tokens: of the nodes of its tree but the root.
            choices: what the rule asked, in order.
        """
        sides: tuple[bool, ...] = ()
        for choice in takewhile(lambda choice: choice.coin, choices):
            met = self._met[tuple(tokens[: len(sides)]), sides]
            met.all += float(weight)
            met.heads += float(weight) if choice.heads else 0.0
            sides = (*sides, choice.heads)
            if not any(sides):
                self._rejected[len(sides)] += float(weight)

    @property
    def least(self) -> float:
        """r; 1 for a rule without coins."""
        each = (min(met.heads, met.all - met.heads) / met.all for met in self._met.values())
        return max(min([1.0, *each, *self._rejected.values()]), 0.0)


@dataclass
class _Sides:
    """How often a coin was met, and showed heads."""

    all: float = 0.0
    heads: float = 0.0


def _marginal(law: Tensor, place: int) -> Tensor:
    """The joint law of the first place + 1 tokens."""
    return law.flatten(place + 1).sum(-1) if place + 1 < law.ndim else law
