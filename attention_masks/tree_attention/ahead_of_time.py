"""Compile every shipped tile for three generations of GPUs, which need not be present.

`python -m attention_masks.tree_attention.ahead_of_time` prints registers, spills, shared memory and tensor
instructions of each kernel. It fails if one spills, does not fit, or does not use the tensor cores that its
tile is shaped for. `--all` combines every option with every tile and takes some minutes.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from attention_masks.compiling import Compiled, compile_kernel, table
from attention_masks.tree_attention.tiles import (
    FINE_CHUNK,
    FURTHER,
    HEAD_DIMS,
    MIN_CHUNK,
    Tile,
    block_dim,
    choices,
    merges_in_place,
)
from attention_masks.tree_attention.tiles import tile as tile_of
from attention_masks.tree_attention.triton import MERGED

TARGETS = (80, 90, 100)
GROUP = 8
"""Does not change the contents of a tile: rows are divided by it."""

IN_PLACE = "in place"
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"WINDOW": True},
    "softcap, window": {"SOFTCAP": True, "WINDOW": True},
    "sinks, window": {"SINKS": True, "WINDOW": True},
    "pages": {"PAGE": 16},
    IN_PLACE: {"IN_PLACE": True, "CHUNK": FINE_CHUNK},
}
USED = {
    64: ("sinks, window",),  # GPT-OSS
    80: ("plain",),
    96: ("plain",),
    128: ("window", "pages"),  # Mistral, engines
    256: ("softcap, window",),  # Gemma
}
"""Options that models combine with each head dimension."""


class Variant(NamedTuple):
    """One specialisation of stage 1."""

    capability: int
    itemsize: int
    head_dim: int
    tile: Tile
    options: str


def variants(everything: bool = False) -> Iterator[Variant]:
    """Yield the variants to compile.

    By default each tile with the plain options and with its splits merged in place, and Hopper's largest
    tiles, which spill first, also with the options that models use. Tiles that `tuning` alone uses
    (`FURTHER`) with the plain options.

    `everything`: yield each tile with every option and every head dimension that it serves.
    """
    for capability in TARGETS:
        tiles = choices(capability // 10)
        largest = {
            (size, dim): tile for size, dim, tile in tiles
        }  # the last of each is the largest
        for itemsize, block_d, tile in tiles:
            for head_dim in HEAD_DIMS:
                if max(64, block_dim(head_dim)) != block_d:
                    continue
                options = ["plain"] if head_dim == block_d else []
                if options and merges_in_place(tile, capability // 10):
                    options.append(IN_PLACE)
                if capability == 90 and itemsize == 2 and tile == largest[itemsize, block_d]:
                    options += USED[head_dim]
                every = [name for name in OPTIONS if name != IN_PLACE or name in options]
                for name in every if everything else options:
                    yield Variant(capability, itemsize, head_dim, tile, name)
        for (itemsize, head_dim), further in FURTHER.get(capability // 10, {}).items():
            for tile in further:
                yield Variant(capability, itemsize, head_dim, tile, "plain")
                if merges_in_place(tile, capability // 10):
                    yield Variant(capability, itemsize, head_dim, tile, IN_PLACE)


def compile_variant(variant: Variant) -> Compiled:
    """Compile a variant; see `attention_masks.compiling`."""
    from attention_masks.tree_attention import triton_kernels

    capability, itemsize, dim, tile, options = variant
    element = {2: "bf16", 4: "fp32"}[itemsize]
    constants = {
        "GROUP": GROUP, "DIM": dim, "BLOCK_D": block_dim(dim), "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n, "CHUNK": MIN_CHUNK, "SPLIT": True, "IN_PLACE": False, "PAGE": 0,
        "SOFTCAP": False, "WINDOW": False, "SINKS": False, "INTERPRETED": False, **OPTIONS[options],
    }  # fmt: skip
    types, aligned = _arguments(triton_kernels.attend_split, element, constants)
    return compile_kernel(
        triton_kernels.attend_split, types, constants, aligned, capability,
        {"num_warps": tile.warps, "num_stages": tile.stages},
        label=f"{element} {dim} {tile.block_m}x{tile.block_n} {options}",
    )  # fmt: skip


def compile_merge(capability: int) -> Compiled:
    """Compile stage 2 for the largest head dimension; the number of splits is a run-time argument."""
    from attention_masks.tree_attention import triton_kernels

    constants = {"GROUP": GROUP, "DIM": 256, "BLOCK_D": 256, "BLOCK_S": MERGED}
    types, aligned = _arguments(triton_kernels.merge_splits, "bf16", constants)
    options = {"num_warps": 4}
    return compile_kernel(
        triton_kernels.merge_splits, types, constants, aligned, capability, options,
        label="bf16 256",
    )  # fmt: skip


def compile_scattered(capability: int, name: str) -> Compiled:
    """Compile a kernel of passes over sequences in memory of their own, for the tile of one row."""
    from attention_masks.tree_attention import scattered_kernels

    shape = tile_of(GROUP, 128, 2, capability // 10)
    constants = {"DIM": 128, "BLOCK_D": 128, "ALIGNED": True}
    options: dict[str, int] = {}
    if name == "attend_scattered":
        constants |= {
            "GROUP": GROUP, "BLOCK_M": shape.block_m, "BLOCK_N": shape.block_n, "SPLIT": True,
            "SOFTCAP": False, "WINDOW": False, "SINKS": False, "INTERPRETED": False,
        }  # fmt: skip
        options = {"num_warps": shape.warps, "num_stages": shape.stages}
    kernel = getattr(scattered_kernels, name)
    types, aligned = _arguments(kernel, "bf16", constants)
    return compile_kernel(kernel, types, constants, aligned, capability, options, label="bf16 128")


def complaints(variant: Variant, made: Compiled) -> tuple[str, ...]:
    """The problems of a compiled variant; empty if there are none."""
    problems = made.problems
    if variant.capability == 90 and variant.itemsize == 2 and variant.tile.block_m >= 64:
        problems += () if made.uses_wgmma else ("no wgmma",)
    elif variant.itemsize == 2 and not (made.instructions["mma"] or made.instructions["tcgen05"]):
        problems += () if made.uses_wgmma else ("no tensor cores",)
    return problems


def _arguments(
    kernel: Any, element: str, constants: dict[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """The types of the run-time arguments, and the arguments that a launch finds divisible by 16."""
    type_of = {"part_ptr": "*fp32", "lse_ptr": "*fp32", "arrays_ptr": "*i32", "table_ptr": "*i32"}
    type_of |= {"counters_ptr": "*i32", "places_ptr": "*i64"}
    type_of |= {"inner": "fp32", "outer": "fp32"}
    names = [name for name in kernel.arg_names if name not in constants]
    types = {
        name: type_of.get(name, f"*{element}" if name.endswith("_ptr") else "i32") for name in names
    }
    strides = ("q_", "k_", "v_", "out_")
    return types, [n for n in names if n.endswith("_ptr") or n.startswith(strides)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile the variants, print the table and the problems; return whether there are problems."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every option with every tile")
    parser.add_argument(
        "--capability",
        type=int,
        choices=TARGETS,
        action="append",
        help="target, can be repeated (all by default)",
    )
    given = parser.parse_args(arguments)
    targets = given.capability or list(TARGETS)
    jobs = [job for job in variants(given.all) if job.capability in targets]
    kernels, problems = [], []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        others = [
            *map(partial(pool.submit, compile_merge), targets),
            *(
                pool.submit(compile_scattered, target, name)
                for target in targets
                for name in ("store_rows", "attend_scattered")
            ),
        ]
        for i, (job, kernel) in enumerate(zip(jobs, pool.map(compile_variant, jobs), strict=True)):
            kernels.append(kernel)
            where = f"{kernel.label} on sm_{kernel.capability}"
            problems += [f"{where}: {text}" for text in complaints(job, kernel)]
            print(f"\r{i + 1} of {len(jobs)} kernels", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        kernels += [other.result() for other in others]
    for kernel in kernels[len(jobs) :]:
        problems += [
            f"{kernel.kernel} on sm_{kernel.capability}: {text}" for text in kernel.problems
        ]
    print(table(kernels))
    print(f"\n{len(kernels)} kernels, {len(problems)} problems", *problems, sep="\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
