"""The result of `best_tree`: shapes by predicted speed, each with its interval, and advice in words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from treespec.search.choice.advice import Advice, advise
from treespec.search.choice.rows import Basis, Choice, Kind
from treespec.search.traces.replay import EMITTED
from treespec.tree import Law
from treespec.tree.shape import TreeShape

CHOSEN = (
    "order: by speed; the first of a kind (tree, chain, tree that grows; for each law and trace) was "
    "chosen, and is valued on other texts than those it was chosen on. The others are valued on the same "
    "texts, which favours the luckiest: they may look faster without being so"
)
"""Note on rankings of traces."""

VALUED_ON: Mapping[Basis, str] = {"": "", "replay": "same texts", "other texts": "other texts"}
"""Whether a shape was valued on the texts that it was chosen on."""

TREES = "tree 3+4: 3 nodes at depth 1, 4 at depth 2"
LONGEST_NAME = 40
"""Characters of the name of a tree; longer ones are cut."""

ONE_CHILD_ALIKE = {Law.IID.value, Law.WITHOUT_REPLACEMENT.value}
"""Laws under which chains are the same."""

ROWS_SHOWN = 12
"""Number of rows that are printed, besides the best tree, the best chain and plain decoding."""


class Setting(NamedTuple):
    """The settings that all shapes of a ranking share.

    `prefix` is the prefix length that was asked for, None for times that hold for every prefix; `batch` the
    number of texts decoded at once; `level` the confidence level of the intervals; `draws` the number of
    resamples.
    """

    prefix: int | None
    batch: int
    level: float
    draws: int


@dataclass(frozen=True, eq=False)
class Ranking:
    """Shapes by predicted tokens per second.

    Args:
        rows: fastest first: the best trees, all chains, trees that grow, plain decoding. No shape precedes
            the chosen one of its kind.
        setting: prefix, batch, level of the intervals and number of resamples.
        notes: limitations of the result.
        advice: which shape to use, or which shapes are not decided between.
    """

    rows: tuple[Choice, ...]
    setting: Setting
    notes: tuple[str, ...]
    advice: Advice

    @property
    def best(self) -> Choice:
        """The fastest of all: a tree, a chain, a tree that grows, or plain decoding."""
        return self.rows[0]

    @property
    def tree(self) -> Choice | None:
        """The fastest tree that is not a chain."""
        return next((row for row in self.rows if row.kind == "tree"), None)

    @property
    def chain(self) -> Choice | None:
        """The fastest chain."""
        return next((row for row in self.rows if row.kind == "chain"), None)

    @property
    def plain(self) -> Choice:
        """Plain decoding."""
        return next(row for row in self.rows if row.kind == "plain")

    @property
    def verdict(self) -> str:
        """The advice in words."""
        return str(self.advice)

    def __str__(self) -> str:
        shown = list(self.rows[:ROWS_SHOWN])
        shown += [row for row in (self.tree, self.chain, self.plain) if row and row not in shown]
        shown.sort(key=self.rows.index)
        several_sources = any(row.source for row in self.rows)
        on_trace = any(row.basis for row in self.rows)
        head = (
            "rank",
            *(["trace"] if several_sources else []),
            *("shape", "law", "nodes", "depth", "tokens/step", "ms/step", "tokens/s", "speed-up"),
            *(["valued on"] if on_trace else []),
        )
        cells = [head]
        for row in shown:
            names = {"tree": f"tree {_name(row.shape)}", "chain": f"chain {row.depth}"}
            cells.append(
                (
                    str(self.rows.index(row) + 1),
                    *([row.source] if several_sources else []),
                    names.get(row.kind, str(row.growth or row.kind)),
                    *(row.law, f"{row.nodes:.4g}", str(row.depth)),
                    *(row.tokens_per_step.text(), row.step_s.scaled(1e3).text()),
                    *(f"{row.tokens_per_s.estimate:.1f}", row.speedup.text()),
                    *([VALUED_ON[row.basis]] if on_trace else []),
                )
            )
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
                 for line in cells]  # fmt: skip
        prefix, batch, level, draws = self.setting
        after = "" if prefix is None else f", after {prefix} tokens"
        title = f"predicted speed of trees, chains and plain decoding{after}, batch {batch}"
        lines.append(f"{100 * level:g} % intervals from {draws} resamples")
        if any(row.kind == "tree" for row in shown):
            lines.append(TREES)
        if on_trace:
            lines.append(EMITTED)
        return "\n".join([title, *lines, *self.notes, self.verdict])

    def to_json(self) -> str:
        """Verdict and rows as JSON; times are in milliseconds, shapes are parent arrays."""
        data = {
            "version": 1,
            "verdict": self.verdict,
            "advice": self.advice.to_dict(),
            **self.setting._asdict(),
            "notes": list(self.notes),
            "rows": [
                {"rank": place, **_row_data(row)} for place, row in enumerate(self.rows, start=1)
            ],
        }
        return json.dumps(data, indent=1)


def _name(shape: TreeShape) -> str:
    """A tree as its numbers of nodes at depths 1, 2, ...: `3+4` for a tree of 8 nodes."""
    levels = [shape.depths.count(depth) for depth in range(1, shape.depth + 1)]
    name = "+".join(map(str, levels))
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def _row_data(choice: Choice) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": choice.kind}
    if choice.source:
        data["source"] = choice.source
    data["law"] = choice.law
    if choice.growth is None:
        data |= {"size": choice.size, "depth": choice.depth, "parents": list(choice.shape.parents)}
    else:
        growth = choice.growth
        data |= {"growth": dict(growth.config), "nodes": growth.nodes}
        data |= {"depth": choice.depth, "sure": growth.sure}
    return data | {
        "basis": choice.basis,
        "tokens_per_step": choice.tokens_per_step._asdict(),
        "step_ms": choice.step_s.scaled(1e3)._asdict(),
        "tokens_per_s": choice.tokens_per_s._asdict(),
        "speedup": choice.speedup._asdict(),
    }


def ranked(rows: Sequence[Choice], setting: Setting, notes: Sequence[str]) -> Ranking:
    """Rank shapes, at least one of which is plain decoding.

    Of each kind, source and law the best one comes first. If plain decoding occurs several times, all
    shapes are compared with the fastest.
    """
    first_of: dict[tuple[Kind, str, str], Choice] = {}
    for row in rows:
        first_of.setdefault(row.group, row)
    leaders = sorted(first_of.values(), key=lambda row: (-row.speed.rate, row.size))
    best: dict[Kind, Choice] = {}
    for row in leaders:
        best.setdefault(row.kind, row)

    def place(row: Choice) -> tuple[float, bool, int, str]:
        leader = first_of[row.group]
        return -min(row.speed.rate, leader.speed.rate), row is not leader, row.size, row.law

    kept = [row for row in rows if row.kind != "plain" or row is best["plain"]]
    _, batch, level, _ = setting
    compared = {
        row: replace(row, plain=best["plain"].speed, batch=batch, level=level)
        for row in sorted(kept, key=place)
    }
    first = leaders[0]
    contenders = [
        compared[row]
        for row in leaders
        if row is best[row.kind]
        or (row.kind == first.kind != "plain" and not _equivalent(row, first))
    ]
    if any(row.basis for row in kept):
        notes = [*notes, CHOSEN]
    advice = advise(contenders, level)
    return Ranking(tuple(compared.values()), setting, tuple(dict.fromkeys(notes)), advice)


def _equivalent(left: Choice, right: Choice) -> bool:
    """Whether both are chains of one source under laws that draw a single child alike."""
    alike = {left.law, right.law} <= ONE_CHILD_ALIKE and left.kind == right.kind == "chain"
    return alike and left.source == right.source
