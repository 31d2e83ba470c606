"""What `notebooks/search.ipynb` draws: frontiers, cost curves, and the map of where trees beat chains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from treespec.search import LatencyModel, optimal_frontier

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

__all__ = ["TREE_GAIN", "AdvantageMap", "advantage_map", "draw_map", "draw_times", "falling_rates"]

TREE_GAIN = 1.01
"""Trees that are less than a hundredth faster than the best chain count as no better."""

LEVELS = 24
"""Edges of the deepest tree on the map."""


@dataclass(frozen=True, eq=False)
class AdvantageMap:
    """The best tree beside the best chain, over acceptance and draft cost.

    Args:
        alphas: acceptance rates of the first child, `[A]`.
        draft_costs: a draft level / a plain target pass, `[C]`.
        verify_cost: what each further node adds to the target's pass, in plain passes.
        tree: speed-up of the best tree over plain decoding, `[C, A]`; chains count as trees.
        chain: speed-up of the best chain, `[C, A]`; below 1 where plain decoding is faster.
        size: nodes of the best tree, `[C, A]`.
    """

    alphas: Float[np.ndarray, "A"]
    draft_costs: Float[np.ndarray, "C"]
    verify_cost: float
    tree: Float[np.ndarray, "C A"]
    chain: Float[np.ndarray, "C A"]
    size: Float[np.ndarray, "C A"]

    @property
    def gain(self) -> Float[np.ndarray, "C A"]:
        """Speed of the best tree over that of the best chain, or of plain decoding if that is faster."""
        return np.maximum(self.tree, 1) / np.maximum(self.chain, 1)


def falling_rates(alpha: float, ranks: int = 8, share: float = 0.3) -> Float[np.ndarray, "ranks"]:
    """Rates of a draft: the first child's is `alpha`, each further one's a share of what is left.

    Args:
        alpha: rate of the first child.
        ranks: children.
        share: of what its elder siblings leave, for each further child.

    Example:
        >>> falling_rates(0.6, 3, share=0.5).round(3).tolist()
        [0.6, 0.2, 0.1]
    """
    left = (1 - alpha) * (1 - share) ** np.arange(ranks - 1)
    return np.concatenate([[alpha], share * left])


def advantage_map(
    alphas: Sequence[float],
    draft_costs: Sequence[float],
    verify_cost: float,
    *,
    size: int = 64,
    ranks: int = 8,
    share: float = 0.3,
) -> AdvantageMap:
    """The fastest tree and chain when a step of N nodes and d levels takes 1 + verify_cost (N - 1) + c d.

    By `optimal_frontier`: of every size and depth the tree with most expected tokens.

    Args:
        alphas: rates of the first child.
        draft_costs: c, of a level, whatever its width.
        verify_cost: of each node beyond the first; in units of a plain pass, like c.
        size: largest tree, the root included.
        ranks: children of a node.
        share: see `falling_rates`.
    """
    tree, chain, sizes = (np.zeros((len(draft_costs), len(alphas))) for _ in range(3))
    for column, alpha in enumerate(alphas):
        rates = falling_rates(alpha, ranks, share)
        values = optimal_frontier(rates, size, depth=min(LEVELS, size - 1)).values
        depths, nodes = np.indices(values.shape)
        lengths = np.arange(min(LEVELS, size - 1) + 1)
        kept = np.cumsum(alpha**lengths)
        for row, cost in enumerate(draft_costs):
            speed = values / (1 + verify_cost * (nodes - 1) + cost * depths)
            best = np.unravel_index(int(np.argmax(speed)), speed.shape)
            tree[row, column], sizes[row, column] = speed[best], nodes[best]
            chain[row, column] = (kept / (1 + (verify_cost + cost) * lengths))[1:].max()
    return AdvantageMap(np.array(alphas), np.array(draft_costs), verify_cost, tree, chain, sizes)


def draw_map(axes: "Axes", advantage: AdvantageMap, most: float = 1.6) -> "QuadMesh":
    """The gain of trees as colours; hatched: decode plainly."""
    image = axes.pcolormesh(
        advantage.alphas, advantage.draft_costs, advantage.gain, cmap="viridis", vmin=1, vmax=most,
        shading="nearest",
    )  # fmt: skip
    axes.set_yscale("log")
    plain = np.maximum(advantage.tree, advantage.chain) < TREE_GAIN
    if plain.any():
        axes.contourf(advantage.alphas, advantage.draft_costs, plain, levels=[0.5, 1.5], colors="none",
                      hatches=["///"])  # fmt: skip
    axes.set(
        title=f"a node adds {advantage.verify_cost:.1%} of a pass", xlabel="rate of the first child"
    )
    return image


def draw_times(axes: "Axes", latency: LatencyModel, sizes: Sequence[int], label: str) -> None:
    """The time of the target's pass over so many nodes, in plain passes."""
    times = np.array([latency.verify_s(size) for size in sizes])
    axes.plot(sizes, times / latency.verify_s(1), marker="o", markersize=3, label=label)
