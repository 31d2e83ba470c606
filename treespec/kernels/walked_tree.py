"""The walk of an acceptance rule down a tree, by `walked_tree.cpp`."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from treespec.kernels.build import held_call
from treespec.kernels.drawn_children import DTYPES

__all__ = ["KINDS", "walked_tree"]

KINDS = ("naive", "onehot", "rrs", "rrsw", "greedy")
"""Rules that the kernel knows, by its numbers."""


def walked_tree(
    kind: str,
    logits: Tensor,
    drafts: Tensor | None,
    tokens: Sequence[int],
    plan: Tensor,
    uniforms: Sequence[float],
    temperature: float,
) -> tuple[int, int, int] | None:
    """The verdict of a rule, by the same arithmetic and the same uniforms as the rule's own.

    It differs from that where a uniform lies within rounding of a threshold: exponentials and sums are
    rounded otherwise, and so are logits over a temperature near 0, here after the difference to the best.

    Args:
        kind: of `KINDS`.
        logits: the target's, `[N, V]` on the CPU, of `DTYPES`, the numbers of a row behind one another.
        drafts: `[M, V]` distributions that children were drawn from, in float32; None where none is read.
        tokens: N ids.
        plan: `[4, N]` in int32, contiguous: of each node its first child, its next sibling, the one before
            it, and its row of `drafts`; -1 for none.
        uniforms: N of them, as many as a walk can use; `greedy` uses none.
        temperature: above 0; `greedy` looks at the best tokens alone.

    Returns:
        The last node of the path, the bonus, and how many uniforms were used; None if the rule would refuse
        a row or a child on the way.

    Raises:
        ValueError: if sizes, dtypes or ids do not fit together.
    """
    size, width = logits.shape if logits.ndim == 2 else (0, 0)
    known = logits.dtype in DTYPES and logits.is_cpu and size and width and logits.stride(1) == 1
    used = 0 if kind == "greedy" else size
    fits = len(tokens) == size and len(uniforms) >= used and plan.shape == (4, size)
    fits = fits and plan.dtype == torch.int32 and plan.is_contiguous() and plan.is_cpu
    if not (known and fits and min(tokens) >= 0 and max(tokens[1:], default=0) < width):
        raise ValueError(
            f"no walk: {tuple(logits.shape)} logits in {logits.dtype}, tokens {tokens}"
        )
    rows = int(plan.numpy()[3].max()) + 1 if kind in ("rrs", "rrsw") else 0
    if rows and not _is_read(drafts, rows, width):
        what = None if drafts is None else (drafts.dtype, tuple(drafts.shape))
        raise ValueError(f"no walk of {kind} over {what} drafts and {width} tokens")
    if not rows:
        drafts = None
    ids = torch.tensor(tokens, dtype=torch.long, device="cpu")
    given = torch.tensor(uniforms, dtype=torch.float64, device="cpu")
    verdict = torch.empty(3, dtype=torch.long, device="cpu")
    held_call(
        "treespec_walked_tree",
        (logits, drafts, ids, plan, given, verdict),
        *map(
            ctypes.c_int64,
            (logits.stride(0), 0 if drafts is None else drafts.stride(0), size, width),
        ),
        ctypes.c_double(temperature),
        ctypes.c_int32(KINDS.index(kind)),
        ctypes.c_int32(logits.dtype == torch.bfloat16),
    )()
    node, bonus, used = verdict.tolist()
    return None if node < 0 else (node, bonus, used)


def _is_read(drafts: Tensor | None, rows: int, width: int) -> bool:
    if drafts is None or drafts.dtype != torch.float32 or not drafts.is_cpu or drafts.ndim != 2:
        return False
    return drafts.shape[1] == width and drafts.stride(1) == 1 and len(drafts) >= rows
