"""The candidates that are timed side by side: the kernel, its alternatives, and attention without a mask.

    kernel      impl="triton"
    sdpa        scaled_dot_product_attention with an additive mask, heads of a group folded into rows
    flex        FlexAttention, compiled, with its tile set
    two_pass    the prefix without a mask, the tree with one, merged
    flashinfer  FlashInfer's prefill kernel with a packed mask, if it is installed
    flash       no mask, FlashAttention's kernel: the floor
    cudnn       no mask, cuDNN's kernel: the floor, where it is faster

All masks are made before the clock starts, since the layers of a model share them. The floors compute a
wrong result (every node attends to every other) and show the cost of the same reading and computing.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from torch import Tensor

from attention_masks import TreePass, attend, topology
from treespec.experiments.measure.roofline import Heads

KERNEL = "kernel"
FLASHINFER = "flashinfer"
MASKED = (
    "sdpa", "flex", "two_pass",
    *((FLASHINFER,) if importlib.util.find_spec(FLASHINFER) else ()),
)  # fmt: skip
FLOORS = ("flash", "cudnn")
CANDIDATES = (KERNEL, *MASKED, *FLOORS)

BRANCHING = 3
"""Children of each node of the tree, breadth first, as far as the nodes last."""

ROUND = 64
"""The number of slots of a cache is a multiple of this, so that every row starts at an aligned address."""

RECOMPILES = 64
"""Raised limit of recompilations of FlexAttention; reaching it is an error.

FlexAttention is recompiled when sizes change their kind. Beyond PyTorch's own limit it would silently run
uncompiled.
"""


class Case(NamedTuple):
    """One place in the grid."""

    heads: Heads
    rows: int
    prefix: int

    @property
    def key(self) -> str:
        """A readable key for files and messages."""
        return f"{self.heads} T={self.rows} prefix={self.prefix}"


class Inputs(NamedTuple):
    """One set of tensors; keys and values have unused slots after the last node."""

    q: Float[Tensor, "1 Hq T D"]
    k: Float[Tensor, "1 Hkv S D"]
    v: Float[Tensor, "1 Hkv S D"]


def inputs_of(case: Case, count: int, device: torch.device, dtype: torch.dtype) -> list[Inputs]:
    """Make sets of random tensors."""
    heads, slots = case.heads, -(-(case.prefix + case.rows) // ROUND) * ROUND
    make = torch.Generator(device).manual_seed(case.rows)

    def normal(count: int, length: int) -> Tensor:
        return torch.randn(
            (1, count, length, heads.dim), dtype=dtype, device=device, generator=make
        )

    return [
        Inputs(normal(heads.q, case.rows), normal(heads.kv, slots), normal(heads.kv, slots))
        for _ in range(count)
    ]


def call_of(name: str, case: Case) -> Callable[[Inputs], Tensor]:
    """The function that a candidate runs on one set of inputs; all its calls share the masks."""
    if name in FLOORS:
        return lambda inputs: _unmasked(name, case, inputs)
    if name == "flex":
        _never_uncompiled()
    tree = topology([(i - 1) // BRANCHING for i in range(case.rows)])
    if name == FLASHINFER:
        return _by_flashinfer(case, TreePass(tree, case.prefix))
    tree_pass, impl = TreePass(tree, case.prefix), "triton" if name == KERNEL else name
    return lambda inputs: attend(*inputs, tree_pass, impl=impl)


def _by_flashinfer(case: Case, tree_pass: TreePass) -> Callable[[Inputs], Tensor]:
    flashinfer: Any = importlib.import_module(FLASHINFER)
    bits: list[Tensor] = []

    def call(inputs: Inputs) -> Tensor:
        if not bits:
            mask = tree_pass.mask(None, inputs.q.device).contiguous().view(-1)
            bits.append(flashinfer.quantization.packbits(mask, bitorder="little"))
        used = slice(0, case.prefix + case.rows)
        k, v = (x[0, :, used] for x in (inputs.k, inputs.v))
        q = inputs.q[0].transpose(0, 1).contiguous()
        out = flashinfer.single_prefill_with_kv_cache(
            q, k, v, packed_custom_mask=bits[0], kv_layout="HND"
        )
        return out.transpose(0, 1)[None]

    return call


def _unmasked(name: str, case: Case, inputs: Inputs) -> Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[name]
    used = slice(0, case.prefix + case.rows)
    folded = inputs.q.reshape(1, case.heads.kv, -1, case.heads.dim)
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(folded, inputs.k[:, :, used], inputs.v[:, :, used])
    return out.reshape(inputs.q.shape)


def _never_uncompiled() -> None:
    import torch._dynamo.config as settings

    wanted = {
        "recompile_limit": RECOMPILES,
        "accumulated_recompile_limit": 4 * RECOMPILES,
        "fail_on_recompile_limit_hit": True,
    }
    for name, value in wanted.items():
        if hasattr(settings, name):
            setattr(settings, name, value)
