"""Slow, obvious implementations of what this package computes, to test masks and kernels against.

None of them reads a `Topology`: they follow parents upwards, node by node and head by head.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["assert_accurate", "plain_attention", "visible_by_walk"]


def visible_by_walk(
    parents: Sequence[int],
    prefix_len: int,
    *,
    rows: Sequence[int] | None = None,
    window: int | None = None,
) -> Bool[Tensor, "rows prefix_and_nodes"]:
    """The dense mask, computed by walking from each row to the root.

    Args:
        parents: a valid parent array.
        prefix_len: number of keys before node 0.
        rows: the queried nodes; all of them by default.
        window: a key that is `window` or more steps of the walk from the row is hidden.

    Returns:
        Mask `[len(rows), prefix_len + len(parents)]`, True is visible.
    """
    rows = range(len(parents)) if rows is None else rows
    mask = torch.zeros(len(rows), prefix_len + len(parents), dtype=torch.bool)
    for line, row in zip(mask, rows, strict=True):
        seen, node = [], row
        while node != -1:
            seen.append(prefix_len + node)
            node = parents[node]
        seen += range(prefix_len - 1, -1, -1)
        line[seen[:window]] = True
    return mask


def plain_attention(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "batch kv_heads slots head_dim"],
    v: Float[Tensor, "batch kv_heads slots head_dim"],
    visible: Bool[Tensor, "rows keys"],
    *,
    dtype: torch.dtype,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " q_heads"] | None = None,
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """Attention, one row at a time over the keys that it sees, every operation rounded to `dtype`.

    In float64 it is the ground truth for kernels. In a kernel's own dtype it shows the usual error of
    that dtype. Hidden keys do not enter at all, so there is no mask to get wrong.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q, dtype=dtype)
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            keys, values = k[batch, head // group].to(dtype), v[batch, head // group].to(dtype)
            for row, line in enumerate(visible):
                seen = line.nonzero()[:, 0]
                scores = keys[seen] @ q[batch, head, row].to(dtype) * scale
                if softcap is not None:
                    scores = torch.tanh(scores / softcap) * softcap
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head].to(dtype)[None]])
                out[batch, head, row] = torch.softmax(scores, dim=0)[: len(seen)] @ values[seen]
    return out


def assert_accurate(
    out: Float[Tensor, "batch q_heads rows head_dim"],
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "batch kv_heads slots head_dim"],
    v: Float[Tensor, "batch kv_heads slots head_dim"],
    visible: Bool[Tensor, "rows keys"],
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " q_heads"] | None = None,
) -> None:
    """Assert that an attention output is about as close to the truth as its dtype allows.

    The truth is `plain_attention` in float64. The largest error may be twice that of
    `plain_attention` in q's dtype on the same case, plus the effect of one rounding: of the output in
    q's dtype, and of the largest score in float32 (a score off by e makes its weight off by e times
    itself). The bound thus follows from the case, and no tolerance is tuned.

    Args:
        out: output of an implementation for the other arguments, in q's dtype.
        q: queries.
        k: keys; hidden ones may hold NaN.
        v: values; hidden ones may hold NaN.
        visible: the dense mask over the first `visible.shape[1]` slots.
        scale: see `tree_attention`.
        softcap: see `tree_attention`.
        sinks: see `tree_attention`.

    Raises:
        AssertionError: with both errors and the unit of rounding.
    """
    assert out.dtype == q.dtype, f"output is {out.dtype}, queries {q.dtype}"
    truth, plain = (
        plain_attention(q, k, v, visible, dtype=dtype, scale=scale, softcap=softcap, sinks=sinks)
        for dtype in (torch.float64, q.dtype)
    )
    seen = visible.any(dim=0).nonzero()[:, 0]
    seen_keys = k[:, :, seen].double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q.double() @ seen_keys.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    eps = torch.finfo(q.dtype).eps + torch.finfo(torch.float32).eps * scores.abs().max().item()
    unit = eps * v[:, :, seen].abs().max().item()
    usual = (plain.double() - truth).abs().max().item()
    error = (out.double() - truth).abs().max().item()
    assert error <= 2 * usual + unit, f"error {error:.3g}, usual {usual:.3g}, unit {unit:.3g}"
