"""Masks of token trees packed into bits: 32 keys per word, and the layouts of two engines.

Bit i of a word or byte is its key i, least significant bit first; 1 is visible. Nodes are in node order
and **the root counts**: it is key 0 and row 0 of every form here, as in the engines.

- `packed_rows`: 32 nodes per int32 word, one line for each row; for kernels that cannot use intervals.
- `flashinfer_mask`: the bytes of FlashInfer's `packed_custom_mask`, prefix and nodes.
- `tensorrt_llm_mask`: the words of TensorRT-LLM's `spec_decoding_packed_mask`, nodes only.

The layouts were read from the engines' sources, in the files that the docstrings name; nothing here
runs an engine. Not covered: sinks, and windows in TensorRT-LLM's form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int32, Integer, UInt8
from torch import Tensor
from torch.nn.functional import pad

from attention_masks._inputs import checked_integer, checked_window
from attention_masks.dense import dense_mask
from attention_masks.errors import InvalidInput
from attention_masks.ragged import checked_batch
from attention_masks.topology import Topology


def packed_rows(
    topology: Topology, *, rows: Sequence[int] | None = None, window: int | None = None
) -> Int32[Tensor, "rows words"]:
    """The nodes that each row sees, 32 per word: bit `j % 32` of word `j // 32` is node j.

    The prefix is not included; without a window every row sees all of it. A window is over positions:
    it hides nodes `window` or more levels above the row, and prefix keys before
    `prefix_len + depth - window + 1`, which follow from the row's depth.

    Args:
        topology: tree of the nodes; the words are on its device.
        rows: the queried nodes, in any order; all of them by default.
        window: nodes that are `window` or more positions before a row are hidden from it.

    Returns:
        Words `[len(rows), ceil(topology.size / 32)]`; bits after the last node are 0.

    Raises:
        InvalidInput: if `rows` or `window` is out of range.

    Example:
        >>> from attention_masks import topology
        >>> [f"{word:04b}" for [word] in packed_rows(topology([-1, 0, 0, 1])).tolist()]
        ['0001', '0011', '0101', '1011']
    """
    return _packed(dense_mask(topology, 0, rows=rows, window=window), torch.int32)


@dataclass(frozen=True, eq=False)
class FlashInferMask:
    """A mask for FlashInfer's batch prefill wrappers.

    Attributes:
        packed_custom_mask: the bits of all requests, each padded to whole bytes.
        mask_indptr: first byte of each request, then the number of bytes; read by the kernel.
        bit_indptr: first bit of each request without padding, then the number of bits; belongs to the
            unpacked, flat `custom_mask`.
    """

    packed_custom_mask: UInt8[Tensor, " bytes"]
    mask_indptr: Int32[Tensor, " requests_and_one"]
    bit_indptr: Int32[Tensor, " requests_and_one"]


def flashinfer_mask(
    trees: Sequence[Topology],
    prefix_lens: Sequence[int],
    *,
    rows: Sequence[Sequence[int] | None] | None = None,
    window: int | None = None,
) -> FlashInferMask:
    """The mask of a batch in the layout of FlashInfer's `packed_custom_mask`.

    The mask `[qo_len, kv_len]` of a request is flattened, rows one after another without padding, least
    significant bit first, and padded to whole bytes at its end. Its keys are the prefix, then the nodes;
    qo_len is the number of queried nodes, the root included. (flashinfer: `segment_packbits` in
    `flashinfer/quantization.py`, called with `bitorder="little"` by `plan` in `flashinfer/prefill.py`;
    read back by `LogitsMask` in `include/flashinfer/attention/variants.cuh`.)

    Caution: `plan`, called with `packed_custom_mask` alone, computes `mask_indptr` in bits, where its
    kernel reads bytes (flashinfer pull request 2201, open in its last stored copy); this is correct for
    one request only. FlashInfer's own `window_left` counts slots, not positions: leave it at -1.

    Args:
        trees: tree of the nodes whose keys are present, one for each request, all on one device.
        prefix_lens: number of cached keys before node 0, for each request.
        rows: the queried nodes of each request, or None for all its nodes; None queries all nodes of all.
        window: keys that are `window` or more positions before a row are hidden from it.

    Returns:
        Bytes and offsets, on the device of the trees.

    Raises:
        InvalidInput: if the lengths or the devices differ, or a value is out of range.

    Example:
        >>> from attention_masks import topology
        >>> mask = flashinfer_mask([topology([-1, 0, 0]), topology([-1])], [1, 2])
        >>> mask.packed_custom_mask.tolist(), mask.mask_indptr.tolist(), mask.bit_indptr.tolist()
        ([115, 11, 7], [0, 2, 3], [0, 12, 15])
    """
    batch, window = checked_batch(trees, prefix_lens, rows), checked_window(window)
    packed, bits, ends = [], [0], [0]
    for tree, prefix_len, nodes in batch:
        flat = dense_mask(tree, prefix_len, rows=nodes, window=window).flatten()
        packed.append(_packed(flat, torch.uint8))
        bits.append(bits[-1] + flat.shape[0])
        ends.append(ends[-1] + packed[-1].shape[0])
    offsets = torch.tensor([ends, bits], dtype=torch.int32, device=batch[0].tree.device)
    return FlashInferMask(torch.cat(packed), *offsets.unbind())


def tensorrt_llm_mask(
    trees: Sequence[Topology], max_tokens: int | None = None
) -> Int32[Tensor, "sequences max_tokens words"]:
    """The mask of a batch in the layout of TensorRT-LLM's `spec_decoding_packed_mask`.

    Bit `j % 32` of word `j // 32` of row i says whether node i sees node j. The prefix is visible to all
    rows and not included. **The root counts**, in rows and in bits: `max_tokens` is the engine's
    `max_draft_tokens + 1`, and a tree's size goes into `spec_decoding_generation_lengths`. (TensorRT-LLM:
    `spec_decoding_packed_mask` in `tensorrt_llm/_torch/attention_backend/trtllm.py`; `SpecDecParams` in
    `cpp/kernels/xqa/specDec.h`; the kernel `get_spec_decoding_packed_mask`, beside
    `convertSpecDecodingMaskToPackedMask.h`.)

    The shape here is that for trees of one size, and that of the engine's buffer. If the sizes differ,
    the engine's kernels expect the rows of all sequences one after another without padding, at the
    cumulative sums of the generation lengths:
    `torch.cat([words[: tree.size] for words, tree in zip(mask, trees)])`.

    There is no window: it would also hide prefix keys, which this form cannot express.

    Args:
        trees: one for each sequence, all on one device, with all nodes queried.
        max_tokens: rows of each sequence, the root included; the size of the largest tree by default.

    Returns:
        Words `[len(trees), max_tokens, ceil(max_tokens / 32)]`; rows after a tree's last node are 0.

    Raises:
        InvalidInput: if there is no tree, the devices differ, or a tree does not fit `max_tokens`.

    Example:
        >>> from attention_masks import topology
        >>> tensorrt_llm_mask([topology([-1, 0, 0]), topology([-1, 0])]).tolist()
        [[[1], [3], [5]], [[1], [3], [0]]]
    """
    batch = checked_batch(trees, [0] * len(trees), None)
    largest = max(tree.size for tree in trees)
    max_tokens = largest if max_tokens is None else checked_integer("max_tokens", max_tokens)
    if max_tokens < largest:
        i = next(i for i, tree in enumerate(trees) if tree.size > max_tokens)
        raise InvalidInput(
            f"max_tokens = {max_tokens}, but trees[{i}] has {trees[i].size} nodes with its root: "
            f"it must be at least {largest}"
        )
    shape = len(batch), max_tokens, -(-max_tokens // 32)
    mask = torch.zeros(shape, dtype=torch.int32, device=batch[0].tree.device)
    for lines, tree in zip(mask, trees, strict=True):
        words = packed_rows(tree)
        lines[: words.shape[0], : words.shape[1]] = words
    return mask


def unpacked(packed: Integer[Tensor, "*rows packs"], size: int) -> Bool[Tensor, "*rows bits"]:
    """Unpack the first `size` bits of words or bytes, least significant bit first.

    Args:
        packed: int32 or uint8.
        size: number of bits to unpack.

    Returns:
        Booleans `[..., size]`.

    Raises:
        InvalidInput: if there are fewer bits.

    Example:
        >>> unpacked(torch.tensor([[5], [3]], dtype=torch.int32), 3).int().tolist()
        [[1, 0, 1], [1, 1, 0]]
    """
    if packed.dtype not in (torch.int32, torch.uint8) or not packed.ndim:
        raise InvalidInput(
            f"packed is {packed.dtype} {list(packed.shape)}, but it must be rows of int32 or uint8"
        )
    size, width = checked_integer("size", size), torch.iinfo(packed.dtype).bits
    if not 0 <= size <= packed.shape[-1] * width:
        raise InvalidInput(
            f"size = {size}, but {packed.shape[-1]} elements of {packed.dtype} hold "
            f"0..{packed.shape[-1] * width} bits"
        )
    shifts = torch.arange(width, dtype=packed.dtype, device=packed.device)
    bits = (packed[..., None] >> shifts) & 1
    return bits.flatten(-2)[..., :size].bool()


def _packed(bits: Bool[Tensor, "*rows bits"], dtype: torch.dtype) -> Integer[Tensor, "*rows packs"]:
    """Pack the bits along the last dimension into numbers of `dtype`, least significant bit first."""
    width = torch.iinfo(dtype).bits
    bits = pad(bits, (0, -bits.shape[-1] % width)).unflatten(-1, (-1, width))
    shifts = torch.arange(width, dtype=dtype, device=bits.device)
    # One addend per bit, so nothing carries: the sign bit of an int32 is a bit like the others.
    return (bits.to(dtype) << shifts).sum(dim=-1, dtype=dtype)
