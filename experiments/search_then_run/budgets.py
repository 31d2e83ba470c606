"""The best limits of a text source, on a trace of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from treespec.experiments.errors import ConfigError
from treespec.plugins import Budget
from treespec.search import Trace
from treespec.search.rates.budget_replay import replay_budget
from treespec.shape import TreeShape

__all__ = ["USUAL_SIZE", "FoundBudget", "best_budget", "flow"]

USUAL_SIZE = 16
"""Nodes of a tree, the root included, where none are given."""

SAME_TEXTS = (
    "chosen and valued on the same texts, of few limits: small differences may be chance; --latency ranks "
    "by speed, with intervals"
)


@dataclass(frozen=True)
class FoundBudget:
    """The best limits of a text source, on a trace of it.

    Args:
        config: as configs write them.
        size: nodes that were given, the root included; a chain may have fewer.
        tokens: per step.
        nodes: verified in the mean step, the root included.
        chain: depth of the best chain within the same limits.
        chain_tokens: of it, per step.
    """

    config: Mapping[str, Any]
    size: int
    tokens: float
    nodes: float
    chain: int
    chain_tokens: float

    @property
    def shape(self) -> TreeShape:
        """There is none.

        Raises:
            ConfigError: saying what to write instead.
        """
        raise ConfigError(
            "a budget has another tree at each step, and no file of a tree holds it: write "
            f"`shape: {flow(self.config)}` into a config"
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
        """The same as plain data."""
        return {
            "budget": dict(self.config),
            "tokens_per_step": self.tokens,
            "nodes_per_step": self.nodes,
            "chain": {"depth": self.chain, "tokens_per_step": self.chain_tokens},
            "notes": [SAME_TEXTS],
        }


def flow(settings: Mapping[str, Any]) -> str:
    """Settings as configs write them in one line."""
    return "{" + ", ".join(f"{key}: {value}" for key, value in settings.items()) + "}"


def best_budget(
    trace: Trace, size: int | None, depth: int | None, branching: int | None
) -> FoundBudget:
    """The depth and branching of most tokens per step; of equal ones the lowest.

    Args:
        trace: of a text source.
        size: nodes, the root included, which are not searched; None for `USUAL_SIZE`, or what the trace
            holds if that is less.
        depth: the most edges; None for what the trace holds.
        branching: the most children of a node; likewise.

    Raises:
        ConfigError: if there is no room for a draft token.
        InvalidTrace: if the limits are higher than those recorded.
    """
    drafts = trace.text_drafts
    assert drafts is not None
    known = drafts.budget
    size = min(USUAL_SIZE, known.size) if size is None else size
    deepest = min(size - 1, known.depth if depth is None else depth)
    if deepest < 1:
        raise ConfigError(f"--size {size}, --depth {depth}: there is no room for a draft token")
    tried = [
        (replay_budget(trace, budget), budget)
        for deep in range(1, deepest + 1)
        for wide in range(1, (known.branching if branching is None else branching) + 1)
        if (budget := Budget(size if wide > 1 else deep + 1, deep, wide))
    ]
    replayed, best = max(tried, key=lambda one: one[0].tokens_per_step)
    chain, chained = max(
        (one for one in tried if one[1].branching == 1), key=lambda one: one[0].tokens_per_step
    )
    config = {"kind": "budget", **asdict(best)}
    return FoundBudget(
        {key: config[key] for key in ("kind", "depth", "size", "branching")},
        size,
        replayed.tokens_per_step,
        replayed.nodes_per_step,
        chained.depth,
        chain.tokens_per_step,
    )
