"""What `best_tree` gives: shapes by predicted speed, each with its interval, and a verdict in words."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from treespec.search.arguments import SHAPE, TEXT, maybe, takes
from treespec.search.intervals import Interval, expanded_tail
from treespec.shape import TreeShape

__all__ = ["Choice", "Ranking", "Speed", "bounds"]

ROWS_SHOWN = 12
"""Rows that are printed, besides the best chain and plain decoding."""


@dataclass(frozen=True, eq=False)
class Speed:
    """Tokens and time of a step, as estimated and under every resample.

    Args:
        tokens: expected tokens of a step.
        seconds: of a step.
        tokens_drawn, seconds_drawn: the same under the resamples.
        texts: that were resampled, where it is known.
    """

    tokens: float
    seconds: float
    tokens_drawn: Float[np.ndarray, "draws"]
    seconds_drawn: Float[np.ndarray, "draws"]
    texts: int | None = None

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def rate_drawn(self) -> Float[np.ndarray, "draws"]:
        """Tokens per second under the resamples."""
        return self.tokens_drawn / self.seconds_drawn


@dataclass(frozen=True, eq=False)
class Choice:
    """One row of a ranking.

    Args:
        kind: a tree, a chain, or plain decoding (the root alone).
        shape: the topology.
        law: how children are drawn; of plain decoding, the law whose sampling settings it has.
        tokens_per_step: expected tokens of a step, of each text.
        step_s: seconds of a step.
        tokens_per_s: of all texts of the batch together.
        speedup: over plain decoding.
    """

    kind: Literal["tree", "chain", "plain"]
    shape: TreeShape
    law: str
    tokens_per_step: Interval
    step_s: Interval
    tokens_per_s: Interval
    speedup: Interval

    @property
    def size(self) -> int:
        """Nodes, the root included."""
        return self.shape.size

    @property
    def depth(self) -> int:
        """Edges between the root and the deepest node."""
        return self.shape.depth

    @property
    def label(self) -> str:
        """What it is, in words."""
        if self.kind == "plain":
            return "plain decoding"
        if self.kind == "chain":
            return f"chain of {self.depth}"
        return f"tree of {self.size} nodes, {self.depth} deep"


@dataclass(frozen=True, eq=False)
class Ranking:
    """Shapes by predicted tokens per second.

    Args:
        rows: fastest first: the best trees, all chains, plain decoding.
        tree_beats_chain: in how many of the resamples the best tree is faster than the best chain, as a
            share; NaN if there is no tree or no chain.
        prefix: the prefix length that was asked for; None for times that hold behind every prefix.
        batch: texts at once.
        level: of the intervals.
        draws: resamples.
        notes: what limits the result.
    """

    rows: tuple[Choice, ...]
    tree_beats_chain: float
    prefix: int | None
    batch: int
    level: float
    draws: int
    notes: tuple[str, ...]
    _speed: Callable[[TreeShape, str], Speed] = field(repr=False)

    @property
    def best(self) -> Choice:
        """The fastest of all: a tree, a chain, or plain decoding."""
        return self.rows[0]

    @property
    def tree(self) -> Choice | None:
        """The fastest tree that is no chain."""
        return next((row for row in self.rows if row.kind == "tree"), None)

    @property
    def chain(self) -> Choice | None:
        """The fastest chain."""
        return next((row for row in self.rows if row.kind == "chain"), None)

    @property
    def plain(self) -> Choice:
        """Plain decoding."""
        return next(row for row in self.rows if row.kind == "plain")

    @takes(shape=SHAPE, law=maybe(TEXT))
    def regret(self, shape: TreeShape, law: str | None = None) -> Interval:
        """What is lost by using this shape, tuned elsewhere, instead of the best one here.

        1 - tokens per second of the shape / tokens per second of `best`: 0.1 is a tenth of the speed. Both
        are resampled together. Negative where a shape that was not among the candidates is faster.

        Args:
            shape: any that the rates and times cover; the root alone is plain decoding.
            law: how its children are drawn; that of the best one by default.

        Raises:
            NotMeasured, InvalidAcceptance: if times or rates do not cover the shape.
        """
        law = self.best.law if law is None else str(law)
        here, best = self._speed(shape, law), self._speed(self.best.shape, self.best.law)
        drawn = 1 - here.rate_drawn / best.rate_drawn
        texts = min((s.texts for s in (here, best) if s.texts is not None), default=None)
        return bounds(1 - here.rate / best.rate, drawn, self.level, texts)

    @cached_property
    def verdict(self) -> str:
        """The answer in a sentence."""
        best, tree, chain = self.best, self.tree, self.chain
        if best.kind == "plain":
            others = ""
            if len(self.rows) > 1:
                near = self.rows[1]
                others = f"; the best of the others, a {near.label}, has {_text(near.speedup)} of its speed"
            return f"Decode plainly: no tree or chain is predicted to be faster{others}."
        said = f"Use the {best.label} ({best.law}): {_text(best.speedup)} times plain decoding"
        other = chain if best.kind == "tree" else tree
        if other is None:
            return f"{said}; there was no {'chain' if best.kind == 'tree' else 'tree'} to compare with."
        share = self.tree_beats_chain if best.kind == "tree" else 1 - self.tree_beats_chain
        return (
            f"{said}; the best {other.kind} ({other.label}) reaches {_text(other.speedup)}, "
            f"and is slower with probability {share:.2f}."
        )

    def __str__(self) -> str:
        shown = list(self.rows[:ROWS_SHOWN])
        shown += [row for row in (self.tree, self.chain, self.plain) if row and row not in shown]
        head = (
            "",
            "shape",
            "law",
            "nodes",
            "depth",
            "tokens/step",
            "ms/step",
            "tokens/s",
            "speed-up",
        )
        cells = [head]
        for row in shown:
            place = str(self.rows.index(row) + 1)
            step = Interval(*(1e3 * seconds for seconds in row.step_s))
            cells.append(
                (place, row.kind, row.law, str(row.size), str(row.depth), _text(row.tokens_per_step),
                 _text(step), f"{row.tokens_per_s.estimate:.1f}", _text(row.speedup))
            )  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
                 for line in cells]  # fmt: skip
        where = "" if self.prefix is None else f"behind {self.prefix} tokens, "
        lines.append(
            f"{where}batch {self.batch}; {100 * self.level:g} % intervals from {self.draws} resamples"
        )
        return "\n".join([*lines, *self.notes, self.verdict])

    def to_json(self) -> str:
        """Verdict and rows as JSON, times in milliseconds, shapes as parents."""

        def numbers(interval: Interval, scale: float = 1.0) -> dict[str, float]:
            return {name: scale * value for name, value in interval._asdict().items()}

        def row(place: int, choice: Choice) -> dict[str, Any]:
            return {
                "rank": place,
                "kind": choice.kind,
                "law": choice.law,
                "size": choice.size,
                "depth": choice.depth,
                "parents": list(choice.shape.parents),
                "tokens_per_step": numbers(choice.tokens_per_step),
                "step_ms": numbers(choice.step_s, 1e3),
                "tokens_per_s": numbers(choice.tokens_per_s),
                "speedup": numbers(choice.speedup),
            }

        beats = None if np.isnan(self.tree_beats_chain) else self.tree_beats_chain
        data = {
            "version": 1,
            "verdict": self.verdict,
            "tree_beats_chain": beats,
            "prefix": self.prefix,
            "batch": self.batch,
            "level": self.level,
            "draws": self.draws,
            "notes": list(self.notes),
            "rows": [row(i, own) for i, own in enumerate(self.rows, start=1)],
        }
        return json.dumps(data, indent=1)


def bounds(
    estimate: float, drawn: Float[np.ndarray, "draws"], level: float, texts: int | None = None
) -> Interval:
    """The percentile interval at this level.

    Args:
        estimate: what was resampled.
        drawn: the resamples.
        level: of confidence.
        texts: that were drawn with replacement; then the percentiles are expanded for their small number,
            as in `intervals.bootstrap_bounds`.
    """
    tail = (1 - level) / 2 if texts is None else expanded_tail(texts, level)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(float(estimate), float(low), float(high))


def _text(value: Interval) -> str:
    """An estimate, and its interval if it has any width."""
    exact = np.isclose(value.low, value.high, rtol=1e-9)
    return f"{value.estimate:.2f}" + ("" if exact else f" {value.low:.2f}–{value.high:.2f}")
