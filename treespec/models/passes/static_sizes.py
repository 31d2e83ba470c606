"""The sizes of passes in fixed memory: few, so that few graphs are captured."""

from collections.abc import Iterable
from typing import NamedTuple

from attention_masks.tree_attention import ScatteredSize

BUCKET_STEP = 64
"""Buckets up to this size are powers of two; larger buckets are multiples of it."""


def bucket(size: int) -> int:
    """Number of nodes that a pass over `size` nodes is padded to.

    Up to 64 nodes, a pass costs about as much as reading the weights once, so doubling costs little. Beyond
    that, at most 63 nodes are padding.

    Example:
        >>> [bucket(size) for size in (1, 2, 3, 33, 64, 65, 129, 500)]
        [1, 2, 4, 64, 64, 128, 192, 512]
    """
    return (
        1 << (size - 1).bit_length()
        if size <= BUCKET_STEP
        else -(-size // BUCKET_STEP) * BUCKET_STEP
    )


class Size(NamedTuple):
    """The capacity of a pass.

    Args:
        rows: number of nodes that it runs.
        nodes: number of nodes of the tree so far, including those that it runs.
    """

    rows: int
    nodes: int


def size_of(first: int, count: int) -> Size:
    """The capacity of the pass that runs nodes first .. first + count - 1 of a tree.

    Nodes of earlier passes only add integers to copy, so their number is rounded up to a multiple of 64:
    this keeps the number of sizes small.

    Example:
        >>> size_of(0, 5), size_of(5, 3), size_of(70, 70)
        (Size(rows=8, nodes=8), Size(rows=4, nodes=64), Size(rows=128, nodes=192))
    """
    rows = bucket(count)
    return Size(rows, -(-(first + count) // BUCKET_STEP) * BUCKET_STEP if first else rows)


def most_sizes(nodes: int, parts: bool = False) -> int:
    """Number of sizes that static passes, and so captured graphs, can have.

    Args:
        nodes: nodes of the largest tree, including pending tokens that a drafter runs above its root.
        parts: whether trees are also run in parts, as drafters run them. This adds one size for each bucket
            of a part and each 64 nodes of the tree so far.

    Example:
        >>> most_sizes(1), most_sizes(64), most_sizes(512), most_sizes(64, parts=True)
        (1, 7, 14, 14)
    """
    last = bucket(nodes)
    buckets = (
        last.bit_length()
        if last <= BUCKET_STEP
        else BUCKET_STEP.bit_length() + last // BUCKET_STEP - 1
    )
    return buckets * (1 + -(-nodes // BUCKET_STEP)) if parts else buckets


def joined_size_of(texts: Iterable[tuple[int, int]], keys: int) -> ScatteredSize:
    """The capacity of the pass that runs nodes of several texts.

    Trees of one size give one size of a pass for each power of two of texts.

    Args:
        texts: for each text, the first node that is run and their number.
        keys: rows that are allocated for the largest cache.

    Example:
        >>> joined_size_of([(0, 5), (0, 7), (0, 1)], 300)
        ScatteredSize(texts=4, rows=16, nodes=8, keys=512)
        >>> joined_size_of([(5, 3), (0, 2)], 512)
        ScatteredSize(texts=2, rows=8, nodes=64, keys=512)
    """
    given = [*texts]
    largest = max((size_of(first, count) for first, count in given), key=lambda size: size.nodes)
    return ScatteredSize(
        1 << (len(given) - 1).bit_length(),
        bucket(sum(count for _, count in given)),
        largest.nodes,
        1 << (keys - 1).bit_length(),
    )
