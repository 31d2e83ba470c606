"""Drawings of `notebooks/masks.ipynb`: trees, masks, and the tiles of keys that the kernel reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from torch import Tensor

from attention_masks import Topology, TreePass
from attention_masks.tree_attention import Options
from attention_masks.tree_attention.tiles import MIN_CHUNK, Tile
from treespec.tree.pictures import layout

SKIPPED, UNMASKED, MASKED = range(3)


@dataclass(frozen=True, eq=False)
class TileMap:
    """Which tiles of keys each block of rows reads, and how.

    Attributes:
        kinds: `SKIPPED`, `UNMASKED` (loaded without a mask) or `MASKED` (bounds and intervals are checked
            for each key); one line per block of rows.
        split: the split of each tile of keys; -1 for tiles before the first split.
        tile: the tile shape of a program.
    """

    kinds: Int[Tensor, "blocks tiles"]
    split: Int[Tensor, " tiles"]
    tile: Tile


def tile_map(
    tree_pass: TreePass, group: int, tile: Tile, split_count: int, window: int | None = None
) -> TileMap:
    """Replicate the loops of `attend_split` (`attention_masks/tree_attention/triton_kernels.py`).

    The kernel does not report what it reads, so its index arithmetic is repeated here. Tests compare the
    result with masks and, by `observed_reads`, with the kernel.
    """
    rows, prefix, height, width = tree_pass.rows, tree_pass.prefix_len, tile.block_m, tile.block_n
    first = 0 if window is None else max(prefix - window + 1, 0) // width * width
    share = -(-(tree_pass.key_count - first) // split_count)
    chunk = -(-share // MIN_CHUNK) * MIN_CHUNK
    full = prefix // width * width
    blocks, tiles = -(-len(rows) * group // height), -(-tree_pass.key_count // width)
    kinds = torch.full((blocks, tiles), SKIPPED)
    split_of = torch.full((tiles,), -1)
    for split in range(split_count):
        begin = first + split * chunk
        split_of[begin // width : (begin + chunk) // width] = split
        for block, line in enumerate(kinds):
            last = max(rows[block * height // group : ((block + 1) * height - 1) // group + 1])
            stop = min(begin + chunk, prefix + last + 1)
            for start in range(begin, min(stop, full), width):
                line[start // width] = UNMASKED if window is None else MASKED
            for start in range(max(begin, full), stop, width):
                line[start // width] = MASKED
    return TileMap(kinds, split_of, tile)


def observed_reads(
    tree_pass: TreePass, group: int, tile: Tile, split_count: int, window: int | None = None
) -> Bool[Tensor, "blocks tiles"]:
    """Observe through Triton's interpreter which tiles of values the kernel reads.

    Value dimension t holds NaN at the last key of tile t, and zeros elsewhere. A weight of 0 times NaN is
    NaN, so output dimension t of a row is NaN if and only if its program read tile t, masked or not (as
    long as the row sees some key of that split: stage 2 skips splits of which it sees none).
    """
    from attention_masks.tree_attention.triton import triton

    keys, dim = tree_pass.key_count, 64
    tiles = -(-keys // tile.block_n)
    v = torch.zeros(1, 1, keys, dim)
    for t in range(tiles):
        v[0, 0, min((t + 1) * tile.block_n, keys) - 1, t] = math.nan
    q, k = torch.zeros(1, group, tree_pass.row_count, dim), torch.zeros(1, 1, keys, dim)
    options = Options(scale=1.0, window=window)
    out = triton(q, k, v, tree_pass, options, tile_choice=tile, split_count=split_count)
    lines = out[0].transpose(0, 1).flatten(0, 1)[:, :tiles].isnan()  # by node, then by head
    return torch.stack([block.any(dim=0) for block in lines.split(tile.block_m)])


def branches(tree: Topology) -> list[int]:
    """For each node, the child of the root above it, counted from 1; 0 for the root."""
    branch, count = [0], 0
    for parent in tree.parents[1:]:
        count += parent == 0
        branch.append(count if parent == 0 else branch[parent])
    return branch


def places(tree: Topology) -> list[float]:
    """Horizontal position of each node: leaves side by side, a parent centred over its children."""
    children: list[list[int]] = [[] for _ in tree.parents]
    for node, parent in enumerate(tree.parents[1:], start=1):
        children[parent].append(node)
    return [column for column, _ in layout(children)]


def draw_tree(axis: Axes, tree: Topology, colours: Sequence[str], labels: Sequence[str]) -> None:
    place = places(tree)
    for node, parent in enumerate(tree.parents):
        x, y = place[node], -tree.depths[node]
        if parent >= 0:
            axis.plot(
                [place[parent], x], [-tree.depths[parent], y], color="#9aa0a6", lw=1.2, zorder=1
            )
        axis.scatter(x, y, s=270, color=colours[node], zorder=2)
        axis.text(x, y, labels[node], ha="center", va="center_baseline", fontsize=8.5, color="white",
                  weight="bold", zorder=3)  # fmt: skip
    axis.set(xlim=(min(place) - 0.6, max(place) + 0.6), ylim=(-max(tree.depths) - 0.5, 0.5))
    axis.axis("off")


def draw_cells(
    axis: Axes, values: Int[Tensor, "lines columns"], colours: Sequence[str], gap: float = 0.8
) -> None:
    lines, columns = values.shape
    rgb = torch.tensor([to_rgb(colour) for colour in colours])
    axis.imshow(rgb[values.long()].numpy(), aspect="auto", interpolation="nearest")
    if gap:
        axis.hlines([y - 0.5 for y in range(1, lines)], -0.5, columns - 0.5, "white", lw=gap)
        axis.vlines([x - 0.5 for x in range(1, columns)], -0.5, lines - 0.5, "white", lw=gap)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
