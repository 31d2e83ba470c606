"""Measure a pass over the nodes of several texts against a pass of one text over as many nodes.

    python -m treespec.experiments.research.benchmarks.joined_passes

The passes are compiled, and taken in turns. The goal is a ratio of at most 1.15 behind 128 tokens. Behind
2,048 tokens each further text reads a cache of its own, which the bandwidth of memory bounds: the goal is
1.15 times (the pass of one text + those bytes over the measured bandwidth).

Besides, what rounds of greedy decoding with a chain of 4 take outside of the passes, for one text and for
eight (the goal: for each of them at most what one text takes alone, and 0.05 ms), and the memory that
eight texts add to the process.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import psutil
import torch
import typer

from treespec import Law, Sampling, TorchCoins, load_pair, verify
from treespec.batch import Text, decode_rounds
from treespec.draft import make_drafter
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save
from treespec.models.load import Pair
from treespec.models.memory import row_bytes
from treespec.models.transformers_model import TransformersModel
from treespec.models.waiting import Nodes
from treespec.target import make_target
from treespec.tree import TreeShape
from treespec.verify import verifier_for

TEXTS, ROUNDS = 8, 30
SHAPES = {
    "1 node": TreeShape.chain(0),
    "chain of 4": TreeShape.chain(4),
    "tree of 16": TreeShape.expansion([3, 2, 1, 1]),
}

COLUMNS = (
    keyed("target", "parameters", left=True),
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


class Passes:
    """Times the passes of a batch."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def text(self, text: int) -> AbstractContextManager[object]:
        return nullcontext()

    @contextmanager
    def joined(self, texts: Sequence[int], drafts: bool, nodes: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start


def outside_ms(pair: Pair, count: int) -> float:
    """Median milliseconds of a round that no pass takes."""
    cold, chain = Sampling(temperature=0.0), TreeShape.chain(4)
    texts = [
        Text(
            make_target(pair.target), make_drafter(pair.draft, chain, Law.DETERMINISTIC, cold),
            verifier_for(verify.greedy, pair.target), torch.arange(64) % 1000 + i, cold, TorchCoins(0),
            max_new_tokens=160,
        )
        for i in range(count)
    ]  # fmt: skip
    watch, outside = Passes(), []
    rounds = decode_rounds(texts, watch=watch)
    start = time.perf_counter()
    for made in rounds:
        took = time.perf_counter() - start - watch.seconds
        if len(made) == count:
            outside.append(took)
        watch.seconds, start = 0.0, time.perf_counter()
    return float(np.median(outside[2:])) * 1e3


def memory(model: TransformersModel, prefix: int) -> dict[str, float]:
    """MiB that the process holds more with eight texts, and MiB of their caches."""
    rows = prefix + 64
    small = [(model.fresh(), Nodes(torch.arange(5), (-1, 0, 1, 2, 3))) for _ in range(TEXTS)]
    for text, _ in small:
        text.prefill(torch.arange(8))
    model.run_together(small)
    resident = psutil.Process().memory_info().rss
    texts = []
    for _ in range(TEXTS):
        text = model.fresh()
        text.reserve(rows)
        text.prefill(torch.arange(prefix) % 1000)
        texts.append((text, Nodes(torch.arange(5), (-1, 0, 1, 2, 3))))
    model.run_together(texts)
    added = psutil.Process().memory_info().rss - resident
    caches = TEXTS * rows * sum(row_bytes(model).values())
    return {"added_mib": added / 2**20, "caches_mib": caches / 2**20, "prefix": prefix}


def main() -> None:
    """Measure the embedded pair, and its target enlarged; print and save the figures."""
    rate, rows, outside, held = bandwidth(), [], {}, {}
    for enlarge in (None, "50M"):
        pair = load_pair(
            "embedded", dtype="float32", enlarge=enlarge, passes="compiled", draft_passes="compiled"
        )
        model, parameters = pair.target, enlarge or "9M"
        longest = min(2048, model.max_length - 256)
        held[parameters] = memory(model, longest)
        for prefix in (128, longest):
            for name in SHAPES:
                rows.append({"parameters": parameters, **measured(model, prefix, name, rate)})
        outside[parameters] = {str(count): outside_ms(pair, count) for count in (1, TEXTS)}
    said = [
        f"{size}: outside of the passes a round takes {outside[size]['1']:.2f} ms with one text, "
        f"{outside[size][str(TEXTS)]:.2f} ms with {TEXTS}; {TEXTS} texts add {held[size]['added_mib']:.0f} "
        f"MiB to the process, their caches are {held[size]['caches_mib']:.0f} MiB"
        for size in outside
    ]
    figures = {
        "texts": TEXTS, "bytes_per_s": rate, "passes": rows, "outside_ms": outside, "memory": held,
    }  # fmt: skip
    table = Table(f"passes over {TEXTS} texts", COLUMNS, rows)
    print_and_save("joined_passes", figures, table, *said, width=140)


if __name__ == "__main__":
    typer.run(main)
