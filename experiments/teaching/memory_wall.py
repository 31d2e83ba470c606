"""The cost of a pass over 1 to N tokens on this machine, and its lower bound.

A pass must read all weights, whatever the number of tokens, and multiply each token by all of them. As long
as reading takes longer than multiplying, further tokens are nearly free: speculation relies on this. Both
floors are measured too, as the fastest reading and the fastest matrix product of torch on this machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from treespec.experiments.measure.roofline import Peak, fastest, pass_bytes, weights_read
from treespec.experiments.measure.timing import in_turns, seconds_of
from treespec.experiments.run.observers import synchronizer
from treespec.models.transformers_model import TransformersModel


@dataclass(frozen=True, eq=False)
class PassCost:
    """Measured times of passes and their floors.

    Args:
        nodes: number of tokens of each pass, `[N]`.
        seconds: samples, `[repeats, N]`; each row was taken in one round.
        bytes_s: seconds to read weights and cache at the measured bandwidth, `[N]`.
        flops_s: seconds for the arithmetic at the measured peak, `[N]`.
        peak: measured bandwidth and arithmetic peak.
        prefix: number of committed tokens.
        parameters: number of parameters of the model.
        dtype: dtype of the model.
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
        """Median of the samples, `[N]`."""
        return np.median(self.seconds, axis=0)

    @property
    def quartiles_s(self) -> Float[np.ndarray, "2 N"]:
        """Lower and upper quartile of the samples, `[2, N]`."""
        return np.quantile(self.seconds, [0.25, 0.75], axis=0)

    @property
    def floor_s(self) -> Float[np.ndarray, "N"]:
        """The larger of the two floors, `[N]`."""
        return np.maximum(self.bytes_s, self.flops_s)

    @property
    def ridge(self) -> float:
        """Number of tokens at which both floors are equal; infinite if beyond the last measured pass."""
        ratio = np.log(self.flops_s / self.bytes_s)
        return float(np.exp(np.interp(0.0, ratio, np.log(self.nodes), right=np.inf)))

    def relative(self) -> Float[np.ndarray, "N"]:
        """Time of each pass over that of a single token: the median ratio over rounds."""
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
    """Time passes over chains of these numbers of nodes after a prefix, following one warm-up round.

    The order changes from round to round, because machines drift. The amount of computation does not depend
    on the shape of the tree, so chains stand for all trees.

    The model's own cache is not modified; `nodes` ascend and start with 1.
    """
    weights = next(model.model.parameters())
    peak = peak or measure_peaks(weights.dtype, model.device)
    runner, wait = model.fresh(), synchronizer(model.device)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.vocab_size, (prefix + max(nodes),), generator=generator)
    ids = ids.to(model.device)
    runner.prefill(ids[:prefix])

    def measured(count: int) -> float:
        tokens, parents = ids[prefix : prefix + count], tuple(range(-1, count - 1))
        return seconds_of(lambda: runner.run(tokens, parents), wait)

    seconds = in_turns({count: partial(measured, count) for count in nodes}, repeats, seed=seed)
    return PassCost(
        nodes=tuple(nodes),
        seconds=np.array([seconds[count] for count in nodes]).T,
        bytes_s=np.array([pass_bytes(model.model, prefix + n) for n in nodes]) / peak.bandwidth,
        flops_s=np.array([pass_flops(model.model, n, prefix) for n in nodes]) / peak.flops,
        peak=peak,
        prefix=prefix,
        parameters=sum(p.numel() for p in model.model.parameters()),
        dtype=str(weights.dtype).removeprefix("torch."),
    )


def pass_flops(model: Any, nodes: int, prefix: int) -> float:
    """Number of operations of a pass: two per matrix weight and token, plus those of the attention.

    Every node is counted as attending to all nodes.
    """
    config = model.config
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * dim * (prefix + nodes)
    weights = sum(weight.numel() for weight in weights_read(model) if weight.ndim == 2)
    return nodes * (2.0 * weights + attention)


def measure_peaks(
    dtype: torch.dtype, device: torch.device, *, megabytes: int = 256, side: int = 1024
) -> Peak:
    """Measure the peak rates of reading and arithmetic in a few attempts, with all threads of torch.

    Reading is the faster of a sum and a matrix-vector product over memory larger than any cache. Arithmetic
    is a product of square matrices.
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
    return Peak(matrix.nbytes / reading, 2 * side**3 / product, "measured: a sum, a matrix product")
