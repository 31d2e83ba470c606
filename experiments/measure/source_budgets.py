"""Search for the best limits of a text source on a trace of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treespec.experiments.errors import ConfigError
from treespec.plugins import Budget
from treespec.search import Trace
from treespec.search.traces.replay import replay_budget
from treespec.tree.shape import TreeShape

USUAL_SIZE = 16

SAME_TEXTS = (
    "a few limits were compared, and chosen and evaluated on the same texts: small differences may be "
    "chance; --latency ranks by speed, with intervals"
)


@dataclass(frozen=True)
class FoundBudget:
    """The best limits of a text source on a trace of it.

    Args:
        config: the limits as a config states them.
        size: requested number of nodes, including the root; a chain may have fewer.
        tokens: tokens per step.
        nodes: mean number of nodes verified per step, including the root.
        chain: depth of the best chain within the same limits.
        chain_tokens: tokens per step of that chain.
    """

    config: Mapping[str, Any]
    size: int
    tokens: float
    nodes: float
    chain: int
    chain_tokens: float

    @property
    def shape(self) -> TreeShape:
        raise ConfigError(
            "a budget drafts a different tree at each step, so no tree file can hold it: write "
            f"`shape: {flow(self.config)}` in a config"
        )

    def __str__(self) -> str:
        depth, branching = self.config["depth"], self.config["branching"]
        chosen = (
            f"a chain of depth {depth}"
            if branching == 1
            else f"trees of depth at most {depth} and branching at most {branching}"
        )
        return "\n".join([
            f"most tokens per step within {self.size} nodes, the root included: {chosen}",
            f"tokens per step {self.tokens:.3f} (plain decoding: 1), {self.nodes:.3g} nodes on average",
            f"the best chain, of depth {self.chain}: {self.chain_tokens:.3f} tokens per step",
            f"in a config: shape: {flow(self.config)}",
            f"note: {SAME_TEXTS}",
        ])  # fmt: skip

    def data(self) -> dict[str, Any]:
        return {
            "budget": dict(self.config),
            "tokens_per_step": self.tokens,
            "nodes_per_step": self.nodes,
            "chain": {"depth": self.chain, "tokens_per_step": self.chain_tokens},
            "notes": [SAME_TEXTS],
        }


def flow(settings: Mapping[str, Any]) -> str:
    """Settings in the one-line form of configs."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in settings.items()) + "}"


def best_budget(
    trace: Trace, size: int | None, depth: int | None, branching: int | None
) -> FoundBudget:
    """Find the depth and branching with the most tokens per step; ties go to the smallest limits."""
    drafts = trace.text_drafts
    assert drafts is not None
    recorded = drafts.budget
    size = min(USUAL_SIZE, recorded.size) if size is None else size
    deepest = min(size - 1, recorded.depth if depth is None else depth)
    if deepest < 1:
        raise ConfigError(f"--size {size}, --depth {depth}: these leave no room for a draft token")
    tried = [
        (replay_budget(trace, budget), budget)
        for deep in range(1, deepest + 1)
        for wide in range(1, (recorded.branching if branching is None else branching) + 1)
        if (budget := Budget(size if wide > 1 else deep + 1, deep, wide))
    ]
    chains = [pair for pair in tried if pair[1].branching == 1]
    replayed, best = max(tried, key=lambda pair: pair[0].tokens_per_step)
    chain_replayed, chain = max(chains, key=lambda pair: pair[0].tokens_per_step)
    return FoundBudget(
        {"kind": "budget", "depth": best.depth, "size": best.size, "branching": best.branching},
        size,
        replayed.tokens_per_step,
        replayed.nodes_per_step,
        chain.depth,
        chain_replayed.tokens_per_step,
    )
