"""`treespec search` and `treespec export`: the best tree for given rates; trees in other tools' formats."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treespec.experiments.config.files import (
    is_there,
    require_new,
    require_within,
    write_new,
)
from treespec.experiments.config.search_files import read_acceptance
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.source_budgets import USUAL_SIZE, FoundBudget, best_budget
from treespec.files import brief
from treespec.search import (
    AcceptanceEstimate,
    LatencyModel,
    Trace,
    best_tree,
    expected_tokens,
    formats,
    optimal_tree,
)
from treespec.search.choice.law_speed import RATES_ALONE
from treespec.search.choice.ranking import CHOSEN
from treespec.search.growth.keys import LARGEST_NUMBER, MOST_NODES
from treespec.search.traces.replay import EMITTED
from treespec.tree.shape import TreeShape

CHOSEN_ON_OTHERS = (
    "They are those of other texts: a tree is chosen on one half of the texts and replayed on the other. "
    "That mostly gives fewer tokens than replaying this tree on all texts, on which it was chosen."
)
"""Note on the expected tokens per step of a tree that was found on a trace."""

LARGEST_DRAWN = 64


def rates_of(text: str) -> list[float] | list[list[float]]:
    """Parse acceptance rates: `0.6,0.2,0.1` by rank, with semicolons between levels."""
    try:
        levels = [[float(rate) for rate in level.split(",")] for level in text.split(";")]
    except ValueError:
        raise ConfigError(
            f"rates = {brief(text)}, but expected numbers separated by commas, such as 0.6,0.2,0.1 "
            "(first, second and third child), with semicolons between levels"
        ) from None
    return levels[0] if len(levels) == 1 else levels


def read_source(text: str) -> Any:
    """Read rates as typed, an estimate as JSON, a trace, or Sequoia's acceptance vector."""
    path = Path(text)
    if is_there(text):  # folders, devices and pipes too: the reader refuses them by name
        return Trace.load(path) if path.suffix == ".npz" else read_acceptance(path)
    return rates_of(text)


def require_limits(size: int | None, depth: int | None, branching: int | None) -> None:
    """Reject limits of a search that are out of range."""
    require_within("--size", size, 1, MOST_NODES)
    require_within("--depth", depth, 0, LARGEST_NUMBER)
    require_within("--branching", branching, 1, LARGEST_NUMBER)


@dataclass(frozen=True)
class FoundTree:
    """The best tree of a given size, for acceptance rates or on a trace.

    Args:
        shape: the tree.
        tokens: expected tokens per step.
        chain: a chain of as many nodes, or as many as the depth limit allows.
        chain_tokens: expected tokens per step of the chain; None if the rates have too few levels.
        form: the format in which the tree is shown.
        notes: limits of the result.
    """

    shape: TreeShape
    tokens: float
    chain: TreeShape
    chain_tokens: float | None
    form: str
    notes: Sequence[str]

    def __str__(self) -> str:
        lines = [
            f"the best tree of {self.shape.size} nodes, the root included: depth {self.shape.depth}",
            *([str(self.shape)] if self.shape.size <= LARGEST_DRAWN else []),
            f"expected tokens per step {self.tokens:.3f} (plain decoding: 1)",
        ]
        if self.chain_tokens is not None:
            lines.append(f"a chain of {self.chain.size} nodes: {self.chain_tokens:.3f}")
        return "\n".join([*lines, *dumped(self.shape, self.form), *self.notes])

    def data(self) -> dict[str, Any]:
        dump, shape = formats.dump(self.shape, self.form), self.shape
        return {
            "shape": {"parents": shape.parents, "size": shape.size, "depth": shape.depth},
            "expected_tokens": self.tokens,
            "chain": {"size": self.chain.size, "expected_tokens": self.chain_tokens},
            "notes": list(self.notes),
            "format": {
                "name": self.form,
                "content": dump.content if isinstance(dump.content, str) else None,
                "counts_root": dump.counts_root,
                "lost": dump.lost,
                "notes": dump.notes,
            },
        }


def search(
    rates: str, size: int | None, depth: int | None, branching: int | None, form: str
) -> FoundTree | FoundBudget:
    """Find the best tree, by replay of a trace or for given rates, and compare it with a chain."""
    require_limits(size, depth, branching)
    source = read_source(rates)
    if isinstance(source, Trace) and source.text_drafts is not None:
        return best_budget(source, size, depth, branching)
    size = USUAL_SIZE if size is None else size
    if isinstance(source, Trace):
        return _on_trace(source, size, depth, branching, form)
    acceptance = source.rates if isinstance(source, AcceptanceEstimate) else source
    shape = optimal_tree(acceptance, size, depth=depth, branching=branching)
    chain, table = TreeShape.chain(min(size - 1, depth or size - 1)), np.asarray(acceptance)
    deep_enough = table.ndim == 1 or len(table) >= chain.depth
    chain_tokens = expected_tokens(chain, acceptance) if deep_enough else None
    notes = [f"note: {text}" for text in (RATES_ALONE, *getattr(source, "warnings", ()))]
    return FoundTree(shape, expected_tokens(shape, acceptance), chain, chain_tokens, form, notes)


def _on_trace(
    trace: Trace, size: int, depth: int | None, branching: int | None, form: str
) -> FoundTree:
    """The tree with the most tokens per step on a trace: the fastest if every step takes the same time."""
    constant = LatencyModel.from_tables(verify=1.0, draft=0.0, law=trace.law)
    ranking = best_tree(trace, constant, sizes=[size], depth=depth, branching=branching)
    best, chain = ranking.best, ranking.chain
    notes = [note for note in ranking.notes if note != CHOSEN]  # which is about rows
    if best.size != size:
        raise ConfigError(
            f"--size {size}: the trace supports no tree with {size} nodes; {'; '.join(notes)}"
        )
    return FoundTree(
        best.shape,
        best.tokens_per_step.estimate,
        TreeShape.chain(size - 1) if chain is None else chain.shape,
        None if chain is None else chain.tokens_per_step.estimate,
        form,
        [EMITTED, CHOSEN_ON_OTHERS, *(f"note: {text}" for text in notes)],
    )


def write_tree(shape: TreeShape, form: str, out: Path) -> str:
    """Write a tree in a format, and return a message that says so."""
    if shape.size == 1:
        raise ConfigError(
            f"--out {out}: the first row is plain decoding, so there is no tree to write"
        )
    write_new(out, formats.dump(shape, form).content)
    return f"written: {out}, {shape.size} nodes, the root included, as {form}"


def dumped(shape: TreeShape, form: str) -> list[str]:
    """Lines with the tree in a format and with what the format leaves out."""
    dump = formats.dump(shape, form)
    shown = dump.content if isinstance(dump.content, str) else f"{len(dump.content)} bytes"
    return [f"as {form}: {shown}", dump.report()]


def export(source: str, into: str, form: str | None, out: Path | None) -> tuple[str, str]:
    """Convert a tree; return what `treespec export` prints, and what the target format leaves out.

    With `out` the tree is written to that file, and the first text says so.
    """
    if out is not None:
        require_new(out)
    shape = formats.load(Path(source) if is_there(source) else source, form)
    dump = formats.dump(shape, into)
    if out is None:
        if isinstance(dump.content, bytes):
            raise ConfigError(f"format {into} is binary: name a file with --out")
        return dump.content, dump.report()
    return write_tree(shape, into, out), dump.report()
