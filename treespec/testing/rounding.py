"""How far rounding alone can move the law of a step, and whether a law deviates by more than that.

Notation: u is half of a dtype's epsilon; gamma(n) = n u / (1 - n u) bounds the relative error of n
successive roundings (Higham, Accuracy and Stability of Numerical Algorithms, Lemma 3.1). A sum of V
positive numbers counts as V - 1 roundings. V is the vocabulary size, N the number of nodes of the tree. The
given rows are exact; coins weigh their branches in float64.

**Roundings.** At a node, the rows of target and draft come from a softmax (2 V: they do not sum to 1
exactly), and the last draw is normalised (V). For every child that it tries, a rule needs at most the
draft's row without the elder siblings (a sum and a quotient: V), a residual (a difference, a sum and a
quotient: V + 1) and a ratio (1). In addition, an implementation may make `PASSES` further passes over the
rows at every node and for every child, where a pass is a sum and two operations on each entry (V + 1): for
example to normalise both rows again, or to multiply by a reciprocal. So

    n = N (3 V + E) + (N - 1) (2 V + 2 + E),   E = PASSES (V + 1) more roundings of each entry.

**Any token.** A difference of two entries is as accurate as the entries: its error is relative to them, not
to the difference. Summed over a row, the error is gamma(n) of the row's mass. A rejection of probability
rho, computed as 1 minus a sum of mass at most 1, is off by gamma(n) and not by gamma(n) rho. A residual and
the probability of its rejection telescope, so the errors of children add up, and no probability of a token
*given the tokens before it* is off by more than

    unit = gamma(n),

however improbable those tokens are: everything below a token is decided after it, and rounding above it
changes how often the token is reached, not what happens after it.

**The first token, from the observed coins.** `unit` says nothing about a token that is less probable than
`unit` itself. Products and quotients are off by gamma(n) of themselves. The entries of a residual are off
by gamma(n) of the target's entries that they come from, so token y by gamma(n) p(y) in total. Further
errors come from chances that are computed as 1 minus something, and from division by the mass S of a
residual, which is the probability of the rejection before it. S is off by gamma(n) of the row's mass, hence
by gamma(n) / S of itself, and so is everything that follows: y by gamma(n) l(y), where l is the law of what
follows. S l(y) is a part of p(y), so l(y) <= p(y) / S. The same holds for an acceptance that is 1 minus a
probability near 1. With r the least such chance that the rule was observed to meet,

    error of y  <=  gamma(n) min(1, p(y) / r).

r is the minimum of two kinds of chances. First, over all coins up to the first draw, the chances of heads
and of tails, given the sides of the earlier coins and the tokens of as many nodes (a rule that tries its
children in turn knows exactly these), averaged over the rest of the drafted tree. Second, the chance that
all coins up to this one show tails, over all trees (for rules that take one residual after the last child).
If everything is rejected or accepted up to rounding, r is of the size of rounding, and only the first bound
applies: float32 then legitimately loses improbable tokens. That r suffices is argued here to first order,
for the known ways to write a rule, and measured for the rules of this package and for others
(`tests/treespec/testing/test_rounding.py`).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.testing.enumerating_coins import Choice, Weight

PASSES = 2
"""Passes over its rows that a rule may make at a node, and for a child, beyond the necessary ones."""


_State = tuple[tuple[int, ...], tuple[bool, ...]]
"""The tokens of the first nodes, and the sides of as many coins."""


@dataclass(frozen=True)
class Deviation:
    """The place where a law deviates most, relative to the rounding bound.

    Args:
        share: the error as a share of its bound; above 1, rounding cannot explain it. Infinite for a token
            to which the target gives probability 0.
        prefix: the tokens before.
        token: the token.
    """

    share: float
    prefix: tuple[int, ...]
    token: int


@dataclass(frozen=True)
class Rounding:
    """Bounds on the effect of rounding on the law of a step.

    Args:
        dtype: dtype of the rows.
        size: number of nodes of the largest tree.
        vocab: V.
        passes: further passes that the rule may make over its rows; see `PASSES`.
    """

    dtype: torch.dtype
    size: int
    vocab: int
    passes: int = PASSES

    @property
    def roundings(self) -> int:
        """n: the roundings that can add up in the probability of a token given the tokens before it."""
        extra = self.passes * (self.vocab + 1)
        at_nodes = self.size * (3 * self.vocab + extra)
        return at_nodes + (self.size - 1) * (2 * self.vocab + 2 + extra)

    @property
    def unit(self) -> float:
        """gamma(n), the largest error of the probability of a token given the tokens before it."""
        n_times_u = self.roundings * torch.finfo(self.dtype).eps / 2
        return n_times_u / (1 - n_times_u)

    def deviation(
        self,
        emitted: Float[Tensor, "..."],
        right: Float[Tensor, "..."],
        chance: float = 0.0,
    ) -> Deviation:
        """The largest deviation of the first token whose law breaks its bound; else of all tokens.

        `emitted`: joint law of the tokens, `[V, ..., V]`. `chance`: r, from `Chances`; at 0, only `unit`
        bounds the first token too.
        """
        worst = Deviation(0.0, (), 0)
        for place in range(right.ndim):
            least_chance = 0.0 if place else chance
            share = self._shares(_marginal(emitted, place), _marginal(right, place), least_chance)
            largest = float(share.max())
            if not largest <= worst.share:
                index = [int(i) for i in torch.unravel_index(share.argmax(), share.shape)]
                worst = Deviation(largest, tuple(index[:-1]), index[-1])
            if not worst.share <= 1:
                break
        return worst

    def _shares(self, emitted: Tensor, right: Tensor, chance: float) -> Tensor:
        """Error of each token's probability given the tokens before it, as a share of its bound."""
        reached = (emitted.sum(-1, keepdim=True) > 0) & (right.sum(-1, keepdim=True) > 0)
        actual, correct = (
            torch.where(reached, law / law.sum(-1, keepdim=True), 0) for law in (emitted, right)
        )
        factor = (correct / chance).clamp_max(1) if chance > 0 else torch.ones_like(correct)
        bound = torch.where(correct > 0, self.unit * factor, 0)
        error = (actual - correct).abs()
        return torch.where(error > 0, error / bound, 0)


class Chances:
    """The least chance of heads or tails at the coins of a rule: r, accumulated walk by walk."""

    def __init__(self) -> None:
        self._met: dict[_State, _Sides] = defaultdict(_Sides)
        self._rejected: dict[int, float] = defaultdict(float)

    def add(self, weight: Weight, tokens: Sequence[int], choices: Iterable[Choice]) -> None:
        """Count a walk.

        `tokens`: tokens of its tree, without the root. `choices`: choices of the rule, in order.
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
        rarer_sides = (min(met.heads, met.all - met.heads) / met.all for met in self._met.values())
        return max(min([1.0, *rarer_sides, *self._rejected.values()]), 0.0)


@dataclass
class _Sides:
    """Probability that a coin is met, and that it shows heads."""

    all: float = 0.0
    heads: float = 0.0


def _marginal(law: Tensor, place: int) -> Tensor:
    """The joint law of the first place + 1 tokens."""
    return law.flatten(place + 1).sum(-1) if place + 1 < law.ndim else law
