"""Attention of the nodes of several texts, each to the rows of its own cache (`joined_attention.cpp`)."""

import ctypes

import torch
from torch import Tensor

from treespec.kernels.build import held_call
from treespec.kernels.masked_attention import can_attend


@torch.library.custom_op("treespec::joined_attention", mutates_args=(), device_types="cpu")
def joined_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: Tensor,
    texts: Tensor,
    tree: Tensor,
    sinks: Tensor | None,
    layer: int,
    window: int,
    scale: float,
    softcap: float,
) -> Tensor:
    """Write keys and values to the caches of their texts, and attend to the rows there.

    Not checked: that the addresses are those of caches with room for the rows. So this is for passes that
    make the arguments themselves (`treespec.models.passes.joined_pass`).

    `query`: `[1, Hq, T, D]`. `key`, `value`: `[1, Hkv, T, D]` and `[1, Hkv, T, Dv]`, of the same dtype:
    float32, or bfloat16 with an even D. `places`: `[L, B, 4]` in int64, for each layer and text the
    addresses of its keys and values and the elements between two heads of each; rows are contiguous.
    `texts`: `[B, 5]` in int64, for each text its first row of the T, its number of rows, the node of the
    first of them, its committed rows, and its first node in `tree`. `tree`: `[3, N]` in int32, for the
    nodes of each text their depth-first ranks, the ends of their subtrees, and depths. `sinks`, `scale`,
    `softcap`: see `masked_attention`. `layer`: line of `places`. `window`: positions that are this far
    away or farther are hidden; 0 for no window.

    Returns:
        `[1, T, Hq, Dv]`.
    """
    _, heads, rows, dim = query.shape
    _, kv_heads, _, value_dim = value.shape
    fits = key.shape == (1, kv_heads, rows, dim) and value.shape[2] == rows
    fits = fits and heads % kv_heads == 0 and can_attend(dim, query.dtype)
    fits = fits and query.dtype == key.dtype == value.dtype
    fits = fits and places.dtype == texts.dtype == torch.int64 and tree.dtype == torch.int32
    fits = fits and places.shape[1:] == (len(texts), 4) and texts.shape[1:] == (5,)
    if not (fits and len(tree) == 3 and 0 <= layer < len(places)):
        raise ValueError(
            f"queries {tuple(query.shape)} in {query.dtype} of {len(texts)} texts do not fit keys "
            f"{tuple(key.shape)}, places {tuple(places.shape)} and trees {tuple(tree.shape)}"
        )
    out = query.new_empty(1, rows, heads, value_dim)
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    sizes = (heads, kv_heads, len(texts), tree.shape[1], dim, value_dim, window)
    strides = [x.stride(i) for x in (query, key, value) for i in (1, 2)]
    held_call(
        "treespec_joined_attention",
        (query, key, value, places[layer].contiguous(), texts, tree.contiguous(), sinks, out),
        (ctypes.c_int64 * 7)(*sizes),
        (ctypes.c_int64 * 6)(*strides),
        *map(ctypes.c_double, (scale, softcap)),
        ctypes.c_int32(out.dtype == torch.bfloat16),
    )()
    return out


@joined_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: Tensor,
    texts: Tensor,
    tree: Tensor,
    sinks: Tensor | None,
    layer: int,
    window: int,
    scale: float,
    softcap: float,
) -> Tensor:
    _, heads, rows, _ = query.shape
    return query.new_empty(1, rows, heads, value.shape[3])
