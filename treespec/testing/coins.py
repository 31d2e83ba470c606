"""Coins that land on every side: exact enumeration of a random procedure's own code."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.coins import require_distinct, top_k
from treespec.distributions import without
from treespec.tree import Law

__all__ = ["EnumeratingCoins", "outcomes"]

T = TypeVar("T")


class EnumeratingCoins:
    """Coins for one walk through a procedure: they follow a script, then take every first branch.

    `outcomes` runs a procedure again and again, with the script that leads to the next unseen branch.
    Sides of probability 0 do not exist.

    Args:
        script: the side to take at each choice, as an index among the sides that exist.

    Attributes:
        weight: exact probability of the walk so far.
        trail: for each choice made, the side taken and the number of sides.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = script
        self.weight = 1.0
        self.trail: list[tuple[int, int]] = []

    def _choose(self, weights: Sequence[float]) -> int:
        sides = [side for side, weight in enumerate(weights) if weight > 0]
        at = len(self.trail)
        taken = self._script[at] if at < len(self._script) else 0
        self.trail.append((taken, len(sides)))
        self.weight *= weights[sides[taken]] / sum(weights)
        return sides[taken]

    def accept(self, probability: float | Float[Tensor, ""]) -> bool:
        """True on one branch, False on the other."""
        heads = float(probability)
        heads = 0.0 if heads != heads else min(max(heads, 0.0), 1.0)
        return self._choose([heads, 1 - heads]) == 0

    def draw(self, probabilities: Float[Tensor, "V"]) -> int:
        """Each token of positive probability on its own branch."""
        return self._choose(probabilities.tolist())

    def draw_many(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """Each possible tuple of children on its own branch."""
        if law is Law.DETERMINISTIC:
            return top_k(probabilities, k)
        if law is Law.WITHOUT_REPLACEMENT:
            require_distinct(k, probabilities.shape[-1])
        drawn = []
        for row in probabilities:
            children: list[int] = []
            for _ in range(k):
                distinct = law is Law.WITHOUT_REPLACEMENT and children
                left = without(row, torch.tensor(children)) if distinct else row
                children.append(self.draw(left))
            drawn.append(children)
        return torch.tensor(drawn)


def outcomes(play: Callable[[EnumeratingCoins], T]) -> Iterator[tuple[float, T]]:
    """Every outcome of a procedure with the exact probability of its branch.

    Args:
        play: the procedure; it must depend on nothing but the coins.

    Yields:
        Weight and result of each branch; the weights sum to 1. Results may repeat.

    Example:
        >>> for weight, heads in outcomes(lambda coins: coins.accept(0.5) + coins.accept(0.25)):
        ...     print(weight, heads)
        0.125 2
        0.375 1
        0.125 1
        0.375 0
    """
    script: list[int] | None = []
    while script is not None:
        coins = EnumeratingCoins(script)
        result = play(coins)
        yield coins.weight, result
        script = _next_script(coins.trail)


def _next_script(trail: list[tuple[int, int]]) -> list[int] | None:
    """The walk that differs in the last choice that has an unseen side."""
    while trail and trail[-1][0] + 1 == trail[-1][1]:
        trail.pop()
    if not trail:
        return None
    return [taken for taken, _ in trail[:-1]] + [trail[-1][0] + 1]
