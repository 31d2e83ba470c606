"""Measure a pass over the nodes of several texts against a pass of one text over as many nodes.

    python -m treespec.experiments.research.benchmarks.joined_passes [MODELS]

The passes are compiled, and taken in turns. The goal is a ratio of at most 1.15 behind 128 tokens. Behind
2,048 tokens each further text reads a cache of its own, which the bandwidth of memory bounds: the goal is
1.15 times (the pass of one text + those bytes over the measured bandwidth).
"""

import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
import typer

from treespec import load_pair
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.models.transformers_model import TransformersModel
from treespec.models.waiting import Nodes
from treespec.tree import TreeShape

TEXTS, ROUNDS = 8, 30
SHAPES = {
    "1 node": TreeShape.chain(0),
    "chain of 4": TreeShape.chain(4),
    "tree of 16": TreeShape.expansion([3, 2, 1, 1]),
}

COLUMNS = (
    keyed("tokens before", "prefix", ","),
    keyed("nodes of a text", "shape", left=True),
    keyed("8 texts: ms", "joined_ms", ".2f"),
    keyed("one text, as many nodes: ms", "one_ms", ".2f"),
    keyed("ratio", "ratio", ".2f"),
    keyed("ratio with 7 caches' bytes", "ratio_with_bytes", ".2f"),
    keyed("8 passes one by one: ms", "apart_ms", ".2f"),
)


def medians(sides: list[Callable[[], object]]) -> list[float]:
    """Median milliseconds of each function, called in turns."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for side, times in zip(sides, taken, strict=True):
            start = time.perf_counter()
            side()
            times.append(time.perf_counter() - start)
    return [float(np.median(times)) * 1e3 for times in taken]


def bandwidth() -> float:
    """Bytes per second at which this process reads memory."""
    block = torch.ones(2**26)
    (ms,) = medians([block.sum])
    return 4 * len(block) / ms * 1e3


def chain_of_trees(shape: TreeShape, count: int) -> tuple[int, ...]:
    """A tree with as many nodes as `count` trees of this shape: all behind one root of a text."""
    parents: list[int] = []
    for _ in range(count):
        begin = len(parents)
        parents += [max(0, begin - 1) if p < 0 else begin + p for p in shape.parents]
    return (-1, *parents[1:])


def measured(model: TransformersModel, prefix: int, name: str, rate: float) -> dict[str, Any]:
    """Times of the three ways, in turns."""
    shape = SHAPES[name]
    texts = []
    for _ in range(TEXTS):
        text = model.fresh()
        text.prefill(torch.arange(prefix) % 1000)
        texts.append((text, Nodes(torch.arange(shape.size), shape.parents)))
    one, tree = model.fresh(), chain_of_trees(shape, TEXTS)
    one.prefill(torch.arange(prefix) % 1000)
    tokens = torch.arange(len(tree)) % 1000
    joined_ms, one_ms, apart_ms = medians(
        [
            lambda: model.run_together(texts),
            lambda: one.run(tokens, tree),
            lambda: [text.run(*nodes) for text, nodes in texts],
        ]
    )
    rows = sum(
        shape.kv_heads * (shape.key_dim + shape.value_dim) * shape.dtype.itemsize
        for shape in model.finding.layout
        if shape is not None
    )
    further = (TEXTS - 1) * prefix * rows / rate * 1e3
    return {
        "prefix": prefix, "shape": name, "joined_ms": joined_ms, "one_ms": one_ms, "apart_ms": apart_ms,
        "ratio": joined_ms / one_ms, "ratio_with_bytes": joined_ms / (one_ms + further),
    }  # fmt: skip


def main(models: Annotated[str, typer.Argument(help="The pair.")] = "embedded") -> None:
    """Measure, print and save the figures."""
    model = load_pair(models, dtype="float32", passes="compiled", draft_passes="eager").target
    rate = bandwidth()
    longest = min(2048, model.max_length - 256)
    rows = [measured(model, prefix, name, rate) for prefix in (128, longest) for name in SHAPES]
    figures = {"models": models, "texts": TEXTS, "bytes_per_s": rate, "passes": rows}
    print_and_save("joined_passes", figures, Table("passes over 8 texts", COLUMNS, rows), width=140)


if __name__ == "__main__":
    typer.run(main)
