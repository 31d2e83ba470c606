"""Drawings of `notebooks/search.ipynb`: cost curves, and the map of where trees beat chains."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from treespec.search import LatencyModel, optimal_frontier

TREE_GAIN = 1.01
"""Smallest speed ratio over the best chain from which trees count as better."""

LEVELS = 24
"""Maximum depth of a tree on the map."""


@dataclass(frozen=True, eq=False)
class AdvantageMap:
    """The best tree and the best chain by acceptance rate and draft cost.

    Args:
        alphas: acceptance rates of the first child, `[A]`.
        draft_costs: time of a draft level over time of a plain target pass, `[C]`.
        verify_cost: time that each further node adds to the target's pass, in plain passes.
        tree: speedup of the best tree over plain decoding, `[C, A]`; chains count as trees.
        chain: speedup of the best chain over plain decoding, `[C, A]`; below 1 where plain decoding is
            faster.
    """

    alphas: Float[np.ndarray, "A"]
    draft_costs: Float[np.ndarray, "C"]
    verify_cost: float
    tree: Float[np.ndarray, "C A"]
    chain: Float[np.ndarray, "C A"]

    @property
    def gain(self) -> Float[np.ndarray, "C A"]:
        """Speed of the best tree over that of the best chain, with plain decoding where that is faster."""
        return np.maximum(self.tree, 1) / np.maximum(self.chain, 1)


def falling_rates(alpha: float, ranks: int = 8, share: float = 0.3) -> Float[np.ndarray, "ranks"]:
    """Acceptance rates by rank: `alpha` for the first child, a share of the remainder for each other one.

    Args:
        alpha: rate of the first child.
        ranks: number of children.
        share: rate of each further child, as a share of what the children before it leave.

    Example:
        >>> falling_rates(0.6, 3, share=0.5).round(3).tolist()
        [0.6, 0.2, 0.1]
    """
    remainder = (1 - alpha) * (1 - share) ** np.arange(ranks - 1)
    return np.concatenate([[alpha], share * remainder])


def advantage_map(
    alphas: Sequence[float],
    draft_costs: Sequence[float],
    verify_cost: float,
    *,
    size: int = 64,
    ranks: int = 8,
    share: float = 0.3,
) -> AdvantageMap:
    """The fastest tree and chain if a step of N nodes and depth d takes 1 + verify_cost (N - 1) + c d.

    Candidates are those of `optimal_frontier`: the tree with the most expected tokens for every size and
    depth.

    Args:
        alphas: rates of the first child.
        draft_costs: cost c of a draft level, whatever its width, in plain passes.
        verify_cost: cost of each node beyond the first, in plain passes.
        size: maximum number of nodes, root included.
        ranks: maximum number of children per node.
        share: see `falling_rates`.
    """
    tree, chain = (np.zeros((len(draft_costs), len(alphas))) for _ in range(2))
    for column, alpha in enumerate(alphas):
        rates = falling_rates(alpha, ranks, share)
        values = optimal_frontier(rates, size, depth=min(LEVELS, size - 1)).values
        depths, nodes = np.indices(values.shape)
        lengths = np.arange(min(LEVELS, size - 1) + 1)
        chain_tokens = np.cumsum(alpha**lengths)
        for row, cost in enumerate(draft_costs):
            tree[row, column] = (values / (1 + verify_cost * (nodes - 1) + cost * depths)).max()
            chain[row, column] = (chain_tokens / (1 + (verify_cost + cost) * lengths))[1:].max()
    return AdvantageMap(np.array(alphas), np.array(draft_costs), verify_cost, tree, chain)


def draw_map(axes: Axes, advantage: AdvantageMap, most: float = 1.6) -> QuadMesh:
    """Draw the gain of trees as colours; hatching marks where plain decoding is best."""
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


def draw_times(axes: Axes, latency: LatencyModel, sizes: Sequence[int], label: str) -> None:
    """Draw the time of the target's pass against the number of nodes, in plain passes."""
    times = np.array([latency.verify_s(size) for size in sizes])
    axes.plot(sizes, times / latency.verify_s(1), marker="o", markersize=3, label=label)
