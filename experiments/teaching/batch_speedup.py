"""Speculation against the batch size, from the latency model: where it stops to pay, and where it does not.

Texts of a batch share the reading of the weights. With many of them the arithmetic binds, and further
nodes are no longer free; unless the texts are long: then every text's own cache must be read, and reading
binds at any batch size (MagicDec, arXiv:2408.11049). Predicted, not measured: our own loop has batch 1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float

from treespec.experiments.benchmarks.gpu.roofline import Peak
from treespec.experiments.teaching.memory_wall import PassCost
from treespec.search import LatencyModel, best_tree, expected_tokens
from treespec.tree import TreeShape

__all__ = [
    "LEAST_SPEEDUP",
    "LLAMA_1B",
    "LLAMA_8B",
    "BatchSpeedup",
    "Llama",
    "largest_batch",
    "measured_latency",
    "roofline_latency",
    "speedup_by_batch",
]

LEAST_SPEEDUP = 1.01
"""Speedups below this count as none."""

DRAWS = 40
"""Resamples: rates and times have no spread here, and this is the least that a ranking takes."""


@dataclass(frozen=True)
class Llama:
    """What the costs of a pass depend on.

    Args:
        name: of the model.
        matrix: parameters that a pass multiplies with: all but an input embedding that is only looked up.
        layers: of the model.
        heads: query heads.
        kv_heads: key/value heads.
        dim: of a head.
        itemsize: bytes of a number.
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
        """Bytes of the cache for each committed token of a text."""
        return 2 * self.layers * self.kv_heads * self.dim * self.itemsize

    def floor_s(self, peak: Peak, batch: int, nodes: int, prefix: int) -> float:
        """Seconds of a pass on the roofline: the larger one of reading and arithmetic.

        Args:
            peak: of the device. No kernel reaches it; where all miss it by the same factor, ratios stay.
            batch: texts at once.
            nodes: of the tree of each text.
            prefix: committed tokens of each text.
        """
        keys = prefix + nodes
        read = self.matrix * self.itemsize + batch * keys * self.cache_row
        attention = 4 * self.layers * self.heads * self.dim * keys
        computed = batch * nodes * (2 * self.matrix + attention)
        return max(read / peak.bandwidth, computed / peak.flops)


LLAMA_8B = Llama("Llama-3.1-8B", 7_504_924_672, 32, 32, 8, 128)
LLAMA_1B = Llama("Llama-3.2-1B", 1_235_814_400, 16, 32, 8, 64)
"""From their configurations; the larger one's head is a matrix of its own, the smaller one's is tied."""


@dataclass(frozen=True, eq=False)
class BatchSpeedup:
    """Predicted speedups over plain decoding of the same batch.

    Args:
        batches: texts at once, `[B]`.
        tree: of the best tree for each batch size.
        chain: of the best chain.
        fixed: of one tree at all batch sizes; NaN where its time is not known.
        nodes: of the best tree, the root included.
    """

    batches: tuple[int, ...]
    tree: Float[np.ndarray, "B"]
    chain: Float[np.ndarray, "B"]
    fixed: Float[np.ndarray, "B"]
    nodes: tuple[int, ...]

    @property
    def best(self) -> Float[np.ndarray, "B"]:
        """The faster one of tree and chain."""
        return np.fmax(self.tree, self.chain)

    @property
    def stops(self) -> int | None:
        """The smallest batch at and beyond which no draft gains a hundredth; None if it always pays."""
        paying = np.flatnonzero(self.best >= LEAST_SPEEDUP)
        first = 0 if not len(paying) else int(paying[-1]) + 1
        return self.batches[first] if first < len(self.batches) else None


def largest_batch(target: Llama, draft: Llama, memory: float, prefix: int) -> int:
    """The most texts whose caches fit beside the weights of both models.

    Args:
        target: one model.
        draft: the other.
        memory: bytes of the device.
        prefix: committed tokens of each text.
    """
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
    """The latency model of a pair on the roofline of a device.

    Args:
        target: its verification of `sizes` nodes of each text.
        draft: a level that expands so many nodes of each text costs a pass over them.
        peak: of the device.
        batches: texts at once.
        prefix: committed tokens of each text.
        sizes: nodes; times between them are interpolated.
    """

    def times(model: Llama, batch: int) -> dict[int, float]:
        return {n: model.floor_s(peak, batch, n, prefix) for n in sizes}

    return _by_batch(batches, partial(times, target), partial(times, draft))


def measured_latency(target: PassCost, draft: PassCost, batches: Sequence[int]) -> LatencyModel:
    """The latency model of measured passes: b texts of N nodes cost what a pass over b x N tokens costs.

    That is right for the weights, and for caches as short as those measured. Each batch has times as far
    as passes were measured.

    Args:
        target: its passes, from one token on.
        draft: its passes, over at least as many tokens.
        batches: texts at once, none above the largest pass.
    """
    most = min(target.nodes[-1], draft.nodes[-1])

    def times(cost: PassCost, batch: int) -> dict[int, float]:
        sizes = sorted({*(n for n in cost.nodes if n * batch <= most), most // batch})
        growing = np.maximum.accumulate(cost.median_s)
        return {n: float(np.interp(n * batch, cost.nodes, growing)) for n in sizes}

    return _by_batch(batches, partial(times, target), partial(times, draft))


def _by_batch(
    batches: Sequence[int],
    verify: Callable[[int], dict[int, float]],
    draft: Callable[[int], dict[int, float]],
) -> LatencyModel:
    """The latency model of these times, which are by nodes for each batch."""
    models = {
        batch: LatencyModel.from_tables(verify=verify(batch), draft=draft(batch), batch=batch)
        for batch in batches
    }
    return LatencyModel.of_batches(models)


def speedup_by_batch(
    rates: Sequence[float],
    latency: LatencyModel,
    fixed: TreeShape,
    *,
    max_size: int = 64,
    depth: int = 8,
) -> BatchSpeedup:
    """The best tree and the best chain for every batch size that the latency model knows.

    Args:
        rates: probability that the k-th child is the accepted one.
        latency: the times.
        fixed: a tree tuned for one batch size, say, and used at all.
        max_size: nodes of the largest tree, the root included.
        depth: edges of the deepest one.
    """
    count = len(latency.batches)
    tree, chain, other = (np.full(count, np.nan) for _ in range(3))
    nodes = [1] * count
    for i, batch in enumerate(latency.batches):
        known = latency.largest(batch=batch)
        most = max_size if known is None else min(max_size, known)
        if most > 1:
            ranking = best_tree(
                rates, latency, max_size=most, depth=min(depth, most - 1), batch=batch, draws=DRAWS
            )
            if ranking.tree is not None:
                tree[i], nodes[i] = ranking.tree.speedup.estimate, ranking.tree.size
            if ranking.chain is not None:
                chain[i] = ranking.chain.speedup.estimate
        if fixed.size <= most:
            plain = latency.plain_s(batch=batch)
            other[i] = expected_tokens(fixed, rates) * plain / latency.step_s(fixed, batch=batch)
    return BatchSpeedup(tuple(latency.batches), tree, chain, other, tuple(nodes))
