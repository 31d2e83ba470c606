"""Measure what text sources cost, searching and building trees, by the number of tokens remembered.

    python -m treespec.experiments.research.benchmarks.draft_sources [SIZE ...]

The text is Python code of installed packages, encoded by the embedded pair's tokenizer. A source remembers
the first tokens of it, then drafts for a later stretch as in decoding: it proposes a tree, the path that
agrees with the stretch is accepted, and the source reads it. So sizes differ only in what is remembered.
Goals: a search of suffix tree and automaton at most 25 us at 1,000,000 tokens, and any whole proposal at
most 100 us.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer

from treespec import TokenTree, TorchCoins, TreeShape
from treespec.draft import (
    Datastore,
    Documents,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixCounts,
    SuffixTree,
)
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save, print_parts
from treespec.experiments.run.held_out import HeldOut, installed_code
from treespec.models.outline import outline_pair
from treespec.tree import Law

SIZES = [10_000, 1_000_000]
STEPS, WARM, PROMPT = 1000, 50, 64
"""Timed steps of a stretch, steps before them, and tokens of the prompt for sources of other texts."""

BEHIND = 16_000
"""Tokens after the remembered text: more than these steps can consume."""

TREE = {"size": 64, "branching": 8}
BUILT = [8, 64]
"""Nodes of the trees whose building is timed apart."""

COLUMNS = (
    keyed("source", "source", left=True),
    keyed("tokens", "tokens", ","),
    keyed("drafted", "drafted", ".1f"),
    keyed("accepted", "accepted", ".2f"),
    keyed("read: us a token", "read_us", ".2f"),
    keyed("search: p50 us", "search_p50_us", ".1f"),
    keyed("p99 us", "search_p99_us", ".0f"),
    keyed("proposal: p50 us", "propose_p50_us", ".0f"),
    keyed("p99 us ", "propose_p99_us", ".0f"),
)


def code_ids(tokens: int) -> list[int]:
    """The first tokens of the .py files of installed packages, without copies of held-out files."""
    tokenizer, held_out = outline_pair("embedded", "none").tokenizer, HeldOut()

    def texts() -> Iterator[list[int]]:
        for path in installed_code():
            text = path.read_text("utf-8", "replace")
            if not held_out.has_copy(path.name, text):
                yield tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    return list(islice(chain.from_iterable(texts()), tokens))


def counted(ids: Sequence[int]) -> SuffixCounts:
    """The counts of an earlier text."""
    counts = SuffixCounts()
    counts.read(ids)
    counts.end()
    return counts


def stored(ids: Sequence[int], folder: Path) -> Datastore:
    """A datastore of one text."""
    return Datastore.build(folder / "store", [ids], vocab_size=2**20)


OWN: dict[str, Callable[[], Any]] = {
    "lookup": lambda: PromptLookup(10, **TREE),
    "suffix_tree": lambda: SuffixTree(10, **TREE),
    "suffix_tree, 4 a token": lambda: SuffixTree(10, factor=4.0, **TREE),
    "suffix_automaton": lambda: SuffixAutomaton(10),
}
"""Sources that remember their own text."""

OTHER: dict[str, Callable[[Sequence[int], Path], Any]] = {
    "documents": lambda ids, folder: Documents([ids], 10, **TREE),
    "suffix_tree, past texts": lambda ids, folder: SuffixTree(10, past=counted(ids), **TREE),
    "retrieval": lambda ids, folder: Retrieval(stored(ids, folder), 10, **TREE),
}
"""Sources that remember other texts."""


def measured(source: Any, ids: Sequence[int]) -> dict[str, float]:
    """Times of a source along a text, and how many tokens it drafts and gets accepted."""
    coins, at = TorchCoins(0), 0
    times: dict[str, list[float]] = {"search": [], "propose": [], "read": []}
    drafted = accepted = 0

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        times[name].append(time.perf_counter() - start)
        return result

    for step in range(WARM + STEPS):
        if step == WARM:
            times, drafted, accepted = {name: [] for name in times}, 0, 0
        timed("search", lambda: source._after(()))  # the tree is then built from what it returns
        tree = timed("propose", lambda: source.propose(coins))
        node, length = 0, 0
        while node is not None:
            wanted = ids[at + length]
            length += 1
            below = tree.shape.children[node]
            node = next((child for child in below if tree.token_ids[child] == wanted), None)
        read = ids[at : at + length]
        timed("read", lambda tokens=read: source.read(tokens))
        at, drafted, accepted = at + length, drafted + tree.shape.size - 1, accepted + length - 1
    quantiles = {
        f"{name}_{label}_us": float(np.quantile(times[name], q)) * 1e6
        for name, (label, q) in product(("search", "propose"), (("p50", 0.5), ("p99", 0.99)))
    }
    read_us = sum(times["read"]) / (accepted + STEPS) * 1e6
    return quantiles | {
        "read_us": read_us,
        "drafted": drafted / STEPS,
        "accepted": accepted / STEPS,
    }


def building() -> dict[str, float]:
    """Microseconds of building a `TokenTree` from parents and token ids, in the median of many."""
    rng, found = np.random.default_rng(0), {}
    for size in BUILT:
        parents = [-1, *(int(rng.integers(max(0, i - 6), i)) for i in range(1, size))]
        tokens, seconds = rng.integers(0, 32_768, size).tolist(), []
        for _ in range(2000):
            start = time.perf_counter()
            shape = TreeShape(tuple(parents))
            TokenTree.of(shape, tokens, None, Law.DETERMINISTIC, torch.device("cpu"))
            seconds.append(time.perf_counter() - start)
        found[f"{size} nodes"] = float(np.median(seconds)) * 1e6
    return found


def main(
    sizes: Annotated[list[int] | None, typer.Argument(help="Tokens remembered.")] = None,
) -> None:
    """Measure, print and save the figures."""
    sizes = sizes or SIZES
    text, rows = code_ids(max(sizes) + BEHIND), []
    for size, name in product(sizes, [*OWN, *OTHER]):
        print_parts(f"{name}, {size:,} tokens")
        with TemporaryDirectory(prefix="treespec-") as folder:
            remembered = text[:size]
            source = OWN[name]() if name in OWN else OTHER[name](remembered, Path(folder))
            source.prefill(torch.tensor(remembered if name in OWN else remembered[-PROMPT:]))
            rows.append({"source": name, "tokens": size, **measured(source, text[max(sizes) :])})
    built = building()
    said = ", ".join(f"{name}: {us:.1f} us" for name, us in built.items())
    figures = {"sources": rows, "building_us": built}
    print_and_save(
        "draft_sources", figures, Table("text sources", COLUMNS, rows), f"building a tree, {said}"
    )


if __name__ == "__main__":
    typer.run(main)
