"""Time attention of a short tree after a long prefix on the CPU: PyTorch's in one or two passes, and ours.

    python -m treespec.experiments.research.benchmarks.attention_on_cpu [--rounds 40] [--no-save]

One layer of the 100M target runs in bfloat16 and float32, in three ways: all keys under one additive mask
(`sdpa`); the prefix without a mask and the tree under its own, merged by their log-sum-exps (`two_pass`);
or the kernel of compiled passes (`treespec.kernels`). The calls cycle through more layers than small caches
hold. The floor, the time to read as many bytes, is measured in turns with the other ways.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Annotated, Any

import torch
import typer

from attention_masks import TreePass, topology
from attention_masks.tree_attention.options import Options
from attention_masks.tree_attention.sdpa import sdpa
from attention_masks.tree_attention.two_pass import two_pass
from treespec.experiments.measure.timing import in_turns, median_ratio, seconds_of
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.pass_times import reading, ternary
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.kernels.masked_attention import kernel_call

HEADS, KV_HEADS, HEAD_DIM = 12, 4, 64
PREFIXES, NODES, DTYPES = (256, 2048, 8192), (1, 4, 8, 22), ("bfloat16", "float32")
CACHED_MIB, MOST_LAYERS = 64, 40

COLUMNS = (
    keyed("dtype", "dtype", left=True),
    keyed("prefix", "prefix"),
    keyed("nodes", "nodes"),
    keyed("floor µs", "floor_us", ".0f"),
    keyed("one pass µs", "one_pass_us", ".0f"),
    keyed("over floor", "one_pass_over_floor", ".1f"),
    keyed("two passes µs", "two_passes_us", ".0f"),
    keyed("kernel µs", "kernel_us", ".0f"),
    keyed("over floor", "kernel_over_floor", ".1f"),
    keyed("two / one", "two_over_one", ".2f"),
    keyed("kernel / one", "kernel_over_one", ".2f"),
)


def calls(prefix: int, nodes: int, dtype: torch.dtype) -> dict[str, Callable[[], float]]:
    """All ways; each times one call on the keys and values of the next layer."""
    slots = prefix + nodes
    layer_bytes = 2 * KV_HEADS * slots * HEAD_DIM * dtype.itemsize
    layers = min(MOST_LAYERS, max(2, CACHED_MIB * 2**20 // layer_bytes))
    keys, values = torch.randn(2, layers, 1, KV_HEADS, slots, HEAD_DIM).to(dtype)
    query = torch.randn(1, HEADS, nodes, HEAD_DIM).to(dtype)
    tree = TreePass(topology(ternary(nodes)), prefix, range(nodes))
    options, turn = Options(scale=HEAD_DIM**-0.5), iter(range(10**9))
    bias = tree.bias(None, torch.float32, query.device)  # made once for all layers
    mask = torch.zeros(nodes, slots) if bias is None else bias

    out = torch.empty(1, nodes, HEADS, HEAD_DIM, dtype=dtype)
    pairs = list(zip(keys, values, strict=True))
    kernel_calls = [  # as compiled code calls it, without Python
        kernel_call(out, query, *layer, mask, None, HEAD_DIM**-0.5, 0.0) for layer in pairs
    ]

    def timed(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
        return lambda: seconds_of(calls[next(turn) % layers])

    read = reading(layers * layer_bytes)
    return {
        "floor": lambda: read() / layers,
        "one_pass": timed([partial(sdpa, query, *layer, tree, options) for layer in pairs]),
        "two_passes": timed([partial(two_pass, query, *layer, tree, options) for layer in pairs]),
        "kernel": timed(kernel_calls),
    }


def measure(rounds: int) -> list[dict[str, Any]]:
    """Median microseconds of a layer for each dtype, prefix and size of tree."""
    rows = []
    for dtype, prefix, nodes in product(DTYPES, PREFIXES, NODES):
        with torch.inference_mode():
            spent = in_turns(calls(prefix, nodes, getattr(torch, dtype)), rounds, warm_up=3)
        us = {way: 1e6 * statistics.median(seconds) for way, seconds in spent.items()}
        floor = us["floor"]
        rows.append({
            "dtype": dtype,
            "prefix": prefix,
            "nodes": nodes,
            "floor_us": round(floor, 1),
            "one_pass_us": round(us["one_pass"], 1),
            "one_pass_over_floor": round(us["one_pass"] / floor, 1),
            "two_passes_us": round(us["two_passes"], 1),
            "kernel_us": round(us["kernel"], 1),
            "kernel_over_floor": round(us["kernel"] / floor, 1),
            "two_over_one": round(median_ratio(spent["two_passes"], spent["one_pass"]), 2),
            "kernel_over_one": round(median_ratio(spent["kernel"], spent["one_pass"]), 2),
        })  # fmt: skip
    return rows


def main(
    rounds: Annotated[int, typer.Option(min=3, help="Calls of each way that count.")] = 40,
    no_save: Annotated[bool, typer.Option("--no-save", help="Do not write a file.")] = False,
) -> None:
    """Measure a layer's attention in each way; print and save it."""
    rows, threads = measure(rounds), torch.get_num_threads()
    setting = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "threads": threads}
    title = f"attention of a layer, {HEADS}/{KV_HEADS} heads of {HEAD_DIM}; {threads} threads"
    print_and_save(
        "attention_on_cpu",
        {"setting": setting, "rows": rows},
        Table(title, COLUMNS, rows),
        width=130,
        saved=not no_save,
    )


if __name__ == "__main__":
    typer.run(main)
