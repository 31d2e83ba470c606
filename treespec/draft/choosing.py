"""From the logits of a level to its children: by torch operations, or by a single kernel call.

On rows of 4,096 tokens each torch operation takes less time than the Python call around it, and a level
that draws needs ten or more. If a model's passes are compiled, one of its kernels turns the logits of a
level into probabilities and draws from them. It uses the same uniforms; its probabilities differ by
rounding, so a token may differ if its uniform lies at the boundary between two tokens.
"""

import sys
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.draft.levels import Head, Level, Levels
from treespec.kernels.drawn_children import best_children, drawn_children
from treespec.protocols import Coins
from treespec.sampling.children import LEAST_TOKENS_FOR_TOPK, require_children
from treespec.sampling.coins import GivenUniforms, TorchCoins
from treespec.sampling.distributions import Sampling, require_finite
from treespec.tree import Law

BY_KERNEL = frozenset({Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC})
"""Laws whose children a kernel can find; for DETERMINISTIC, only the best token of each row."""


def head_of(model: Any, levels: Levels, law: Law, sampling: Sampling, coins: Coins) -> Head:
    """The head that turns the logits of one tree into children.

    `model`: the draft model. Its attribute `draws_by_kernel` states that the kernel can read its logits.
    `sampling`: turns logits into distributions. The kernel handles a temperature without truncations.
    `coins`: for the laws that draw. Uniforms are taken in the same order as by a growth of this shape.
    """
    by_kernel = law in BY_KERNEL and getattr(model, "draws_by_kernel", False)
    ours = (
        type(coins) is TorchCoins and type(sampling) is Sampling
    )  # subclasses may behave differently
    if by_kernel and ours and (law is Law.DETERMINISTIC or _is_temperature_only(sampling)):
        return KernelHead(levels, law, sampling.temperature, coins)
    return TensorHead(law, sampling, coins)


def _is_temperature_only(sampling: Sampling) -> bool:
    """Whether rows are a softmax at a temperature above 0, without truncations."""
    return not sampling.greedy and not sampling.truncates(sys.maxsize)


class TensorHead:
    """Chooses the children of a level by torch operations, on any device."""

    def __init__(self, law: Law, sampling: Sampling, coins: Coins | GivenUniforms) -> None:
        self.law, self._sampling = law, sampling
        # Rows that `Sampling` itself makes of finite logits need no check; the extremes of all logits,
        # read at the end, show whether they were finite.
        ours = type(coins) in (TorchCoins, GivenUniforms)  # subclasses may behave differently
        self._unchecked = ours and type(sampling) is Sampling
        see_rows = isinstance(coins, TorchCoins) and not self._unchecked
        if isinstance(coins, TorchCoins | GivenUniforms) and not see_rows:
            self._draw = coins.draw_unseen
        else:
            self._draw = coins.draw_many
        self._probs: list[Tensor] = []
        self._extremes: list[Tensor] = []

    def children(self, level: Level, logits: Float[Tensor, "T V"]) -> Int[Tensor, " C"]:
        """The tokens of all children of a level, in node order."""
        if not self._unchecked:
            require_finite(logits, "draft", level.nodes)
        self._extremes += logits.aminmax()
        if self.law is Law.DETERMINISTIC:
            return level.best(logits)
        self._probs.append(self._sampling(logits))
        return level.drawn(self._probs[-1], self.law, self._draw)

    def probs(self) -> Float[Tensor, "M V"] | None:
        """The rows of all levels; None if children were not drawn."""
        return torch.cat(self._probs) if self._probs else None

    def extremes(self) -> Float[Tensor, " E"]:
        """The least and the greatest logit of each level."""
        return torch.stack(self._extremes)


class KernelHead:
    """Chooses the children of a level by one call of `treespec.kernels.drawn_children`, on the CPU."""

    def __init__(self, levels: Levels, law: Law, temperature: float, coins: TorchCoins) -> None:
        self.law, self._temperature, self._coins = law, temperature, coins
        self._rows = sum(len(level.nodes) for level in levels.levels)
        self._done = self._level = 0
        self._extremes = torch.empty(len(levels.levels), 2, dtype=torch.float32, device="cpu")
        self._probs: Tensor | None = None

    def children(self, level: Level, logits: Float[Tensor, "T V"]) -> Int[Tensor, " C"]:
        """The tokens of all children of a level, in node order."""
        extremes, vocabulary = self._extremes[self._level], logits.shape[1]
        self._level += 1
        if self.law is Law.DETERMINISTIC:
            best = best_children(logits, extremes)
            one_each = level.most == 1 and vocabulary >= LEAST_TOKENS_FOR_TOPK
            return best if one_each else level.best(logits)
        require_children(level.most, vocabulary, self.law)
        if self._probs is None:
            self._probs = torch.empty(self._rows, vocabulary, dtype=torch.float32, device="cpu")
        begin, self._done = self._done, self._done + len(level.nodes)
        return drawn_children(
            logits, level.plan, self._coins.uniforms(level.size), self._temperature,
            self.law is Law.WITHOUT_REPLACEMENT, self._probs[begin : self._done], extremes,
        )  # fmt: skip

    def probs(self) -> Float[Tensor, "M V"] | None:
        """The rows of all levels; None if children were not drawn."""
        return self._probs

    def extremes(self) -> Float[Tensor, " E"]:
        """The least and the greatest logit of each level."""
        return self._extremes.flatten()
