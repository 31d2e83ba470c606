"""The tile of the kernel, the splits of the keys, and how they are merged: static choices by size.

The table is small on purpose, and nothing is timed at run time; `tuning` can replace an entry with the
tile that was fastest on the machine at hand. The tests compile every entry ahead of time for three GPU
generations: it must not spill and must fit their shared memory.

Few splits of few rows are merged by the program that ends last (`triton_kernels`), which saves the second
launch. So `planned` compares two kinds of plans: the table's tile with as many splits as `splits` finds,
merged by a second launch; and this tile or a smaller one with few splits, merged in place. Smaller tiles
give more programs that each have less to merge. They read the keys more often, from the cache: this pays
behind short prefixes only. The estimate that decides (`nanoseconds`) is made of figures of an H100.
Measured there with two launches, 16 nodes of heads 32/8/128: 12.9 us after 1k, 18.3 after 4k, 42.8 after
16k, in graphs of 25, 7 and 2 calls, to which the start of a graph adds some 14 us by a fit: 12.3, 16.3 and
36 us without it. Predicted, before the new plans ran on a GPU: 8.5, 15 and 35 us.

On an H100 (bfloat16, heads 32/8/128, 4, 16 and 64 nodes, 8 or 9 tiles each), the table's tile took at most
3 % longer than the fastest one after prefixes of 4k to 64k, and 9 % at 1k.
"""

from functools import lru_cache
from typing import NamedTuple

from attention_masks.errors import Unsupported

HEAD_DIMS = (64, 80, 96, 128, 256)
"""Head dimensions whose tiles are compiled ahead of time. Others, up to the largest, are padded too."""

LARGEST_HEAD_DIM = 256

MIN_CHUNK = 256
"""Smallest number of keys of a split, as in the kernel: the partial sums of shorter ones cost too much."""


FINE_CHUNK = 64
"""Splits that are merged in place are multiples of this many keys: a tile."""

# Figures of an H100 for `nanoseconds`, from its data sheet and from the times of two launches.
SHARE = 25.4
"""Bytes that each multiprocessor reads per nanosecond if all of them read at once: 3.35 TB/s over 132."""

OF_BANDWIDTH = 0.9
"""The part of it that the kernel reached between 64k and 128k keys."""

ALONE = 1.5
"""How many shares one multiprocessor reads while others are idle; assumed: 64 KiB in flight, 1.7 us."""

CACHE = 1.7
"""How many times as fast keys are read again by other blocks of rows, from the L2 cache; assumed."""

COMPUTE_NS = {16: 6.0, 32: 8.0, 64: 13.0, 128: 19.4}
"""Time of a program for one key of dimension 128, by its rows: 128 rows measured, the others assumed."""

SECOND_LAUNCH_NS, SPLIT_NS, COUNTING_NS = 3500.0, 100.0, 1000.0
"""Time of a second launch with its merge, of each split there, and of counting in place; assumed."""

MERGE_IN_KEYS = 20
"""Cost of one more split, as the number of keys that a program reads in that time.

Its partial sums are written, and read by the merge. Fitted to 400 times on an H100 (4 to 64 nodes of heads
32/8/128, prefixes from 1k to 64k).
"""


MOST_MERGED_IN_PLACE = 256
"""Largest number of rows x splits that a program merges alone. More take longer than a second launch."""

COUNTED = 4096
"""Largest number of blocks of rows x key heads x sequences that are merged in place: each has a counter."""


GRAIN_BITS = 8
"""Plans are made for numbers of keys of so many binary digits, rounded up.

In 1,500 random sizes of 512 to 150,000 keys, such a plan was estimated to take at most 0.5 % longer than
the one for the number itself; with 4 digits up to 21 %.
"""


class Tile(NamedTuple):
    """Shape of a program: query rows, keys per step, warps, and stages of the load pipeline."""

    block_m: int
    block_n: int
    warps: int
    stages: int


# (bytes per element, class of rows, padded head dimension) -> tile. Hopper's wgmma needs 64 rows for four
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

# Replacements where the tiles above would spill: Ampere keeps accumulators in fewer registers, and
# Blackwell's tcgen05 stages scores through registers. Ampere's tiles also stay below the 99 KiB of shared
# memory of consumer cards.
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

FURTHER = {9: {(2, 128): (Tile(128, 128, 8, 2), Tile(128, 128, 8, 3), Tile(128, 32, 4, 3))}}
"""Tiles that no measurement has chosen yet, for large trees, by generation: `tuning` tries them.

128 rows and 128 keys of dimension 128 take some 4,360 clocks of an H100 by `COMPUTE_NS`. Of these, the
products need 2,048, exponentials 1,024 and other arithmetic some 830, now 700, and nothing overlaps: the
warps of a program meet at barriers. With 128 keys a step, sums are rescaled half as often: 580 and fewer
barriers, 3,900 clocks in all. Two programs with 4 warps on one multiprocessor could overlap, one's
exponentials with the other's products, at the price of more rescaling: at best some 2,500 clocks. Blocks
of 256 rows would spill, and save only reading, which is not the limit here.
"""

INTERPRETED = Tile(64, 64, 4, 1)
"""Large tile for the interpreter, whose time depends on the number of operations, not on their size."""


def block_dim(head_dim: int) -> int:
    """The head dimension, padded to one that a tile can have."""
    if head_dim > LARGEST_HEAD_DIM:
        raise Unsupported(
            f"impl='triton' has no tile for head_dim = {head_dim}: it goes up to {LARGEST_HEAD_DIM}; "
            "use impl='sdpa' or 'reference'"
        )
    return next(size for size in (16, 32, 64, 128, 256) if size >= head_dim)


def row_class(rows: int, itemsize: int) -> int:
    """The table's class for a number of rows (nodes x heads of a group): the smallest that holds them."""
    if itemsize == 4:
        return 16
    return next((size for size in (16, 32, 64) if rows <= size), 128)


def tile(rows: int, head_dim: int, itemsize: int, generation: int) -> Tile:
    """The tile for a pass with this number of rows.

    `rows`: nodes x query heads that share a key head. `head_dim`: at most `LARGEST_HEAD_DIM`. `itemsize`:
    bytes per element, 2 or 4. `generation`: major compute capability: 8 (Ampere, Ada), 9 (Hopper), 10
    (Blackwell), 12 (Blackwell's consumer cards, which compute as Ampere does).
    """
    if itemsize not in (2, 4):
        raise Unsupported(
            f"impl='triton' takes float16, bfloat16 and float32, not elements of {itemsize} bytes: "
            "use impl='reference'"
        )
    size = itemsize, row_class(rows, itemsize), max(64, block_dim(head_dim))
    return INSTEAD.get(8 if generation == 12 else generation, {}).get(size, TABLE[size])


def merges_in_place(shape: Tile, generation: int) -> bool:
    """Whether splits can be merged in place; with 128 rows this spills on Blackwell, and with 4 warps."""
    return shape.block_m < 128 or (generation != 10 and shape.warps > 4)


def choices(generation: int) -> list[tuple[int, int, Tile]]:
    """Every tile of the table for a GPU generation, with bytes per element and padded head dimension."""
    entries = [(size[0], size[2], tile(size[1], size[2], size[0], generation)) for size in TABLE]
    return list(dict.fromkeys(entries))


class Plan(NamedTuple):
    """How a call runs.

    Args:
        tile: shape of a program.
        splits: number of splits of the keys.
        in_place: whether the last program of a block merges its splits, so that there is one launch.
    """

    tile: Tile
    splits: int
    in_place: bool

    @property
    def chunk(self) -> int:
        """The splits are multiples of this many keys."""
        return max(self.tile.block_n, FINE_CHUNK) if self.in_place else MIN_CHUNK


def planned(
    rows: int,
    keys: int,
    columns: int,
    head_dim: int,
    itemsize: int,
    processors: int,
    generation: int,
    only: Tile | None = None,
) -> Plan:
    """The plan of least estimated time.

    `rows`: nodes x query heads that share a key head. `keys`: slots of the longest sequence. `columns`:
    key heads x sequences. `processors`: number of multiprocessors. `only`: the tile, if it was measured.
    For the others see `tile`.
    """
    # Plans for nearly as many keys differ little, and a text has one more at every step.
    grain = max(FINE_CHUNK, 1 << max(keys.bit_length() - GRAIN_BITS, 0))
    about = -(-keys // grain) * grain
    return _planned(rows, about, columns, head_dim, itemsize, processors, generation, only)


@lru_cache(maxsize=1024)
def _planned(
    rows: int,
    keys: int,
    columns: int,
    head_dim: int,
    itemsize: int,
    processors: int,
    generation: int,
    only: Tile | None,
) -> Plan:
    usual = tile(rows, head_dim, itemsize, generation)
    tiles = [only or usual]
    if only is None and itemsize == 2:
        smaller = (tile(count, head_dim, itemsize, generation) for count in (64, 32, 16))
        tiles += [shape for shape in smaller if shape.block_m < usual.block_m]
    blocks = -(-rows // tiles[0].block_m)
    plans = [Plan(tiles[0], splits(keys, blocks * columns, tiles[0], processors), False)]
    for shape in tiles:
        counters = -(-rows // shape.block_m) * columns
        if counters <= COUNTED and merges_in_place(shape, generation):
            most = min(MOST_MERGED_IN_PLACE // shape.block_m, -(-keys // FINE_CHUNK))
            plans += [Plan(shape, count, count > 1) for count in range(1, most + 1)]
    size = rows, keys, columns, head_dim, itemsize, processors
    return min(plans, key=lambda plan: nanoseconds(plan, *size))


def nanoseconds(
    plan: Plan, rows: int, keys: int, columns: int, head_dim: int, itemsize: int, processors: int
) -> float:
    """Estimated time of a call on an H100, without what all plans share."""
    (block_m, *_), count, in_place = plan
    chunk = -(-keys // (count * plan.chunk)) * plan.chunk
    used = -(-keys // chunk)
    blocks = -(-rows // block_m)
    turns = -(-blocks * columns * used // processors)  # programs on the busiest multiprocessor
    shares = keys * columns / processors
    reading = max(shares / OF_BANDWIDTH, blocks * shares / CACHE, chunk * turns / ALONE)
    reading *= 2 * head_dim * itemsize / SHARE
    computing = COMPUTE_NS[block_m] * max(64, block_dim(head_dim)) / 128 * chunk * turns
    merging = 0.0
    if count > 1:
        merging = SECOND_LAUNCH_NS + SPLIT_NS * count
    if in_place:
        merging = COUNTING_NS + block_m * head_dim * 4 * count / (ALONE * SHARE)
    return max(reading, computing) + merging


@lru_cache(maxsize=1024)
def splits(keys: int, programs: int, tile: Tile, processors: int) -> int:
    """The number of splits of the keys with which the last program ends earliest.

    With s splits, `programs * s` programs run in waves of as many as fit on the device. One program for
    each multiprocessor takes the whole bandwidth of the device, so more of them are slower in proportion.
    Every split adds partial sums (`MERGE_IN_KEYS`). Chooses the smallest s of least cost.

    `programs`: programs per split: blocks of rows x key heads x sequences.
    """
    resident = processors * (2 if tile.warps <= 4 else 1)  # by registers; see `ahead_of_time`
    max_splits = max(1, min(-(-keys // MIN_CHUNK), 2 * resident // programs))

    def cost(count: int) -> float:
        chunk = _chunk(keys, count)
        used = -(-keys // chunk)  # chunks are rounded up, so that the last splits may have no keys
        waves, rest = divmod(programs * used, resident)
        full = resident / processors
        shared = waves * full + (max(1.0, rest / processors) if rest else 0.0)
        return chunk * shared + MERGE_IN_KEYS * count

    return min(range(1, max_splits + 1), key=cost)


def _chunk(keys: int, count: int) -> int:
    """Number of keys of a split, rounded as in the kernel."""
    return -(-keys // (count * MIN_CHUNK)) * MIN_CHUNK
