"""Tiles measured on the GPU at hand instead of taken from the table; opt-in.

    >>> from attention_masks.tree_attention import tuning
    >>> tuning.enable("tiles.json")  # doctest: +SKIP

From then on, the first call with a new size (class of rows, head dimension, dtype, power of two of keys)
times every candidate, about a second each with its compilation, and writes the fastest to the file for
later runs. Choices apply only to the device and the Triton version that they were measured with.
"""

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_masks.errors import InvalidInput, Unavailable
from attention_masks.tree_attention.tiles import FURTHER, TABLE, Tile, block_dim, row_class, tile


class Size(NamedTuple):
    """The key of a choice: calls of the same size share it."""

    device: str
    itemsize: int
    rows: int
    head_dim: int
    keys: int

    @classmethod
    def of(cls, device: str, itemsize: int, rows: int, head_dim: int, keys: int) -> "Size":
        """The size of a call: rows rounded up to their class, keys to a power of two."""
        rounded_keys = 1 << max(0, keys - 1).bit_length()
        return cls(device, itemsize, row_class(rows, itemsize), head_dim, rounded_keys)


class TileFile:
    """The tiles chosen so far, stored in a JSON file.

    `path`: path of the file, which need not exist. `made_with`: the Triton version that the choices are
    valid for; those of other versions are dropped.
    """

    def __init__(self, path: Path, made_with: str) -> None:
        self.path, self.made_with = path, made_with
        self.chosen: dict[Size, Tile] = {}
        try:
            content = json.loads(path.read_text())
            if content["triton"] == made_with:
                self.chosen = {Size(*size): Tile(*shape) for size, shape in content["tiles"]}
        except FileNotFoundError:
            return
        except OSError as error:
            raise InvalidInput(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError):
            raise InvalidInput(
                f"{path} is not a file of tiles, or it is damaged: delete it to tune again"
            ) from None

    def tile(
        self, size: Size, tiles: Iterable[Tile], seconds: Callable[[Tile], float]
    ) -> Tile | None:
        """The tile for a size, measured if the size is new; None if no candidate runs."""
        if size not in self.chosen:
            times = {shape: seconds(shape) for shape in tiles}
            best = min(times, key=lambda shape: times[shape])
            if math.isinf(times[best]):
                return None
            self.chosen[size] = best
            self._save()
        return self.chosen[size]

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tiles = [[list(size), list(shape)] for size, shape in self.chosen.items()]
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"triton": self.made_with, "tiles": tiles}, indent=1))
        temporary.replace(self.path)


_file: TileFile | None = None


def enable(path: str | Path = "~/.cache/treespec/tiles.json") -> None:
    """Measure tiles from now on, in this process, and store them in this file."""
    global _file
    if not torch.cuda.is_available():
        raise Unavailable("tiles are measured on a CUDA device, and there is none")
    try:
        from triton import __version__ as version
    except ImportError as missing:
        raise Unavailable(f"tuning needs Triton: pip install triton ({missing})") from None
    _file = TileFile(Path(path).expanduser(), version)


def disable() -> None:
    """Go back to the table."""
    global _file
    _file = None


def candidates(itemsize: int, head_dim: int, generation: int) -> list[Tile]:
    """The tiles to try: those of all classes of rows of this head dimension, neighbours, and `FURTHER`."""
    padded_dim = max(64, block_dim(head_dim))
    tiles = [*FURTHER.get(generation, {}).get((itemsize, padded_dim), ())]
    for size, rows, dim in TABLE:
        if (size, dim) == (itemsize, padded_dim):
            shape = tile(rows, head_dim, itemsize, generation)
            tiles += [shape, shape._replace(stages=shape.stages + 1)]
            if shape.stages > 1:
                tiles.append(shape._replace(stages=shape.stages - 1))
            if shape.block_n > 16:
                tiles.append(shape._replace(block_n=shape.block_n // 2))
            if shape.block_n < 128:
                tiles.append(shape._replace(block_n=shape.block_n * 2))
    return list(dict.fromkeys(tiles))


def tuned(
    q: Tensor, rows: int, keys: int, generation: int, run: Callable[[Tile], object]
) -> Tile | None:
    """The measured tile for a call; None if tuning is off, or for a new size while a graph is captured.

    `rows`: nodes x query heads that share a key head.
    """
    if _file is None:
        return None
    device = torch.cuda.get_device_name(q.device)
    size = Size.of(device, q.element_size(), rows, q.shape[-1], keys)
    if size in _file.chosen:
        return _file.chosen[size]
    if torch.cuda.is_current_stream_capturing():
        return None
    tiles = candidates(size.itemsize, size.head_dim, generation)
    return _file.tile(size, tiles, lambda shape: _seconds(shape, run))


def _seconds(shape: Tile, run: Callable[[Tile], object]) -> float:
    """Time of the fastest of several runs on the device's clock; infinite if the tile does not fit.

    The cache is overwritten before each run, which also gives the host time to launch it.
    """
    from triton.errors import TritonError
    from triton.testing import do_bench

    try:
        milliseconds: Any = do_bench(lambda: run(shape), warmup=10, rep=30, return_mode="min")
    except TritonError:  # out of shared memory or registers
        return math.inf
    return milliseconds / 1000
