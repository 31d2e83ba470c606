"""What the draft sources without a model cost as texts grow: seconds and bytes a token, and look-ups.

    python -m treespec.experiments.benchmarks.draft_sources [LARGEST] [DATASTORE]

The text is Python code of installed packages, encoded by the embedded pair's tokenizer. Each source reads
it in one piece; the time of a token is that of the last tenth, so it is the cost at that length and no
mean over shorter ones. Proposals are timed every few tokens after it. Goals: a token at 1,000,000 takes at
most 3 times what it takes at 10,000; the suffix tree at most 600 bytes a token. LARGEST (1,000,000) bounds
the texts; the datastore has DATASTORE (10,000,000) tokens, of texts that come again if there are fewer, and
is asked along the embedded prompts, which it does not hold.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import psutil
import torch
import typer
from rich.console import Console

from treespec import TorchCoins
from treespec.draft import Datastore, PromptLookup, Retrieval, SuffixAutomaton, SuffixTree
from treespec.draft.text_source import TextSource
from treespec.experiments.benchmarks.results_file import save
from treespec.experiments.config.schema import EmbeddedPrompts
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.report.terminal import print_table, say
from treespec.experiments.run.held_out import HeldOut, installed_code
from treespec.experiments.run.prompts import read_prompts
from treespec.models.load import outline_pair

SIZES = (10_000, 100_000, 1_000_000)
PROPOSALS, EVERY = 300, 7
BATCH = 64

SOURCES: dict[str, Callable[[], TextSource]] = {
    "lookup": partial(PromptLookup, 10, size=64, branching=8),
    "suffix_tree": partial(SuffixTree, 10, size=64, branching=8),
    "suffix_automaton": partial(SuffixAutomaton, 10),
}

COLUMNS = (
    keyed("source", "source", left=True),
    keyed("tokens", "tokens", ","),
    keyed("us a token", "read_us", ".2f"),
    keyed("bytes a token", "bytes", ".0f"),
    keyed("propose p50 us", "propose_p50_us", ".0f"),
    keyed("p99 us", "propose_p99_us", ".0f"),
)
STORE_COLUMNS = (
    keyed("tokens", "tokens", ","),
    keyed("sort s", "build_s", ".1f"),
    keyed("file MB", "file_mb", ".0f"),
    keyed("propose p50 us", "propose_p50_us", ".0f"),
    keyed("p99 us", "propose_p99_us", ".0f"),
    keyed("resident MB", "resident_mb", ".0f"),
)


def texts() -> Iterator[list[int]]:
    """The token ids of the .py files of installed packages, without copies of held-out files."""
    tokenizer = outline_pair("embedded", "none").tokenizer
    files, held_out = installed_code(), HeldOut()
    for begin in range(0, len(files), BATCH):
        batch = files[begin : begin + BATCH]
        read = [(path.name, path.read_text("utf-8", "replace")) for path in batch]
        kept = [text for name, text in read if not held_out.has_copy(name, text)]
        yield from tokenizer(kept, add_special_tokens=False, verbose=False)["input_ids"]


def held_out() -> list[int]:
    """The embedded prompts' token ids, one after the other: texts that no datastore of ours holds."""
    tokenizer = outline_pair("embedded", "none").tokenizer
    given = [prompt.text for prompt in read_prompts(EmbeddedPrompts(kind="embedded"))]
    rows = tokenizer(given, add_special_tokens=False, verbose=False)["input_ids"]
    return [token for row in rows for token in row]


def some(tokens: int) -> list[list[int]]:
    """Texts of so many tokens in all, one after the other again if there are fewer."""
    found: list[list[int]] = []
    missing = tokens
    while missing > 0:
        before = missing
        for ids in texts():
            if ids:
                found.append(ids[:missing])
                missing -= len(ids)
            if missing <= 0:
                break
        if missing == before:
            raise SystemExit("no package is installed whose code could be read")
    return found


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    return psutil.Process().memory_info().rss


def proposals(drafter: TextSource, ids: Sequence[int]) -> dict[str, float]:
    """Median and 99th percentile of a proposal, in microseconds, while the text goes on."""
    coins, seconds = TorchCoins(0), []
    for i in range(PROPOSALS):
        drafter._take(ids[i * EVERY : (i + 1) * EVERY])
        start = time.perf_counter()
        drafter.propose(coins)
        seconds.append(time.perf_counter() - start)
    low, high = np.percentile(seconds, [50, 99]) * 1e6
    return {"propose_p50_us": float(low), "propose_p99_us": float(high)}


TEXT: list[int] = []
"""What the sources read: filled before the processes that measure are forked."""


def measured(name: str, size: int) -> dict[str, float]:
    """What a source costs after `size` tokens, in a process that has freed no memory before."""
    ids = TEXT
    drafter, before = SOURCES[name](), resident()
    drafter.prefill(torch.tensor(ids[: size - size // 10]))
    start = time.process_time()
    drafter._take(ids[size - size // 10 : size])
    seconds = time.process_time() - start
    used = resident() - before
    costs = {"read_us": seconds / (size // 10) * 1e6, "bytes": used / size}
    return costs | proposals(drafter, ids[size:])


def stored(given: Sequence[Sequence[int]], asked: Sequence[int]) -> dict[str, Any]:
    """What a datastore of texts costs, and proposals from it along another text."""
    with TemporaryDirectory(prefix="treespec-") as folder:
        start = time.perf_counter()
        path = Path(folder) / "store"
        Datastore.build(path, given, vocab_size=2**20)
        seconds = time.perf_counter() - start
        before = resident()
        store = Datastore(path)
        drafter = Retrieval(store, 10, size=65, branching=64)
        drafter.prefill(torch.tensor(asked[:16]))
        row: dict[str, Any] = {"tokens": store.about["tokens"], "build_s": seconds}
        row |= {"file_mb": path.stat().st_size / 1e6, **proposals(drafter, asked[16:])}
        return row | {"resident_mb": (resident() - before) / 1e6}


def main(
    largest: Annotated[int, typer.Argument(help="Tokens of the longest text.")] = SIZES[-1],
    datastore: Annotated[int, typer.Argument(help="Tokens of the datastore.")] = 10_000_000,
) -> None:
    """Measure, print, and keep the figures."""
    console = Console()
    more = PROPOSALS * EVERY
    TEXT.extend(token for text in some(largest + more) for token in text)
    rows = []
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for name in SOURCES:
            for size in (size for size in SIZES if size <= largest):
                say(console, f"{name}, {size:,} tokens")
                costs = pool.apply(measured, (name, size))
                rows.append({"source": name, "tokens": size, **costs})
    print_table(Table("reading and proposing", COLUMNS, rows), console)
    say(console, f"datastore of {datastore:,} tokens")
    asked = held_out()
    store = stored(some(datastore), (asked * (more // len(asked) + 2))[: more + 16])
    print_table(Table("datastore", STORE_COLUMNS, [store]), console)
    say(console, f"written: {save('draft_sources', {'sources': rows, 'datastore': store})}")


if __name__ == "__main__":
    typer.run(main)
