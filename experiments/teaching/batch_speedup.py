"""Predicted speedup of speculation by batch size: where it stops paying, and where it does not.

The texts of a batch share the cost of reading the weights. In a large batch arithmetic is the bottleneck,
and further nodes are no longer free. With long texts, however, each text's own cache must be read, and
reading remains the bottleneck at any batch size (MagicDec, arXiv:2408.11049). Predicted by the latency
model; `batch` in a config measures it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float

from treespec.experiments.measure.roofline import Peak
from treespec.experiments.teaching.memory_wall import PassCost
from treespec.search import LatencyModel, best_tree, expected_tokens
from treespec.tree import TreeShape

LEAST_SPEEDUP = 1.01
"""Smallest speedup that counts as a gain."""

DRAWS = 40
"""Number of resamples: the minimum that a ranking accepts, because rates and times have no spread here."""


@dataclass(frozen=True)
class Llama:
    """The dimensions of a Llama model that determine the cost of a pass.

    Args:
        name: name of the model.
        matrix: number of parameters that a pass multiplies with: all but an input embedding that is only
            looked up.
        layers: number of layers.
        heads: number of query heads.
        kv_heads: number of key/value heads.
        dim: dimension of a head.
        itemsize: bytes per number.
    """

    name: str
    matrix: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    itemsize: int = 2

    @property
    def cache_row(self) -> int:
        """Bytes of key/value cache per committed token of a text."""
        return 2 * self.layers * self.kv_heads * self.dim * self.itemsize

    def floor_s(self, peak: Peak, batch: int, nodes: int, prefix: int) -> float:
        """Seconds of a pass on the roofline: the maximum of reading and arithmetic."""
        keys = prefix + nodes
        read = self.matrix * self.itemsize + batch * keys * self.cache_row
        attention = 4 * self.layers * self.heads * self.dim * keys
        computed = batch * nodes * (2 * self.matrix + attention)
        return max(read / peak.bandwidth, computed / peak.flops)


LLAMA_8B = Llama("Llama-3.1-8B", 7_504_924_672, 32, 32, 8, 128)
LLAMA_1B = Llama("Llama-3.2-1B", 1_235_814_400, 16, 32, 8, 64)
"""From their configurations; the output matrix is separate in the 8B model and tied in the 1B model."""


@dataclass(frozen=True, eq=False)
class BatchSpeedup:
    """Predicted speedups over plain decoding of the same batch.

    Args:
        batches: batch sizes, `[B]`.
        tree: speedup of the best tree for each batch size.
        chain: speedup of the best chain for each batch size.
        fixed: speedup of one tree used at all batch sizes; NaN where its time is unknown.
        nodes: number of nodes of the best tree, root included.
    """

    batches: tuple[int, ...]
    tree: Float[np.ndarray, "B"]
    chain: Float[np.ndarray, "B"]
    fixed: Float[np.ndarray, "B"]
    nodes: tuple[int, ...]

    @property
    def best(self) -> Float[np.ndarray, "B"]:
        """Speedup of the faster of the two, the best tree and the best chain."""
        return np.fmax(self.tree, self.chain)

    @property
    def stops(self) -> int | None:
        """The batch size from which on no draft reaches `LEAST_SPEEDUP`; None if the largest still does."""
        paying = np.flatnonzero(self.best >= LEAST_SPEEDUP)
        stop = 0 if not len(paying) else int(paying[-1]) + 1
        return self.batches[stop] if stop < len(self.batches) else None


def largest_batch(target: Llama, draft: Llama, memory: float, prefix: int) -> int:
    """The largest number of texts whose caches fit into memory beside the weights of both models."""
    weights = sum(model.matrix * model.itemsize for model in (target, draft))
    return max(0, int((memory - weights) // (prefix * (target.cache_row + draft.cache_row))))


def roofline_latency(
    target: Llama,
    draft: Llama,
    peak: Peak,
    *,
    batches: Sequence[int],
    prefix: int,
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
) -> LatencyModel:
    """The latency model of a pair on the roofline of a device."""

    def times(model: Llama, batch: int) -> dict[int, float]:
        return {n: model.floor_s(peak, batch, n, prefix) for n in sizes}

    return _by_batch(batches, partial(times, target), partial(times, draft))


def measured_latency(target: PassCost, draft: PassCost, batches: Sequence[int]) -> LatencyModel:
    """The latency model from measured passes: b texts of N nodes cost as much as a pass over b x N tokens.

    The assumption holds for the weights, and for caches as short as those measured. For each batch size,
    times extend as far as passes were measured.
    """
    most_tokens = min(target.nodes[-1], draft.nodes[-1])

    def times(cost: PassCost, batch: int) -> dict[int, float]:
        sizes = sorted({*(n for n in cost.nodes if n * batch <= most_tokens), most_tokens // batch})
        monotone = np.maximum.accumulate(cost.median_s)
        return {n: float(np.interp(n * batch, cost.nodes, monotone)) for n in sizes}

    return _by_batch(batches, partial(times, target), partial(times, draft))


def _by_batch(
    batches: Sequence[int],
    verify: Callable[[int], dict[int, float]],
    draft: Callable[[int], dict[int, float]],
) -> LatencyModel:
    """The latency model from functions that give the times by number of nodes for a batch size."""
    return LatencyModel.of_batches(
        {
            batch: LatencyModel.from_tables(verify=verify(batch), draft=draft(batch), batch=batch)
            for batch in batches
        }
    )


def speedup_by_batch(
    rates: Sequence[float],
    latency: LatencyModel,
    fixed: TreeShape,
    *,
    max_size: int = 64,
    depth: int = 8,
) -> BatchSpeedup:
    """Speedups of the best tree, the best chain and a fixed tree for every batch size."""
    count = len(latency.batches)
    tree, chain, fixed_tree = (np.full(count, np.nan) for _ in range(3))
    nodes = [1] * count
    for i, batch in enumerate(latency.batches):
        largest = latency.largest(batch=batch)
        size = max_size if largest is None else min(max_size, largest)
        if size > 1:
            ranking = best_tree(
                rates, latency, max_size=size, depth=min(depth, size - 1), batch=batch, draws=DRAWS
            )
            if ranking.tree is not None:
                tree[i], nodes[i] = ranking.tree.speedup.estimate, ranking.tree.size
            if ranking.chain is not None:
                chain[i] = ranking.chain.speedup.estimate
        if fixed.size <= size:
            plain = latency.plain_s(batch=batch)
            tokens = expected_tokens(fixed, rates)
            fixed_tree[i] = tokens * plain / latency.step_s(fixed, batch=batch)
    return BatchSpeedup(tuple(latency.batches), tree, chain, fixed_tree, tuple(nodes))
