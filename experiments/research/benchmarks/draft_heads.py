"""Time what a level of drafting does with its logits: in one kernel call, or operation by operation.

    python -m treespec.experiments.research.benchmarks.draft_heads [--rounds 150] [--no-save]

A *head* checks that logits are finite, turns them into probabilities and draws children
(`draft.choosing`). Each call directly follows a compiled pass of the embedded draft, as in the loop,
so that neither code nor data are in the nearest caches. The benchmark also counts how many of 100,000 draws
differ between the two heads for the same logits and uniforms, in float32; at most one may.
"""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from treespec import Law, Sampling, TorchCoins, TreeShape, load_pair
from treespec.draft.choosing import KernelHead, TensorHead
from treespec.draft.levels import Head, Level, Levels, levels_of
from treespec.experiments.measure.timing import in_turns, median_ratio, seconds_of
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.models.passes.choosing_passes import choose_passes

PREFIX, VOCAB = 64, 4096
DRAWS, BATCH, GOAL = 100_000, 500, 1
CPU = torch.device("cpu")
HEADS = (
    ("one node, its best child", 1, 1, Law.DETERMINISTIC),
    ("six nodes, their best children", 6, 1, Law.DETERMINISTIC),
    ("one node, one child", 1, 1, Law.IID),
    ("one node, three without replacement", 1, 3, Law.WITHOUT_REPLACEMENT),
    ("three nodes, two without replacement", 3, 2, Law.WITHOUT_REPLACEMENT),
    ("six nodes, one child", 6, 1, Law.IID),
)
"""Levels: description, number of nodes, children per node, and law."""

COLUMNS = (
    keyed("level", "level", left=True),
    keyed("operation by\noperation µs", "tensor_us", ".0f"),
    keyed("kernel µs", "kernel_us", ".0f"),
    keyed("ratio", "kernel_over_tensor", ".2f"),
    keyed(f"different of\n{DRAWS:,} draws", "different"),
)

Make = Callable[[int], Head]


def level_of(nodes: int, children: int) -> tuple[Levels, Level]:
    """A level with this many nodes, each with this many children."""
    levels = levels_of(TreeShape.expansion([children] if nodes == 1 else [nodes, children]), CPU)
    return levels, levels.levels[-1]


def heads(levels: Levels, law: Law) -> dict[str, Make]:
    """Makers of both heads, with coins of a given seed."""
    return {
        "tensor": lambda seed: TensorHead(law, Sampling(), TorchCoins(seed)),
        "kernel": lambda seed: KernelHead(levels, law, 1.0, TorchCoins(seed)),
    }


def differing(children: int, law: Law) -> int:
    """Number of differing draws among `DRAWS`, in float32; for best children, among as many rows."""
    levels, level = level_of(BATCH, children)
    generator, different = torch.Generator().manual_seed(0), 0
    for seed in range(-(-DRAWS // BATCH // children)):
        logits = 2 * torch.randn(BATCH, VOCAB, generator=generator)
        by_operations, by_kernel = (
            make(seed).children(level, logits) for make in heads(levels, law).values()
        )
        different += int((by_operations != by_kernel).sum())
    return different


def main(
    rounds: Annotated[int, typer.Option(min=3, help="Calls of each head that count.")] = 150,
    no_save: Annotated[bool, typer.Option("--no-save", help="Do not write a file.")] = False,
) -> None:
    """Measure the heads of levels; print and save their times."""
    rows: list[dict[str, Any]] = []
    model = load_pair("embedded", dtype="bfloat16").draft
    choose_passes(model, "compiled", draft=True)
    model = model.fresh()
    with torch.inference_mode():
        model.prefill(torch.arange(PREFIX) + 5)
        for name, nodes, children, law in HEADS:
            levels, level = level_of(nodes, children)
            logits = torch.randn(nodes, VOCAB).bfloat16()

            def timed(make: Make, level: Level = level, logits: Tensor = logits) -> float:
                head = make(0)
                model.run(torch.tensor([7]), (-1,))
                model.keep(())
                return seconds_of(lambda: (head.children(level, logits), head.extremes().tolist()))

            ways = {way: partial(timed, make) for way, make in heads(levels, law).items()}
            spent = in_turns(ways, rounds, warm_up=10)
            rows.append({
                "level": name,
                "tensor_us": round(1e6 * statistics.median(spent["tensor"]), 1),
                "kernel_us": round(1e6 * statistics.median(spent["kernel"]), 1),
                "kernel_over_tensor": round(median_ratio(spent["kernel"], spent["tensor"]), 2),
                "different": differing(children, law),
            })  # fmt: skip
    threads = torch.get_num_threads()
    title = f"heads of rows of {VOCAB} tokens, bfloat16, {threads} threads"
    most = max(row["different"] for row in rows)
    verdict = (
        f"draws that differ: at most {most} of {DRAWS:,}, goal {GOAL}: "
        f"{'met' if most <= GOAL else 'MISSED'}"
    )
    setting = {"vocab": VOCAB, "threads": threads}
    print_and_save(
        "draft_heads",
        {"setting": setting, "rows": rows, "verdicts": [verdict]},
        Table(title, COLUMNS, rows),
        verdict,
        width=110,
        saved=not no_save,
    )


if __name__ == "__main__":
    typer.run(main)
