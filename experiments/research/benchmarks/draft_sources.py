"""Measure the cost of draft sources without a model as their memory grows, and of a datastore of millions.

    python -m treespec.experiments.research.benchmarks.draft_sources [LARGEST] [DATASTORE]

The text is Python code of installed packages, encoded by the embedded pair's tokenizer. Each source
remembers a number of tokens from the beginning of the text. Then it drafts for the same later stretch, step
by step as in decoding: it proposes a tree, the path that agrees with the stretch is accepted, and the
source gets the step. So sizes differ only in what is remembered. Operations are bytecode instructions,
which do not depend on other work on the machine; work that numpy does within one instruction is not
counted. Goals: from 10,000 to 1,000,000 tokens, operations per token read differ by at most 20 %; times
of a token read, and of a proposal per draft token, differ by at most a factor of 3; the suffix tree takes
at most 600 bytes per token. LARGEST (1,000,000) bounds what is remembered. The datastore has at least
DATASTORE (10,000,000) tokens, each file once, and is queried along the embedded prompts, which it does not
contain.
"""

import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Annotated, Any

import numpy as np
import polars as pl
import psutil
import torch
import typer

from treespec import TorchCoins, Verdict
from treespec.draft import (
    Datastore,
    Documents,
    Jacobi,
    Lookahead,
    PromptLookup,
    Retrieval,
    SuffixAutomaton,
    SuffixCounts,
    SuffixTree,
    TokenRecycling,
)
from treespec.draft.text.text_source import TokenSource
from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.measure.timing import seconds_of
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save, print_parts
from treespec.experiments.run.held_out import HeldOut, installed_code
from treespec.experiments.run.prompts import read_prompts
from treespec.models.load import outline_pair
from treespec.step import Scores, Step

SIZES = (10_000, 100_000, 1_000_000)
STEPS, COUNTED = 1000, 200
"""Number of timed steps, and of further steps whose operations are counted."""

TOKENS_BEHIND = 32_000
"""Tokens after the remembered text: more than these steps can consume."""

BATCH = 64
PROMPT = 64
"""Tokens of the prompt for sources that remember other texts."""

TREE = {"size": 64, "branching": 8}
VOCABULARY = 32_768
LOGITS = torch.rand(128, VOCABULARY, generator=torch.Generator().manual_seed(0))
"""Logits of the target after any tree; their values do not change the cost of reading them."""

COLUMNS = (
    keyed("source", "source", left=True),
    keyed("tokens", "tokens", ","),
    keyed("read: us a token", "read_us", ".2f"),
    keyed("operations", "read_operations", ".0f"),
    keyed("propose: p50 us", "propose_p50_us", ".0f"),
    keyed("p99 us", "propose_p99_us", ".0f"),
    keyed("operations ", "propose_operations", ".0f"),
    keyed("drafted", "drafted", ".1f"),
    keyed("emitted", "emitted", ".2f"),
    keyed("bytes a token", "bytes", ".0f"),
)
STORE_COLUMNS = (
    keyed("tokens", "tokens", ","),
    keyed("texts", "texts", ","),
    keyed("sort s", "build_s", ".1f"),
    keyed("peak MB", "build_peak_mb", ".0f"),
    keyed("file MB", "file_mb", ".0f"),
    keyed("propose: p50 us", "propose_p50_us", ".0f"),
    keyed("p99 us", "propose_p99_us", ".0f"),
    keyed("resident MB", "resident_mb", ".0f"),
)


def texts_of(tokens: int) -> Iterator[list[int]]:
    """Token ids of the .py files of installed packages, without copies of held-out files.

    Whole texts, until they have this many tokens together or there are no more.
    """
    tokenizer = outline_pair("embedded", "none").tokenizer
    files, held_out = installed_code(), HeldOut()
    for begin in range(0, len(files), BATCH):
        contents = [
            (path.name, path.read_text("utf-8", "replace")) for path in files[begin : begin + BATCH]
        ]
        originals = [text for name, text in contents if not held_out.has_copy(name, text)]
        rows = tokenizer(originals, add_special_tokens=False, verbose=False)["input_ids"]
        for ids in filter(None, rows):
            yield ids
            tokens -= len(ids)
            if tokens <= 0:
                return


def held_out() -> list[int]:
    """Token ids of the embedded prompts, concatenated: texts that our datastores do not contain."""
    tokenizer = outline_pair("embedded", "none").tokenizer
    prompts = [prompt.text for prompt in read_prompts(EmbeddedPrompts(kind="embedded"))]
    rows = tokenizer(prompts, add_special_tokens=False, verbose=False)["input_ids"]
    return [token for row in rows for token in row]


def reading(source: TokenSource, ids: Sequence[int]) -> TokenSource:
    """Prefill a source with this text."""
    source.prefill(torch.tensor(ids))
    return source


def asking(
    make: Callable[[Sequence[int], Path], TokenSource], ids: Sequence[int], folder: Path
) -> TokenSource:
    """Make a source that remembers other texts, and prefill it with a short prompt."""
    return reading(make(ids, folder), ids[-PROMPT:])


def counted(ids: Sequence[int]) -> SuffixCounts:
    """The counts of a finished text, in the form of past texts."""
    counts = SuffixCounts()
    counts.read(ids)
    counts.end()
    return counts


def followers(ids: Sequence[int], length: int, most: int) -> dict[int, list[tuple[int, ...]]]:
    """For each token, the last `most` different strings of this length that followed it."""
    by_token: dict[int, dict[tuple[int, ...], None]] = {}
    for i in range(len(ids) - length):
        strings = by_token.setdefault(ids[i], {})
        string = tuple(ids[i + 1 : i + 1 + length])
        strings.pop(string, None)
        strings[string] = None
        if len(strings) > most:
            del strings[next(iter(strings))]
    return {token: list(strings) for token, strings in by_token.items()}


SOURCES: dict[str, Callable[[Sequence[int], Path], TokenSource]] = {
    "lookup": lambda ids, folder: reading(PromptLookup(10, **TREE), ids),
    "documents": partial(asking, lambda ids, folder: Documents([ids], 10, **TREE)),
    "suffix_tree": lambda ids, folder: reading(SuffixTree(10, **TREE), ids),
    "suffix_tree, past texts": partial(
        asking, lambda ids, folder: SuffixTree(10, past=counted(ids), **TREE)
    ),
    "suffix_automaton": lambda ids, folder: reading(SuffixAutomaton(10), ids),
    "retrieval": partial(
        asking,
        lambda ids, folder: Retrieval(
            Datastore.build(folder / "store", [ids], vocab_size=VOCABULARY), 10, **TREE
        ),
    ),
    "token_recycling": partial(
        asking,
        lambda ids, folder: TokenRecycling(
            table={
                token: [follower for (follower,) in strings]
                for token, strings in followers(ids, 1, 8).items()
            }
        ),
    ),
    "lookahead": partial(asking, lambda ids, folder: Lookahead(pool=followers(ids, 4, 7))),
    "jacobi": lambda ids, folder: reading(Jacobi(10), ids),
}

HELD_BY_TOKEN = (
    "lookup",
    "documents",
    "suffix_tree",
    "suffix_tree, past texts",
    "suffix_automaton",
)
"""Sources whose memory grows with the text, not with the vocabulary or in a file."""


class Operations:
    """Counts the bytecode instructions that are executed within `counting`."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the instructions of functions that are called within the context."""
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, given: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._executed

    def _executed(self, frame: FrameType, event: str, given: Any) -> Any:
        self.count += event == "opcode"
        return self._executed


class Steps:
    """Decodes a known text with one source; draft tokens that match the text are accepted."""

    def __init__(self, source: TokenSource, ids: Sequence[int]) -> None:
        self.source, self.ids, self.at, self.coins = source, ids, 0, TorchCoins(0)
        self.drafted = 0

    def step(self, around: Callable[[Callable[[], Any]], Any]) -> int:
        """Run one step, calling propose and commit through `around`; return how many tokens it emits."""
        tree = around(lambda: self.source.propose(self.coins))
        path, shape, ids = [0], tree.shape, tree.token_ids
        self.drafted += shape.size - 1
        while True:
            wanted = self.ids[self.at + len(path) - 1]
            below = [node for node in shape.children[path[-1]] if ids[node] == wanted]
            if not below:
                break
            path.append(below[0])
        step = Step(tree, Verdict(tuple(path), wanted), Scores(LOGITS[: shape.size]), ())
        around(lambda: self.source.commit(step))
        self.at += len(path)
        return len(path)


def costs(source: TokenSource, ids: Sequence[int]) -> dict[str, float]:
    """Measure times and operations of a source along a text."""
    steps, seconds = Steps(source, ids), []

    def timed(call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
        return result

    emitted = sum(steps.step(timed) for _ in range(STEPS))
    drafted = steps.drafted / STEPS
    median, p99 = np.percentile(seconds[::2], [50, 99]) * 1e6
    operations, counts = Operations(), []

    def traced(call: Callable[[], Any]) -> Any:
        before = operations.count
        with operations.counting():
            result = call()
        counts.append(operations.count - before)
        return result

    read = sum(steps.step(traced) for _ in range(COUNTED))
    return {
        "read_us": sum(seconds[1::2]) / emitted * 1e6,
        "read_operations": sum(counts[1::2]) / read,
        "propose_p50_us": float(median),
        "propose_p99_us": float(p99),
        "propose_operations": float(np.median(counts[::2])),
        "drafted": drafted,
        "emitted": emitted / STEPS,
    }


TEXT: list[int] = []
"""The text that the sources read; filled before the measuring processes are forked."""


def resident() -> int:
    """Resident memory of this process in bytes."""
    gc.collect()
    return psutil.Process().memory_info().rss


def measured(name: str, size: int, stretch: int) -> dict[str, Any]:
    """Measure a source that remembers `size` tokens, in a process that has not freed memory before."""
    with TemporaryDirectory(prefix="treespec-") as folder:
        before = resident()
        source = SOURCES[name](TEXT[:size], Path(folder))
        used = (resident() - before) / size if name in HELD_BY_TOKEN else None
        return {"bytes": used, **costs(source, TEXT[stretch:])}


def stored(tokens: int, query: Sequence[int]) -> dict[str, Any]:
    """Measure the building of a datastore of at least `tokens` tokens, and proposals along another text."""
    arrays = [np.array(ids, dtype=np.int32) for ids in texts_of(tokens)]
    with TemporaryDirectory(prefix="treespec-") as folder:
        path, texts = Path(folder) / "store", (ids.tolist() for ids in arrays)
        seconds = seconds_of(lambda: Datastore.build(path, texts, vocab_size=2**20))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before = resident()
        store = Datastore(path)
        source = reading(Retrieval(store, 10, size=65, branching=64), query[:16])
        return {
            **{key: store.about[key] for key in ("tokens", "texts")},
            "build_s": seconds,
            "build_peak_mb": peak / 1e6,
            "file_mb": path.stat().st_size / 1e6,
            **costs(source, query[16:]),
            "steps": STEPS + COUNTED,
            "resident_mb": (resident() - before) / 1e6,
        }


def growth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each source, its costs at the largest size over its costs at the smallest size."""
    keys = ("read_us", "read_operations", "propose_p50_us", "propose_operations")
    sources = pl.DataFrame(rows, infer_schema_length=None).group_by("source", maintain_order=True)
    return sources.agg(
        pl.first("tokens").alias("from"),
        pl.last("tokens").alias("to"),
        *(pl.last(key) / pl.first(key) for key in keys),
    ).to_dicts()


def main(
    largest: Annotated[int, typer.Argument(help="Maximum number of remembered tokens.")] = SIZES[
        -1
    ],
    datastore: Annotated[int, typer.Argument(help="Tokens of the datastore.")] = 10_000_000,
) -> None:
    """Measure, print and save the figures."""
    sizes = [size for size in SIZES if size <= largest]
    tokens = largest + TOKENS_BEHIND
    TEXT.extend(islice(chain.from_iterable(texts_of(tokens)), tokens))
    query = held_out()
    rows = []
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for name, size in product(SOURCES, sizes):
            print_parts(f"{name}, {size:,} tokens")
            cost = pool.apply(measured, (name, size, sizes[-1]))
            rows.append({"source": name, "tokens": size, **cost})
        print_parts(
            Table("reading and proposing", COLUMNS, rows), f"datastore of {datastore:,} tokens"
        )
        store = pool.apply(stored, (datastore, query * (TOKENS_BEHIND // len(query) + 2)))
    figures = {"sources": rows, "growth": growth(rows), "datastore": store}
    print_and_save("draft_sources", figures, Table("datastore", STORE_COLUMNS, [store]))


if __name__ == "__main__":
    typer.run(main)
