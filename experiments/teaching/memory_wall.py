"""What a pass of a model over 1 to N tokens costs on this machine, beside the least that it can cost.

A pass must read all weights, whatever the number of tokens, and multiply each token with all of them.
As long as reading takes longer than multiplying, further tokens are nearly free: speculation lives on that.
Both floors are measured too: the fastest reading and the fastest matrix product that torch does here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from treespec.experiments.benchmarks.gpu.roofline import Peak, fastest, pass_bytes
from treespec.experiments.benchmarks.timing import in_turns, seconds_of
from treespec.experiments.run.observers import synchronizer
from treespec.models.transformers_model import TransformersModel

__all__ = ["PassCost", "measure_passes", "measure_peaks", "pass_flops"]


@dataclass(frozen=True, eq=False)
class PassCost:
    """Measured passes and their floor.

    Args:
        nodes: tokens of a pass, `[N]`.
        seconds: samples, `[repeats, N]`; those of a line were taken in one round.
        bytes_s: seconds that reading weights and cache takes at the measured bandwidth, `[N]`.
        flops_s: seconds that the arithmetic takes at the measured peak, `[N]`.
        peak: both peaks.
        prefix: committed tokens.
        parameters: of the model.
        dtype: of the model.
    """

    nodes: tuple[int, ...]
    seconds: Float[np.ndarray, "repeats N"]
    bytes_s: Float[np.ndarray, "N"]
    flops_s: Float[np.ndarray, "N"]
    peak: Peak
    prefix: int
    parameters: int
    dtype: str

    @property
    def median_s(self) -> Float[np.ndarray, "N"]:
        """The middle one of the samples."""
        return np.median(self.seconds, axis=0)

    @property
    def quartiles_s(self) -> Float[np.ndarray, "2 N"]:
        """A quarter of the samples is below, a quarter above."""
        return np.quantile(self.seconds, [0.25, 0.75], axis=0)

    @property
    def floor_s(self) -> Float[np.ndarray, "N"]:
        """The larger one of the two floors."""
        return np.maximum(self.bytes_s, self.flops_s)

    @property
    def ridge(self) -> float:
        """Tokens at which arithmetic and reading take equally long, on the floor; inf beyond the last."""
        ratio = np.log(self.flops_s / self.bytes_s)
        return float(np.exp(np.interp(0.0, ratio, np.log(self.nodes), right=np.inf)))

    def relative(self) -> Float[np.ndarray, "N"]:
        """Time of each pass over that of one token: medians of the ratios of one round."""
        return np.median(self.seconds / self.seconds[:, :1], axis=0)


def measure_passes(
    model: TransformersModel,
    nodes: Sequence[int],
    *,
    prefix: int = 64,
    repeats: int = 7,
    peak: Peak | None = None,
    seed: int = 0,
) -> PassCost:
    """Time passes over chains of so many nodes behind a prefix; one round more warms up.

    The order changes from round to round, since machines drift. What a pass computes does not depend on
    the shape of the tree, so chains stand for all.

    Args:
        model: its own cache is not touched.
        nodes: ascending, the first one 1.
        prefix: committed tokens.
        repeats: rounds that count.
        peak: as `measure_peaks` gives it, for the model's dtype; measured by default.
        seed: of the order and of the tokens.
    """
    weights = next(model.model.parameters())
    peak = peak or measure_peaks(weights.dtype, model.device)
    runner, wait = model.fresh(), synchronizer(model.device)
    make = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.vocab_size, (prefix + max(nodes),), generator=make).to(model.device)
    runner.prefill(ids[:prefix])

    def measured(count: int) -> float:
        tokens, parents = ids[prefix : prefix + count], tuple(range(-1, count - 1))
        return seconds_of(lambda: runner.run(tokens, parents), wait)

    seconds = in_turns({count: partial(measured, count) for count in nodes}, repeats, seed=seed)
    parameters = {id(p): p.numel() for p in model.model.parameters()}
    return PassCost(
        nodes=tuple(nodes),
        seconds=np.array([seconds[count] for count in nodes]).T,
        bytes_s=np.array([pass_bytes(model.model, prefix + n) for n in nodes]) / peak.bandwidth,
        flops_s=np.array([pass_flops(model.model, n, prefix) for n in nodes]) / peak.flops,
        peak=peak,
        prefix=prefix,
        parameters=sum(parameters.values()),
        dtype=str(weights.dtype).removeprefix("torch."),
    )


def pass_flops(model: Any, nodes: int, prefix: int) -> float:
    """Operations of a pass: two for each weight of a matrix and token, and those of the attention.

    Args:
        model: a causal language model of transformers, of the llama architecture.
        nodes: tokens of the pass.
        prefix: committed tokens; every node counts as seeing all nodes.
    """
    config = model.config
    weights = {id(p): p for p in model.parameters() if p.ndim == 2}
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    if table is not head:
        del weights[id(table)]
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * dim * (prefix + nodes)
    return nodes * (2.0 * sum(p.numel() for p in weights.values()) + attention)


def measure_peaks(
    dtype: torch.dtype, device: torch.device, *, megabytes: int = 256, side: int = 1024
) -> Peak:
    """The fastest reading and the fastest matrix product of a few tries, with as many threads as torch has.

    Reading: the larger rate of a sum, and of a matrix-vector product, over memory that no cache holds.

    Args:
        dtype: of what is read and multiplied.
        device: where.
        megabytes: read at once.
        side: of the square matrices.
    """
    wait = synchronizer(device)
    columns = 4096
    rows = max(1, megabytes * 2**20 // (columns * dtype.itemsize))
    matrix = torch.ones(rows, columns, dtype=dtype, device=device)
    vector = torch.ones(columns, dtype=dtype, device=device)
    # As wide integers, so that the sum of a half-precision matrix is not bound by conversion.
    wide = matrix.view(torch.int64)
    reading = min(fastest(wide.sum, wait), fastest(lambda: matrix @ vector, wait))
    square = torch.ones(side, side, dtype=dtype, device=device)
    product = fastest(lambda: square @ square, wait)
    moved = matrix.numel() * matrix.element_size()
    return Peak(moved / reading, 2 * side**3 / product, "measured: a sum, a matrix product")
