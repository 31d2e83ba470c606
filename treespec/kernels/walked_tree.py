"""The walk of an acceptance rule down a tree (`walked_tree.cpp`)."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from treespec.kernels.build import held_call
from treespec.kernels.drawn_children import DTYPES

KINDS = ("naive", "onehot", "rrs", "rrsw", "greedy")
"""Rules that the kernel implements, in the order of their numbers in C++."""


def walked_tree(
    kind: str,
    logits: Tensor,
    drafts: Tensor | None,
    tokens: Sequence[int],
    plan: Tensor,
    uniforms: Sequence[float],
    temperature: float,
) -> tuple[int, int, int] | None:
    """The verdict of a rule, by the same arithmetic and from the same uniforms as the rule itself.

    It can differ from the rule's verdict if a uniform lies within rounding of a threshold: exponentials and
    sums are rounded differently, and logits are divided by the temperature only after the best logit is
    subtracted, which matters near temperature 0.

    `logits`: the target's logits, `[N, V]` on the CPU, of `DTYPES`, each row contiguous. `drafts`: `[M, V]`
    distributions that children were drawn from, in float32; None if the rule reads none. `plan`: `[4, N]`
    in int32, contiguous: for each node its first child, its next sibling, its previous sibling, and its row
    of `drafts`; -1 for none. `uniforms`: N uniforms, as many as a walk can use; `greedy` uses none.
    `temperature`: above 0; `greedy` uses the best tokens only. Returns the last node of the path, the
    bonus, and the number of uniforms used; None if the rule would refuse a row or a child on the way.
    """
    size, width = logits.shape if logits.ndim == 2 else (0, 0)
    readable = logits.dtype in DTYPES and logits.is_cpu and size and width and logits.stride(1) == 1
    needed = 0 if kind == "greedy" else size
    fits = len(tokens) == size and len(uniforms) >= needed and plan.shape == (4, size)
    fits = fits and plan.dtype == torch.int32 and plan.is_contiguous() and plan.is_cpu
    if not (readable and fits and min(tokens) >= 0 and max(tokens[1:], default=0) < width):
        raise ValueError(
            f"cannot walk a tree with logits {tuple(logits.shape)} in {logits.dtype} and tokens {tokens}"
        )
    rows = int(plan.numpy()[3].max()) + 1 if kind in ("rrs", "rrsw") else 0
    if rows and not _fits(drafts, rows, width):
        drafts_given = None if drafts is None else f"{tuple(drafts.shape)} in {drafts.dtype}"
        raise ValueError(
            f"cannot walk a tree by {kind} with drafts {drafts_given}: {rows} rows of {width} tokens in "
            "float32 are needed"
        )
    if not rows:
        drafts = None
    ids = torch.tensor(tokens, dtype=torch.long, device="cpu")
    uniform_tensor = torch.tensor(uniforms, dtype=torch.float64, device="cpu")
    verdict = torch.empty(3, dtype=torch.long, device="cpu")
    held_call(
        "treespec_walked_tree",
        (logits, drafts, ids, plan, uniform_tensor, verdict),
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


def _fits(drafts: Tensor | None, rows: int, width: int) -> bool:
    """Whether the kernel can read these rows of drafts."""
    if drafts is None or drafts.dtype != torch.float32 or not drafts.is_cpu or drafts.ndim != 2:
        return False
    return drafts.shape[1] == width and drafts.stride(1) == 1 and len(drafts) >= rows
