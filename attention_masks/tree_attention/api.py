"""`tree_attention` and `attend`, and the table of their implementations.

An implementation is a function with the signature of `Implementation`; it may rely on the checks of
`attend`. To add one, write it in a file of this folder and enter it in `IMPLEMENTATIONS`. Import
optional dependencies inside the function, and raise `Unavailable` if they are missing. An
implementation requested by name runs or raises: only `impl="auto"` chooses.
"""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, cast

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from attention_masks._inputs import checked_window
from attention_masks.errors import InvalidInput, Unsupported
from attention_masks.topology import Topology
from attention_masks.tree_attention.buffered_pass import BufferedPass
from attention_masks.tree_attention.checks import check_numbers, check_options, check_tensors
from attention_masks.tree_attention.flex_attention import flex
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.ragged_pass import RaggedPass
from attention_masks.tree_attention.reference import reference
from attention_masks.tree_attention.sdpa import sdpa
from attention_masks.tree_attention.tiles import LARGEST_HEAD_DIM
from attention_masks.tree_attention.tree_pass import AnyPass, TreePass
from attention_masks.tree_attention.triton import available, triton
from attention_masks.tree_attention.two_pass import two_pass

log = logging.getLogger("attention_masks")


class Implementation(Protocol):
    """Tree attention on checked inputs; raises `Unsupported` for options that it does not cover.

    All implementations but "triton" receive one tree at a time, and keys that are not in pages.
    """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, tree_pass: TreePass, options: Options, /
    ) -> Tensor:
        """Return the output `[batch, q_heads, rows, head_dim]` in q's dtype."""


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference,
    "sdpa": sdpa,
    "two_pass": two_pass,
    "flex": flex,
    "triton": triton,
}

LARGEST_TREE_ROWS = 1024
"""Up to this many rows `impl="auto"` takes the Triton kernel on CUDA; it is made for trees."""


ROWS_WITH_GRADIENTS = LARGEST_TREE_ROWS + 1
"""A row count that rules out the kernel: passed where gradients are needed, which the kernel lacks."""


def choose(
    device: torch.device | str = "cpu",
    rows: int = 1,
    *,
    head_dim: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    softcap: float | None = None,
    paged: bool = False,
) -> str:
    """The name of the implementation that `impl="auto"` takes; logged at its first use.

    On CUDA, "triton" if Triton is installed, the kernel has a tile, and there are at most 1024 rows; with
    pages for any number of rows, since only the kernel reads pages without copying them. Otherwise "sdpa",
    or "reference" with a softcap or pages.

    Args:
        device: device of q.
        rows: rows of q in each sequence.
        head_dim: head dimension of q.
        dtype: dtype of q.
        softcap: bound of the scores, None for no bound.
        paged: whether keys and values are in pages.
    """
    tiled = head_dim <= LARGEST_HEAD_DIM and dtype.itemsize <= 4
    few = rows <= LARGEST_TREE_ROWS
    return _choose(torch.device(device), tiled and (few or paged), softcap is not None or paged)


@lru_cache
def _choose(device: torch.device, for_kernel: bool, beyond_sdpa: bool) -> str:
    if device.type == "cuda" and for_kernel and available(device) is None:
        name = "triton"
    else:
        name = "reference" if beyond_sdpa else "sdpa"
    reasons = f"for_kernel={for_kernel}, beyond_sdpa={beyond_sdpa}"
    log.info("tree attention on %s (%s): impl='auto' takes '%s'", device, reasons, name)
    return name


def tree_attention(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "_ kv_heads slots head_dim"],
    v: Float[Tensor, "_ kv_heads slots head_dim"],
    topology: Topology | Sequence[Topology],
    prefix_len: int | Sequence[int],
    *,
    rows: Sequence[int] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Float[Tensor, " q_heads"] | None = None,
    block_table: Int32[Tensor, "batch blocks"] | None = None,
    impl: str = "auto",
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """Attention of tree nodes over a prefix and over their ancestors.

    Each queried node attends to the `prefix_len` keys before the tree, to itself and to its
    ancestors. Each call builds its mask: for several layers make one `TreePass` and call `attend`.

    Args:
        q: one query for each node of `rows`, in that order.
        k: keys. Slot j is prefix key j, slot `prefix_len + i` is node i; later slots are not used
            and may hold anything, NaN included.
        v: values, in the same slots.
        topology: tree of all nodes whose keys are present, from `attention_masks.topology(parents)`.
            One for all sequences, or one for each; the rows of smaller trees are then followed by
            padding, for which the output is 0.
        prefix_len: number of cached keys before node 0; one for all sequences, or one for each.
        rows: the nodes that q holds; all of them by default. A drafter that grows a tree level by
            level queries only its newest nodes.
        scale: factor on the scores, `head_dim ** -0.5` by default.
        softcap: bound of the scores, `softcap * tanh(score / softcap)`, applied before the mask.
        window: keys that are `window` or more positions before a row are hidden; a node's position is
            `prefix_len + depth`. The `sliding_window` of transformers.
        sinks: for each query head, one more score in the softmax, without a value: the `s_aux` of
            GPT-OSS.
        block_table: if given, k and v are `[pages, kv_heads, page, head_dim]`, and the table holds the
            page of each block of `page` slots of a sequence. Its numbers are checked on the CPU only,
            since checking on a device would wait; a number out of range reads foreign memory there.
        impl: "reference", "sdpa", "two_pass", "flex", "triton", or "auto" to let `choose` decide.

    Returns:
        Output in q's shape and dtype.

    Raises:
        InvalidInput: if shapes, dtypes, devices or numbers do not fit together.
        Unsupported: if `impl` does not cover an option (sdpa, two_pass: softcap; all but reference
            and triton: pages).
        Unavailable: if `impl` is not available.

    Not covered: dropout, ALiBi, keys and values of different head dimensions.

    Example:
        >>> from attention_masks import topology, tree_attention
        >>> tree = topology([-1, 0, 0, 1])
        >>> q = torch.randn(1, 8, tree.size, 16)  # eight heads of queries share two of keys
        >>> k, v = torch.randn(2, 1, 2, 100 + tree.size, 16)
        >>> out = tree_attention(q, k, v, tree, prefix_len=100)
        >>> out.shape
        torch.Size([1, 8, 4, 16])
        >>> newest = tree_attention(q[:, :, 3:], k, v, tree, prefix_len=100, rows=[3])
        >>> torch.allclose(newest, out[:, :, 3:], atol=1e-5)
        True
    """
    several = isinstance(prefix_len, Sequence) and not isinstance(prefix_len, str | bytes)
    if isinstance(topology, Topology) and not several:
        tree_pass: AnyPass = TreePass(topology, cast("int", prefix_len), rows)
    else:
        batch = q.shape[0] if q.ndim else 0
        if isinstance(topology, Topology):
            trees: Sequence[Topology] = [topology] * batch
        else:
            trees = topology
        lengths = list(cast("Sequence[int]", prefix_len if several else [prefix_len] * batch))
        if not len(trees) == len(lengths) == batch:
            raise InvalidInput(
                f"{len(trees)} trees and {len(lengths)} prefix lengths for a batch of {batch}: "
                "one for all, or one for each sequence"
            )
        pairs = zip(trees, lengths, strict=True)
        tree_pass = RaggedPass([TreePass(tree, length, rows) for tree, length in pairs])
    return attend(
        q,
        k,
        v,
        tree_pass,
        scale=scale,
        softcap=softcap,
        window=window,
        sinks=sinks,
        block_table=block_table,
        impl=impl,
    )


def attend(
    q: Float[Tensor, "batch q_heads rows head_dim"],
    k: Float[Tensor, "_ kv_heads slots head_dim"],
    v: Float[Tensor, "_ kv_heads slots head_dim"],
    tree_pass: AnyPass,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Float[Tensor, " q_heads"] | None = None,
    block_table: Int32[Tensor, "batch blocks"] | None = None,
    impl: str = "auto",
) -> Float[Tensor, "batch q_heads rows head_dim"]:
    """`tree_attention` with masks that the layers of a pass share.

    Args:
        q: one query for each row of `tree_pass`.
        k: keys, at least `tree_pass.key_count` slots.
        v: values, in the same slots.
        tree_pass: trees, prefixes, rows and the cached masks: a `TreePass` (one tree for every
            sequence) or a `RaggedPass` (one for each).
        scale: factor on the scores; for this and the following options see `tree_attention`.
        softcap: bound of the scores.
        window: width of the sliding window.
        sinks: one more score for each query head.
        block_table: pages of keys and values.
        impl: name of the implementation, or "auto".

    Returns:
        Output in q's shape and dtype.

    Raises:
        InvalidInput: if shapes, dtypes, devices or numbers do not fit together.
        Unsupported: if `impl` does not cover an option.
        Unavailable: if `impl` is not available.
    """
    check_numbers(scale, softcap)
    check_tensors(q, k, v, tree_pass, block_table)
    paged = block_table is not None
    name = impl
    if impl == "auto":
        differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        name = choose(
            q.device,
            ROWS_WITH_GRADIENTS if differentiable else tree_pass.row_count,
            head_dim=q.shape[-1],
            dtype=q.dtype,
            softcap=softcap,
            paged=paged,
        )
    if name not in IMPLEMENTATIONS:
        known = ", ".join(repr(known) for known in ("auto", *IMPLEMENTATIONS))
        raise InvalidInput(f"impl = {impl!r} is not known: it must be one of {known}")
    options = Options(
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
        window=checked_window(window),
        sinks=sinks,
        block_table=block_table,
    )
    check_options(q, options)
    if name == "triton":
        return triton(q, k, v, tree_pass, options)
    if isinstance(tree_pass, BufferedPass):
        raise Unsupported(f"impl='{name}' cannot read a tree from a buffer: use impl='triton'")
    if paged:
        if name != "reference":
            raise Unsupported(f"impl='{name}' cannot read pages: use impl='triton' or 'reference'")
        k, v = (_from_pages(pages, block_table, tree_pass) for pages in (k, v))
    call = IMPLEMENTATIONS[name]
    if isinstance(tree_pass, TreePass):
        return call(q, k, v, tree_pass, options)
    assert isinstance(tree_pass, RaggedPass)
    if tree_pass.batch == 1:
        return call(q, k, v, tree_pass.passes[0], options)
    out = torch.zeros_like(q)
    for i, own_pass in enumerate(tree_pass.passes):
        sequence, count = slice(i, i + 1), own_pass.row_count
        own_q = q[sequence, :, :count]
        out[sequence, :, :count] = call(own_q, k[sequence], v[sequence], own_pass, options)
    return out


def _from_pages(pages: Tensor, block_table: Tensor, tree_pass: AnyPass) -> Tensor:
    """Keys or values `[batch, kv_heads, slots, head_dim]`, copied out of the pages that are used.

    Entries of the table after a sequence's last page may hold anything.
    """
    counts = tree_pass.key_counts(len(block_table))
    page_size = pages.shape[2]
    table = block_table[:, : -(-tree_pass.key_count // page_size)].long()
    block_counts = torch.tensor([-(-count // page_size) for count in counts], device=table.device)
    in_use = torch.arange(table.shape[1], device=table.device) < block_counts[:, None]
    blocks = pages[torch.where(in_use, table, 0)]  # [batch, blocks, kv_heads, page, head_dim]
    return blocks.transpose(1, 2).flatten(2, 3)
