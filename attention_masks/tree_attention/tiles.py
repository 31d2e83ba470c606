"""Which tile the kernel takes, and into how many splits it cuts the keys: static, by size.

The table is small on purpose. Nothing in it is timed at run time; `tuning` can replace an entry with what
was fastest on the machine at hand. Every entry is compiled ahead of time for three GPU generations in the
tests, where it must not spill and must fit their shared memory.
"""

from typing import NamedTuple

from attention_masks.errors import Unsupported

__all__ = [
    "HEAD_DIMS",
    "LARGEST_HEAD_DIM",
    "Tile",
    "block_dim",
    "choices",
    "row_class",
    "splits",
    "tile",
]

HEAD_DIMS = (64, 80, 96, 128, 256)
"""Head dimensions whose tiles are compiled ahead of time. Others up to the largest are padded likewise."""

LARGEST_HEAD_DIM = 256

MIN_CHUNK = 256
"""Keys of a split at least, as in the kernel: shorter ones cost more in partial sums than they spread."""


START_IN_KEYS = 256
"""What a program does besides reading keys, in keys: an assumption, not a measurement."""


class Tile(NamedTuple):
    """Shape of a program: query rows, keys of one step, warps, and stages of the load pipeline."""

    block_m: int
    block_n: int
    warps: int
    stages: int


# (bytes of an element, class of rows, padded head dimension) -> tile. Hopper's wgmma wants 64 rows for four
# warps. Elements of four bytes are multiplied exactly (no TF32), in registers, so their tiles are small.
TABLE = {
    (2, 16, 64): Tile(16, 64, 4, 4),
    (2, 32, 64): Tile(32, 64, 4, 4),
    (2, 64, 64): Tile(64, 64, 4, 3),
    (2, 128, 64): Tile(128, 64, 8, 3),
    (2, 16, 128): Tile(16, 64, 4, 3),
    (2, 32, 128): Tile(32, 64, 4, 3),
    (2, 64, 128): Tile(64, 64, 4, 3),
    (2, 128, 128): Tile(128, 64, 8, 3),
    (2, 16, 256): Tile(16, 32, 4, 3),
    (2, 32, 256): Tile(32, 32, 4, 3),
    (2, 64, 256): Tile(64, 32, 4, 2),
    (2, 128, 256): Tile(128, 32, 8, 2),
    (4, 16, 64): Tile(16, 16, 4, 2),
    (4, 16, 128): Tile(32, 16, 8, 2),
    (4, 16, 256): Tile(16, 16, 4, 2),
}

# Where these would spill: Ampere keeps accumulators in fewer registers, and Blackwell's tcgen05 stages
# scores through them. Ampere's also stay below the 99 KiB of shared memory of consumer cards.
INSTEAD = {
    8: {
        (2, 64, 128): Tile(64, 32, 4, 3),
        (2, 128, 128): Tile(128, 32, 8, 3),
        (2, 64, 256): Tile(64, 32, 8, 2),
        (2, 128, 256): Tile(64, 32, 8, 2),
        (4, 16, 256): Tile(16, 16, 8, 1),
    },
    10: {
        (2, 64, 64): Tile(64, 32, 4, 3),
        (2, 128, 64): Tile(128, 32, 8, 2),
        (2, 64, 128): Tile(64, 32, 4, 3),
        (2, 128, 128): Tile(128, 32, 8, 3),
        (4, 16, 128): Tile(16, 16, 8, 2),
    },
}

INTERPRETED = Tile(64, 64, 4, 1)
"""For the interpreter, which takes its time for each operation, whatever its size."""


def block_dim(head_dim: int) -> int:
    """The head dimension padded to what a tile can have.

    Raises:
        Unsupported: above `LARGEST_HEAD_DIM`.
    """
    if head_dim > LARGEST_HEAD_DIM:
        raise Unsupported(
            f"impl='triton' has no tile for head_dim = {head_dim}: it goes up to {LARGEST_HEAD_DIM}; "
            "use impl='sdpa' or 'reference'"
        )
    return next(size for size in (16, 32, 64, 128, 256) if size >= head_dim)


def row_class(rows: int, itemsize: int) -> int:
    """The class of so many rows (nodes x heads of a group) in the table: the least that holds them."""
    if itemsize == 4:
        return 16
    return next((size for size in (16, 32, 64) if rows <= size), 128)


def tile(rows: int, head_dim: int, itemsize: int, generation: int) -> Tile:
    """The tile for a pass of so many rows.

    Args:
        rows: nodes x query heads that share a key head.
        head_dim: at most `LARGEST_HEAD_DIM`.
        itemsize: bytes of an element, 2 or 4.
        generation: major compute capability: 8 (Ampere, Ada), 9 (Hopper), 10 (Blackwell), 12 (its
            consumer cards, which compute as Ampere does).

    Raises:
        Unsupported: for other sizes.
    """
    if itemsize not in (2, 4):
        raise Unsupported(
            f"impl='triton' takes float16, bfloat16 and float32, not elements of {itemsize} bytes: "
            "use impl='reference'"
        )
    size = itemsize, row_class(rows, itemsize), max(64, block_dim(head_dim))
    return INSTEAD.get(8 if generation == 12 else generation, {}).get(size, TABLE[size])


def choices(generation: int) -> list[tuple[int, int, Tile]]:
    """Every tile for a GPU generation, with the bytes of an element and the padded head dimension."""
    entries = [(size[0], size[2], tile(size[1], size[2], size[0], generation)) for size in TABLE]
    return list(dict.fromkeys(entries))


def splits(keys: int, programs: int, tile: Tile, processors: int) -> int:
    """Into how many parts the keys are cut: so that the last program ends as early as it can.

    With s parts, `programs * s` programs run in waves of as many as fit on the device, and each reads
    `keys / s` keys, after a start that is taken to cost as much as `START_IN_KEYS` keys. The fewest parts
    with the least waves x keys are taken: more cost partial sums.

    Args:
        keys: at most so many are read.
        programs: of one split: blocks of rows x key heads x sequences.
        tile: of each program.
        processors: multiprocessors of the device.
    """
    resident = processors * (2 if tile.warps <= 4 else 1)  # by registers; see `ahead_of_time`
    most = max(1, min(-(-keys // MIN_CHUNK), 2 * resident // programs))
    return min(
        range(1, most + 1),
        key=lambda count: -(-programs * count // resident) * (_chunk(keys, count) + START_IN_KEYS),
    )


def _chunk(keys: int, count: int) -> int:
    """Keys of a part, as the kernel rounds them."""
    return -(-keys // (count * MIN_CHUNK)) * MIN_CHUNK
