"""`treespec search` and `treespec export`: the best tree for given rates; trees in other tools' words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treespec.experiments.config.base import LARGEST_NUMBER, MOST_NODES
from treespec.experiments.config.files import (
    is_there,
    require_new,
    require_there,
    require_within,
    write_new,
)
from treespec.experiments.config.search_files import read_acceptance
from treespec.experiments.errors import ConfigError
from treespec.experiments.search_then_run.budgets import USUAL_SIZE, FoundBudget, best_budget
from treespec.experiments.search_then_run.replays import RECORDING
from treespec.reading import brief
from treespec.search import (
    AcceptanceEstimate,
    LatencyModel,
    Trace,
    best_tree,
    expected_tokens,
    formats,
    optimal_tree,
)
from treespec.search.choice.best import RATES_ALONE
from treespec.search.choice.ranking import CHOSEN
from treespec.search.rates.replay import EMITTED
from treespec.shape import TreeShape

__all__ = [
    "FoundTree",
    "acceptance_of",
    "dumped",
    "export",
    "rates_of",
    "read_source",
    "search",
    "write_tree",
]

CHOSEN_ON_OTHERS = (
    "They are those of choosing a tree on some of the texts, on the others: mostly fewer than the replay "
    "of this tree on all of them, on which it was chosen."
)
"""Said of the tokens per step that are expected of a tree found on a trace."""

LARGEST_DRAWN = 64
"""Nodes up to which a tree is drawn."""


def rates_of(text: str) -> list[float] | list[list[float]]:
    """Acceptance rates as they are typed: `0.6,0.2,0.1` by rank, levels apart by semicolons.

    Raises:
        ConfigError: for what is not a number.
    """
    levels = []
    for level in text.split(";"):
        try:
            levels.append([float(rate) for rate in level.split(",")])
        except ValueError:
            raise ConfigError(
                f"rates = {brief(text)}, but they are numbers with commas between them, such as "
                "0.6,0.2,0.1 (first child, second, third), and semicolons between levels"
            ) from None
    return levels[0] if len(levels) == 1 else levels


def acceptance_of(text: str) -> list[float] | list[list[float]] | AcceptanceEstimate:
    """Rates as they are typed, or those of a file: an estimate as JSON, or a trace.

    Raises:
        ConfigError: for what is neither, and for a file that holds no estimate.
    """
    if is_there(text):  # also a folder, a device, a pipe: refused by name
        return read_acceptance(Path(text))
    if text.endswith(".json"):
        require_there(text, "", "treespec estimate TRACE --out rates.json")
    if text.endswith(".npz"):
        require_there(text, "", RECORDING)
    return rates_of(text)


def read_source(text: str) -> Any:
    """Rates as they are typed, those of an estimate as JSON, or a trace.

    Raises:
        ConfigError, InvalidTrace: for what is none of them.
    """
    if is_there(text) and Path(text).suffix == ".npz":
        return Trace.load(Path(text))
    return acceptance_of(text)


@dataclass(frozen=True)
class FoundTree:
    """The best tree of a size for acceptance rates, or on a trace.

    Args:
        shape: the tree.
        tokens: expected per step.
        chain: of as many nodes, as far as the depth allows.
        chain_tokens: expected per step; None if the rates do not reach so deep.
        form: the format that the tree is shown in.
        notes: what limits the result.
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
        """The same as plain data, with the format's words for the tree."""
        made, shape = formats.dump(self.shape, self.form), self.shape
        return {
            "shape": {"parents": shape.parents, "size": shape.size, "depth": shape.depth},
            "expected_tokens": self.tokens,
            "chain": {"size": self.chain.size, "expected_tokens": self.chain_tokens},
            "notes": list(self.notes),
            "format": {
                "name": self.form,
                "content": made.content if isinstance(made.content, str) else None,
                "counts_root": made.counts_root,
                "lost": made.lost,
                "notes": made.notes,
            },
        }


def search(
    rates: str, size: int | None, depth: int | None, branching: int | None, form: str
) -> FoundTree | FoundBudget:
    """The best tree beside a chain: by replay of a trace, or under rates.

    Args:
        rates: see `read_source`.
        size: nodes, the root included; None for 16, or for what the trace of a text source holds if that
            is less.
        depth: the most edges.
        branching: the most children of a node.
        form: the format that the tree is shown in.
    """
    require_within("--size", USUAL_SIZE if size is None else size, 1, MOST_NODES)
    require_within("--depth", 0 if depth is None else depth, 0, LARGEST_NUMBER)
    require_within("--branching", 1 if branching is None else branching, 1, LARGEST_NUMBER)
    given = read_source(rates)
    if isinstance(given, Trace) and given.text_drafts is not None:
        return best_budget(given, size, depth, branching)
    size = USUAL_SIZE if size is None else size
    if isinstance(given, Trace):
        return _on_trace(given, size, depth, branching, form)
    acceptance = given.rates if isinstance(given, AcceptanceEstimate) else given
    shape = optimal_tree(acceptance, size, depth=depth, branching=branching)
    chain, table = TreeShape.chain(min(size - 1, depth or size - 1)), np.asarray(acceptance)
    reached = table.ndim == 1 or len(table) >= chain.depth
    worth = expected_tokens(chain, acceptance) if reached else None
    tokens = expected_tokens(shape, acceptance)
    notes = [f"note: {text}" for text in (RATES_ALONE, *getattr(given, "warnings", ()))]
    return FoundTree(shape, tokens, chain, worth, form, notes)


def _on_trace(
    trace: Trace, size: int, depth: int | None, branching: int | None, form: str
) -> FoundTree:
    """The tree of most tokens per step on a trace: the fastest where every step takes the same time."""
    alike = LatencyModel.from_tables(verify=1.0, draft=0.0, law=trace.law)
    ranking = best_tree(trace, alike, sizes=[size], depth=depth, branching=branching)
    first, chain = ranking.best, ranking.chain
    # There are no rows to explain, and no intervals.
    notes = [n for n in ranking.notes if n != CHOSEN and n not in ranking.on_intervals]
    if first.size != size:
        raise ConfigError(
            f"--size {size}: the trace supports no tree with {size} nodes; {'; '.join(notes)}"
        )
    return FoundTree(
        first.shape,
        first.tokens_per_step.estimate,
        TreeShape.chain(size - 1) if chain is None else chain.shape,
        None if chain is None else chain.tokens_per_step.estimate,
        form,
        [EMITTED, CHOSEN_ON_OTHERS, *(f"note: {text}" for text in notes)],
    )


def write_tree(shape: TreeShape, form: str, out: Path) -> str:
    """Write a tree in a format, and say so.

    Raises:
        ConfigError: if it is plain decoding: there is no tree to write.
    """
    if shape.size == 1:
        raise ConfigError(
            f"--out {out}: the first row is plain decoding, so there is no tree to write"
        )
    made = formats.dump(shape, form)
    write_new(out, made.content)
    return f"written: {out}, {shape.size} nodes, the root included, as {form}"


def dumped(shape: TreeShape, form: str) -> list[str]:
    """The tree in a format, and what the format leaves out."""
    made = formats.dump(shape, form)
    shown = made.content if isinstance(made.content, str) else f"{len(made.content)} bytes"
    return [f"as {form}: {shown}", made.report()]


def export(source: str, into: str, form: str | None, out: Path | None) -> tuple[str, str]:
    """What `treespec export` prints, and what the other tool's words leave out.

    With `out` the tree goes to that file, and what is printed says so.

    Raises:
        ConfigError: if bytes are to be printed, or the file is there already.
    """
    if out is not None:
        require_new(out)
    if re.fullmatch(r"[\w./\\~-]+\.[A-Za-z]\w*", source):  # a name of a file, and no tree as text
        require_there(source, "", "treespec search SOURCE --out tree.json")
    shape = formats.load(Path(source) if is_there(source) else source, form)
    made = formats.dump(shape, into)
    if out is None:
        if isinstance(made.content, bytes):
            raise ConfigError(f"format {into} is binary: name a file with --out")
        return made.content, made.report()
    return write_tree(shape, into, out), made.report()
