"""From the logits of a level to its children: operation by operation, or by one call of a kernel.

Of rows of 4,096 tokens each operation takes less time than the Python that asks for it, and a level that
draws takes ten of them and more. Where a model's passes are compiled, its kernels are there, and one of
them makes probabilities of a level's logits and draws from them. It takes the same uniforms; its
probabilities differ by rounding, and so can a token whose uniform lies at an edge between two.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.children import LEAST_TOKENS_FOR_TOPK, require_children
from treespec.coins import TorchCoins
from treespec.distributions import Sampling, require_finite
from treespec.draft.levels import Head, Level, Levels
from treespec.kernels.drawn_children import best_children, drawn_children
from treespec.protocols import Coins
from treespec.tree import Law

__all__ = ["KernelHead", "TensorHead", "head_of"]

BY_KERNEL = frozenset({Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC})
"""Laws whose children a kernel finds; of deterministic ones it finds those that are alone."""


def head_of(model: Any, levels: Levels, law: Law, sampling: Sampling, coins: Coins) -> Head:
    """What makes children of the logits of one tree.

    Args:
        model: that drafts. It says by `draws_by_kernel` that its logits are such as the kernel knows.
        levels: of the tree.
        law: how children are chosen.
        sampling: what makes distributions of logits. The kernel draws at temperatures alone.
        coins: for the laws that draw. Uniforms are taken as a growth of the same shape would take them.
    """
    known = law in BY_KERNEL and getattr(model, "draws_by_kernel", False)
    ours = type(coins) is TorchCoins and type(sampling) is Sampling  # others may do otherwise
    if known and ours and (law is Law.DETERMINISTIC or _is_a_temperature(sampling)):
        return KernelHead(levels, law, sampling.temperature, coins)
    return TensorHead(law, sampling, coins)


def _is_a_temperature(sampling: Sampling) -> bool:
    """Whether rows are a softmax at a temperature, and nothing else."""
    truncations = (sampling.top_k, sampling.top_p, sampling.min_p)
    return not sampling.greedy and truncations == (None, None, None)


class TensorHead:
    """Operation by operation, on any device.

    Args:
        law: how children are chosen.
        sampling: what makes distributions of logits.
        coins: for the laws that draw.
    """

    def __init__(self, law: Law, sampling: Sampling, coins: Coins) -> None:
        self.law, self._sampling = law, sampling
        # Only rows that `Sampling` makes of finite logits need no look, and that is seen by the extremes.
        self._unseen = type(coins) is TorchCoins and type(sampling) is Sampling
        unseen = isinstance(coins, TorchCoins) and self._unseen
        self._draw = coins.draw_unseen if unseen else coins.draw_many
        self._probs: list[Tensor] = []
        self._extremes: list[Tensor] = []

    def children(self, level: Level, logits: Float[Tensor, "T V"]) -> Int[Tensor, " C"]:
        """The tokens of all children of a level, in node order.

        Raises:
            NonFiniteLogits: if logits are not finite, and coins or sampling are of another kind.
        """
        if not self._unseen:
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
    """A level by one call (`treespec.kernels.drawn_children`), on the CPU.

    Args:
        levels: of the tree.
        law: one of `BY_KERNEL`.
        temperature: above 0, for children that are drawn.
        coins: their uniforms.
    """

    def __init__(self, levels: Levels, law: Law, temperature: float, coins: TorchCoins) -> None:
        self.law, self._temperature, self._coins = law, temperature, coins
        self._rows = sum(len(level.nodes) for level in levels.levels)
        self._done = self._level = 0
        self._extremes = torch.empty(len(levels.levels), 2, dtype=torch.float32, device="cpu")
        self._probs: Tensor | None = None

    def children(self, level: Level, logits: Float[Tensor, "T V"]) -> Int[Tensor, " C"]:
        """The tokens of all children of a level, in node order.

        Raises:
            InvalidTree: if the law cannot give a node so many children.
        """
        extremes, width = self._extremes[self._level], logits.shape[1]
        self._level += 1
        if self.law is Law.DETERMINISTIC:
            best = best_children(logits, extremes)
            return (
                best if level.most == 1 and width >= LEAST_TOKENS_FOR_TOPK else level.best(logits)
            )
        require_children(level.most, width, self.law)
        if self._probs is None:
            self._probs = torch.empty(self._rows, width, dtype=torch.float32, device="cpu")
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
