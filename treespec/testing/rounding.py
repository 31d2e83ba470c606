"""How far honest rounding can move the law of a step, and whether a law is further off than that.

What floats may do. u is half of a dtype's epsilon, V the vocabulary, N the nodes of the tree. At a node
every child tried costs a rule at most a draft row without the elder siblings (a sum of V numbers and a
quotient: V roundings), a residual (a difference, a sum and a quotient: V + 1) and a ratio (1): 2 V + 2.
The last draw is normalised once more (V), and the two rows of the node came from a softmax (2 V). All
numbers are positive and a child's rounding enters the law of the node once (what a rejection leaves and
its probability telescope), so that over N nodes, of which N - 1 are children, no law of a next token is
off by more than

    unit = (N (3 V) + (N - 1) (2 V + 2)) u

to first order. That holds *given the tokens before*, however improbable these are: what is below a token
is decided after it, and rounding above changes how often one gets there, not what happens there.

For a single token a relative bound is better: u times its own probability, if that is a sum of products.
Some factors are no products: the probability of a rejection, or of an acceptance, may be computed as 1
minus something, off by about u where it is itself r, that is by u / r of it. For any token s a rule that
keeps the target's law must reject with a probability of at least p(s) - P(s is among the children), since
without s among them the target's p(s) can come from a rejection only; and so again after each rejected
child, P then being that of the children still to come, given those before. Of children that are drawn it
accepts one with about sum_x min(p(x), P(x is among them)). With r the least of both over all nodes and
elder siblings, s the most probable token, no token's probability given those before it is off by more than

    min(1, max(LEAST, SLACK p(x) / r)) unit.

(Rejections shift p(s) itself, but only upwards to first order where s is nearly sure, as in the tables made
for this.) Where r is small nothing is asked beyond the first bound: there float32 honestly loses improbable
tokens. r is a condition on tables, found from the drafted trees; that it suffices is argued here to first
order and measured (`tests/treespec/testing/test_rounding.py`), not proved for every way to write a rule.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["Deviation", "Rounding"]

SLACK = 16
"""For rules that round more often than ours. One that divides a draft row anew before each residual, and
keeps the law, was seen at 2.2 times the bound without it, where a token is nearly sure."""

LEAST = 1e-3
"""The least part of `unit` that the relative bound falls to: the same rule was off by a tenth of it at a
token of probability 1e-10 behind an improbable one. In float64 that is some 1e-17."""


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
        chance: r, the least chance of a rejection or an acceptance at any node; 0 if it is small.
    """

    dtype: torch.dtype
    size: int
    vocab: int
    chance: float

    @property
    def unit(self) -> float:
        """The largest error of the probability of a token given those before it."""
        roundings = self.size * 3 * self.vocab + (self.size - 1) * (2 * self.vocab + 2)
        return roundings * torch.finfo(self.dtype).eps / 2

    def deviation(self, found: Float[Tensor, "..."], right: Float[Tensor, "..."]) -> Deviation:
        """The worst place of the first token whose law is further off than rounding, or else of all.

        Args:
            found: joint law of the tokens, `[V, ..., V]`.
            right: the target's.
        """
        worst = Deviation(0.0, (), 0)
        for place in range(right.ndim):
            share = self._shares(_marginal(found, place), _marginal(right, place))
            largest = float(share.max())
            if not largest <= worst.share:
                index = [int(i) for i in torch.unravel_index(share.argmax(), share.shape)]
                worst = Deviation(largest, tuple(index[:-1]), index[-1])
            if not worst.share <= 1:
                break
        return worst

    def _shares(self, found: Tensor, right: Tensor) -> Tensor:
        """Error of each token's probability given the tokens before it, by its bound."""
        met = (found.sum(-1, keepdim=True) > 0) & (right.sum(-1, keepdim=True) > 0)
        was, should = (
            torch.where(met, law / law.sum(-1, keepdim=True), 0) for law in (found, right)
        )
        allowed = torch.ones_like(should)
        if self.chance > 0:
            allowed = (SLACK * should / self.chance).clamp(LEAST, 1)
        allowed = torch.where(should > 0, self.unit * allowed, 0)
        error = (was - should).abs()
        return torch.where(error > 0, error / allowed, 0)


def _marginal(law: Tensor, place: int) -> Tensor:
    """The joint law of the first place + 1 tokens."""
    return law.flatten(place + 1).sum(-1) if place + 1 < law.ndim else law
