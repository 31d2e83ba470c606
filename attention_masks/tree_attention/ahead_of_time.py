"""Every tile that is shipped, compiled for three generations of GPUs that need not be there.

`python -m attention_masks.tree_attention.ahead_of_time` prints registers, spills, shared memory and tensor
instructions of each, and fails if one spills, does not fit, or computes without the tensor cores that it
was shaped for. `--all` takes every option with every tile: some minutes.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from attention_masks.ahead_of_time import Compiled, compile_kernel, table
from attention_masks.tree_attention.tiles import HEAD_DIMS, Tile, block_dim, choices
from attention_masks.tree_attention.triton import MERGED

__all__ = ["TARGETS", "Variant", "compile_variant", "complaints", "variants"]

TARGETS = (80, 90, 100)
GROUP = 8
"""It does not change what is in a tile: rows are divided by it."""

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"WINDOW": True},
    "softcap, window": {"SOFTCAP": True, "WINDOW": True},
    "sinks, window": {"SINKS": True, "WINDOW": True},
    "pages": {"PAGE": 16},
}
USED = {
    64: ("sinks, window",),  # GPT-OSS
    80: ("plain",),
    96: ("plain",),
    128: ("window", "pages"),  # Mistral, engines
    256: ("softcap, window",),  # Gemma
}
"""Which options models combine with which head dimension."""


class Variant(NamedTuple):
    """One specialisation of stage 1."""

    capability: int
    itemsize: int
    head_dim: int
    tile: Tile
    options: str


def variants(everything: bool = False) -> Iterator[Variant]:
    """What is compiled: each tile plain, and Hopper's largest, which spill first, with what models use.

    Args:
        everything: each tile with every option and every head dimension that it serves.
    """
    for capability in TARGETS:
        tiles = choices(capability // 10)
        largest = {(size, dim): tile for size, dim, tile in tiles}  # the last of each
        for itemsize, block_d, tile in tiles:
            for head_dim in HEAD_DIMS:
                if max(64, block_dim(head_dim)) != block_d:
                    continue
                options = ["plain"] if head_dim == block_d else []
                if capability == 90 and itemsize == 2 and tile == largest[itemsize, block_d]:
                    options += USED[head_dim]
                for name in OPTIONS if everything else options:
                    yield Variant(capability, itemsize, head_dim, tile, name)


def compile_variant(variant: Variant) -> Compiled:
    """What came of it; see `attention_masks.ahead_of_time`."""
    from attention_masks.tree_attention import triton_kernels

    capability, itemsize, dim, tile, options = variant
    element = {2: "bf16", 4: "fp32"}[itemsize]
    constants = {
        "GROUP": GROUP, "DIM": dim, "BLOCK_D": block_dim(dim), "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n, "SPLIT": True, "PAGE": 0, "SOFTCAP": False, "WINDOW": False,
        "SINKS": False, "INTERPRETED": False, **OPTIONS[options],
    }  # fmt: skip
    types, aligned = _arguments(triton_kernels.attend_split, element, constants)
    return compile_kernel(
        triton_kernels.attend_split, types, constants, aligned, capability,
        {"num_warps": tile.warps, "num_stages": tile.stages},
        label=f"{element} {dim} {tile.block_m}x{tile.block_n} {options}",
    )  # fmt: skip


def compile_merge(capability: int) -> Compiled:
    """Stage 2 for the largest head dimension; the number of splits is not compiled in."""
    from attention_masks.tree_attention import triton_kernels

    constants = {"GROUP": GROUP, "DIM": 256, "BLOCK_D": 256, "BLOCK_S": MERGED}
    types, aligned = _arguments(triton_kernels.merge_splits, "bf16", constants)
    options = {"num_warps": 4}
    return compile_kernel(
        triton_kernels.merge_splits, types, constants, aligned, capability, options,
        label="bf16 256",
    )  # fmt: skip


def complaints(variant: Variant, made: Compiled) -> tuple[str, ...]:
    """What is wrong with it; nothing is."""
    problems = made.problems
    if variant.capability == 90 and variant.itemsize == 2 and variant.tile.block_m >= 64:
        problems += () if made.uses_wgmma else ("no wgmma",)
    elif variant.itemsize == 2 and not (made.instructions["mma"] or made.instructions["tcgen05"]):
        problems += () if made.uses_wgmma else ("no tensor cores",)
    return problems


def _arguments(
    kernel: Any, element: str, constants: dict[str, Any]
) -> tuple[dict[str, str], list[str]]:
    """Types of the run-time arguments, and those that a launch finds divisible by 16."""
    type_of = {"part_ptr": "*fp32", "lse_ptr": "*fp32", "arrays_ptr": "*i32", "table_ptr": "*i32"}
    type_of |= {"inner": "fp32", "outer": "fp32"}
    names = [name for name in kernel.arg_names if name not in constants]
    types = {
        name: type_of.get(name, f"*{element}" if name.endswith("_ptr") else "i32") for name in names
    }
    strides = ("q_", "k_", "v_", "out_")
    return types, [n for n in names if n.endswith("_ptr") or n.startswith(strides)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print the table, say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every option with every tile")
    parser.add_argument(
        "--capability", type=int, choices=TARGETS, action="append", help="for this one: 80, 90, 100"
    )
    given = parser.parse_args(arguments)
    targets = given.capability or list(TARGETS)
    jobs = [job for job in variants(given.all) if job.capability in targets]
    made, wrong = [], []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        merges = pool.map(compile_merge, targets)
        for i, (job, one) in enumerate(zip(jobs, pool.map(compile_variant, jobs), strict=True)):
            made.append(one)
            wrong += [f"{one.label} on sm_{one.capability}: {c}" for c in complaints(job, one)]
            print(f"\r{i + 1} of {len(jobs)} kernels", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        made += merges
    wrong += [
        f"merge on sm_{one.capability}: {c}" for one in made[len(jobs) :] for c in one.problems
    ]
    print(table(made))
    print(f"\n{len(made)} kernels, {len(wrong)} problems", *wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
