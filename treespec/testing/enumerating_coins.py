"""Coins that take every side: exact enumeration of a random procedure by running its own code."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.errors import NotADistribution, TreespecError
from treespec.sampling.children import chosen_children, next_child, require_children
from treespec.tree import Law

T = TypeVar("T")

Weight = int | float | Fraction
"""A probability: a float, or exact."""

WEIGHT_TOLERANCE = 1e-6
"""Allowed difference between the weights of one choice in two walks; a device may sum in any order."""


@dataclass(frozen=True)
class Choice:
    """One request to the coins.

    Args:
        coin: whether a coin was tossed (`accept`) rather than a token drawn.
        heads: the side of the coin; False for a draw.
    """

    coin: bool
    heads: bool


class EnumeratingCoins:
    """Coins for one walk through a procedure: they follow a script, then always take the first side.

    `outcomes` runs a procedure repeatedly, each time with the script that leads to the next unseen branch.
    Sides of probability 0 are left out. Over exact tensors (`Rationals`) all weights are fractions.

    Args:
        script: the side to take at each choice, as an index among the sides of positive probability.
        tokens: if given, only these tokens have a side of their own in `draw`. All others share one side,
            on which the most probable of them is drawn. This remains exact, for a vocabulary of any size,
            if the procedure uses a drawn token only to test whether it is one of these.
        before: weights of the scripted choices in an earlier walk; they must be the same in this walk.

    Attributes:
        weight: exact probability of the walk so far.
        trail: for each choice made, the side taken and the number of sides.
        met: for each choice made, the weights of its sides.
        choices: for each choice made, the kind of request and the side taken.
    """

    def __init__(
        self,
        script: Sequence[int] = (),
        tokens: Collection[int] | None = None,
        before: Sequence[Sequence[Weight]] = (),
    ) -> None:
        self._script, self._before = script, before
        self._tokens = None if tokens is None else sorted(tokens)
        self.weight: Weight = 1
        self.trail: list[tuple[int, int]] = []
        self.met: list[Sequence[Weight]] = []
        self.choices: list[Choice] = []
        self._forks: set[str] = set()

    def _choose(self, weights: Sequence[Weight]) -> int:
        sides = [side for side, weight in enumerate(weights) if weight > 0]
        if not sides or any(weight != weight for weight in weights):
            raise NotADistribution(
                f"a draw from weights without positive mass, or with NaN: {weights}"
            )
        step = len(self.trail)
        if step < len(self._before) and not _same(weights, self._before[step]):
            raise _not_a_function(
                f"choice {step} had the weights {list(self._before[step])} in one call and {list(weights)} "
                "in another"
            )
        self.met.append(weights)
        taken = self._script[step] if step < len(self._script) else 0
        self.trail.append((taken, len(sides)))
        if len(sides) > 1:
            self.weight *= weights[sides[taken]] / sum(weights)
        return sides[taken]

    def fork(self, name: str) -> "EnumeratingCoins":
        """These coins: every choice has branches of its own, so all streams are independent.

        Raises:
            TreespecError: if the name was used before: real coins would give the same numbers again.
        """
        if name in self._forks:
            raise TreespecError(
                f"coins are forked twice under the name {name!r}, which gives the same numbers: draws "
                "that must be independent are equal; name a fork by its position in the text"
            )
        self._forks.add(name)
        return self

    def accept(self, probability: Weight | Float[Tensor, ""]) -> bool:
        """True on one branch, False on the other."""
        heads = probability.item() if isinstance(probability, Tensor) else probability
        heads = 0 if heads != heads else min(max(heads, 0), 1)
        accepted = self._choose([heads, 1 - heads]) == 0
        self.choices.append(Choice(coin=True, heads=accepted))
        return accepted

    def draw(self, probabilities: Float[Tensor, "V"]) -> int:
        """Each token of positive probability on its own branch, unless `tokens` was given."""
        self.choices.append(Choice(coin=False, heads=False))
        if self._tokens is None:
            return self._choose(probabilities.tolist())
        rest = probabilities.clone()
        rest[self._tokens] = 0
        side = self._choose([*probabilities[self._tokens].tolist(), rest.sum().item()])
        return self._tokens[side] if side < len(self._tokens) else int(rest.argmax())

    def draw_many(
        self, probabilities: Float[Tensor, "R V"], k: int, law: Law
    ) -> Int[Tensor, "R k"]:
        """Each possible tuple of children on its own branch."""
        law = Law.of(law)
        require_children(k, probabilities.shape[-1], law)
        rows = []
        for row in probabilities[:, None]:
            children = chosen_children(row, k, law)
            while children.shape[1] < k:
                token = self.draw(next_child(row, children, law)[0])
                children = torch.cat([children, torch.tensor([[token]])], dim=1)
            rows.append(children)
        return torch.cat(rows)


def outcomes(
    play: Callable[[EnumeratingCoins], T],
    tokens: Collection[int] | None = None,
    after: Sequence[int] = (),
) -> Iterator[tuple[Weight, T]]:
    """Every outcome of a procedure with the exact probability of its branch.

    Args:
        play: the procedure; it must depend on nothing but the coins.
        tokens: see `EnumeratingCoins`.
        after: sides of the first choices; only branches that begin with these are enumerated.

    Yields:
        Weight and result of each branch. The weights sum to 1, or to the probability of the choices in
        `after`. Results may repeat.

    Raises:
        TreespecError: if a walk that follows a script meets other choices than the walk before it.

    Example:
        >>> for weight, heads in outcomes(lambda coins: coins.accept(0.5) + coins.accept(0.25)):
        ...     print(weight, heads)
        0.125 2
        0.375 1
        0.125 1
        0.375 0
    """
    script: list[int] | None = list(after)
    before: Sequence[Sequence[Weight]] = ()
    while script is not None:
        coins = EnumeratingCoins(script, tokens, before)
        result = play(coins)
        if len(coins.trail) < len(script):
            raise _not_a_function(
                f"it made {len(script)} choices in one call and {len(coins.trail)} in another"
            )
        yield coins.weight, result
        script = _next_script(coins.trail, len(after))
        before = coins.met[: len(script or ())]


def _next_script(trail: list[tuple[int, int]], settled: int) -> list[int] | None:
    """The script that advances the last choice with an unseen side, after the first `settled` choices."""
    while len(trail) > settled and trail[-1][0] + 1 == trail[-1][1]:
        trail.pop()
    if len(trail) <= settled:
        return None
    return [taken for taken, _ in trail[:-1]] + [trail[-1][0] + 1]


def _same(left: Sequence[Weight], right: Sequence[Weight]) -> bool:
    return left == right or (
        len(left) == len(right)
        and all(abs(a - b) <= WEIGHT_TOLERANCE for a, b in zip(left, right, strict=True))
    )


def _not_a_function(what: str) -> TreespecError:
    return TreespecError(
        "not a function of the tree, the rows and the coins: after the same sides of the same coins, "
        f"{what}. Take all randomness from the coins, and keep no state between calls"
    )
