"""The result of `best_tree`: shapes by predicted speed, each with its interval, and advice in words."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan
from typing import Any

from treespec.search.arguments import SHAPE, TEXT, maybe, takes
from treespec.search.choice.advice import Advice, advise
from treespec.search.choice.labels import tree_names
from treespec.search.choice.optimism import flattery
from treespec.search.choice.rows import Basis, Choice, Entry, Kind, Speed, bounds, row_of
from treespec.search.intervals import Interval
from treespec.search.rates.replay import EMITTED
from treespec.shape import TreeShape
from treespec.tree import Law

__all__ = ["CHOSEN", "SEVERAL", "Choice", "Ranking", "Setting", "Speed", "bounds", "ranked"]

CHOSEN = (
    "order: by speed; within a kind (tree, chain, tree that grows; for each law and trace) by the ranking "
    "of the choice, which smooths out the noise of single texts. The first of a kind was chosen: it is "
    "valued on other texts than those it was chosen on, and its time is corrected for the bias of the "
    "choice. The others are valued on the same texts, which favours the luckiest: they may look faster "
    "without being so"
)
"""Note on rankings of traces."""

SEVERAL = (
    "the first of a kind was also chosen among several traces or laws: its tokens and time are corrected "
    "for the bias of that choice; the others are not corrected, and may look faster"
)
"""Note where that correction is not zero."""

VALUED_ON: Mapping[Basis, str] = {"": "", "replay": "same texts", "cross-fitted": "other texts"}
"""Whether a shape was valued on the texts that it was chosen on."""

TREES = (
    "tree 3+4: 3 nodes at depth 1, 4 at depth 2; (3,1): the children of each node, added where several "
    "listed trees have the same numbers of nodes"
)
"""Explanation of the names of trees."""

ONE_CHILD_ALIKE = {Law.IID.value, Law.WITHOUT_REPLACEMENT.value}
"""Laws under which chains are the same."""

ROWS_SHOWN = 12
"""Number of rows that are printed, besides the best tree, the best chain and plain decoding."""


@dataclass(frozen=True)
class Setting:
    """The settings that all shapes of a ranking share.

    Args:
        prefix: the prefix length that was asked for; None for times that hold for every prefix.
        batch: number of texts decoded at once.
        level: confidence level of the intervals.
        draws: number of resamples.
    """

    prefix: int | None
    batch: int
    level: float
    draws: int


@dataclass(frozen=True, eq=False)
class Ranking:
    """Shapes by predicted tokens per second.

    Args:
        rows: fastest first: the best trees, all chains, plain decoding. For a trace, shapes of one kind are
            in the order of the choice (`Choice.basis`).
        setting: prefix, batch, level of the intervals and number of resamples.
        notes: limitations of the result.
        advice: which shape to use, or which shapes are not decided between.
        entries: the rows with their resamples, in the same order.
        before_correction: the entries before correction for the bias of choosing, in the order in which
            they were found.
        on_intervals: the notes on intervals that there are too few texts for.
    """

    rows: tuple[Choice, ...]
    setting: Setting
    notes: tuple[str, ...]
    advice: Advice
    entries: tuple[Entry, ...] = field(repr=False)
    before_correction: tuple[Entry, ...] = field(repr=False)
    _speed: Callable[[TreeShape, str], Speed] = field(repr=False)
    on_intervals: tuple[str, ...] = ()

    @property
    def prefix(self) -> int | None:
        """The prefix length that was asked for; None for times that hold for every prefix."""
        return self.setting.prefix

    @property
    def batch(self) -> int:
        """Number of texts decoded at once."""
        return self.setting.batch

    @property
    def level(self) -> float:
        """Confidence level of the intervals."""
        return self.setting.level

    @property
    def draws(self) -> int:
        """Number of resamples."""
        return self.setting.draws

    @cached_property
    def tree_beats_chain(self) -> float:
        """The share of resamples in which the best tree is faster than the best chain.

        Ties count half; NaN if there is no tree or no chain.
        """
        tree_entry, chain_entry = self._entry(self.tree), self._entry(self.chain)
        if tree_entry is None or chain_entry is None:
            return float("nan")
        tree, chain = tree_entry.speed.rate_drawn, chain_entry.speed.rate_drawn
        return float(((tree > chain) + 0.5 * (tree == chain)).mean())

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

    def speed(self, shape: TreeShape, law: str) -> Speed:
        """Tokens and time of a step of any shape that was measured; the root alone is plain decoding.

        Raises:
            NotMeasured, InvalidAcceptance, InvalidTrace, InvalidLimit: if shape or law was not measured.
        """
        if shape.size == 1:
            return self.entries[self.rows.index(self.plain)].speed
        for entry in (self._entry(self.tree), self._entry(self.chain)):
            if entry is not None and (entry.shape, entry.law) == (shape, law):
                return entry.speed
        return self._speed(shape, law)

    def _entry(self, row: Choice | None) -> Entry | None:
        return None if row is None else self.entries[self.rows.index(row)]

    @takes(shape=SHAPE, law=maybe(TEXT))
    def regret(self, shape: TreeShape, law: str | None = None) -> Interval:
        """The share of the speed that is lost by using this shape instead of the best one.

        1 - tokens per second of the shape / tokens per second of `best`: 0.1 is a tenth of the speed. Both
        are resampled together. For a trace, `best` and the best of the other kind have their cross-fitted
        speed and corrected time (`optimism`); any other shape has its own replay, so one that looks faster
        than `best` by chance has a negative regret.

        Args:
            shape: any shape that the rates and times cover, such as one tuned elsewhere; the root alone is
                plain decoding.
            law: how its children are drawn; by default as for the best of its kind.

        Raises:
            NotMeasured, InvalidAcceptance: if times or rates do not cover the shape.
        """
        if law is None:
            law = ((self.chain if shape.is_chain else self.tree) or self.plain).law
        speed, best = self.speed(shape, str(law)), self.entries[0].speed
        drawn = 1 - speed.rate_drawn / best.rate_drawn
        texts = min((s.texts for s in (speed, best) if s.texts is not None), default=None)
        return bounds(1 - speed.rate / best.rate, drawn, self.level, texts)

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
        trees = [row.shape for row in shown if row.kind == "tree"]
        names = dict(zip(trees, tree_names(trees), strict=True))
        head = (
            "rank",
            *(["trace"] if several_sources else []),
            *("shape", "law", "nodes", "depth", "tokens/step", "ms/step", "tokens/s", "speed-up"),
            *(["valued on"] if on_trace else []),
        )
        cells = [head]
        for row in shown:
            place = str(self.rows.index(row) + 1)
            shape = str(row.growth or row.kind)
            if row.kind in ("tree", "chain"):
                shape += f" {names[row.shape] if row.kind == 'tree' else row.depth}"
            cells.append(
                (
                    place,
                    *([row.source] if several_sources else []),
                    *(shape, row.law, f"{row.nodes:.4g}", str(row.depth)),
                    *(row.tokens_per_step.text(), row.step_s.scaled(1e3).text()),
                    *(f"{row.tokens_per_s.estimate:.1f}", row.speedup.text()),
                    *([VALUED_ON[row.basis]] if on_trace else []),
                )
            )
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
                 for line in cells]  # fmt: skip
        prefix = "" if self.prefix is None else f", after {self.prefix} tokens"
        title = f"predicted speed of trees, chains and plain decoding{prefix}, batch {self.batch}"
        lines.append(f"{100 * self.level:g} % intervals from {self.draws} resamples")
        if trees:
            lines.append(TREES)
        if on_trace:
            lines.append(EMITTED)
        return "\n".join([title, *lines, *self.notes, self.verdict])

    def to_json(self) -> str:
        """Verdict and rows as JSON; times are in milliseconds, shapes are parent arrays."""

        def numbers(interval: Interval, scale: float = 1.0) -> dict[str, float]:
            return interval.scaled(scale)._asdict()

        def shape(choice: Choice) -> dict[str, Any]:
            if choice.growth is None:
                size, parents = choice.size, list(choice.shape.parents)
                return {"size": size, "depth": choice.depth, "parents": parents}
            return {
                "growth": dict(choice.growth.config),
                "nodes": choice.nodes,
                "depth": choice.depth,
                "sure": choice.growth.sure,
            }

        def row(place: int, choice: Choice) -> dict[str, Any]:
            return {
                "rank": place,
                "kind": choice.kind,
                **({"source": choice.source} if choice.source else {}),
                "law": choice.law,
                **shape(choice),
                "basis": choice.basis,
                "tokens_per_step": numbers(choice.tokens_per_step),
                "step_ms": numbers(choice.step_s, 1e3),
                "tokens_per_s": numbers(choice.tokens_per_s),
                "speedup": numbers(choice.speedup),
            }

        beats = None if isnan(self.tree_beats_chain) else self.tree_beats_chain
        data = {
            "version": 1,
            "verdict": self.verdict,
            "advice": self.advice.to_dict(),
            "tree_beats_chain": beats,
            "prefix": self.prefix,
            "batch": self.batch,
            "level": self.level,
            "draws": self.draws,
            "notes": list(self.notes),
            "rows": [row(i, chosen) for i, chosen in enumerate(self.rows, start=1)],
        }
        return json.dumps(data, indent=1)


def ranked(
    entries: Sequence[Entry],
    setting: Setting,
    notes: Sequence[str],
    speed: Callable[[TreeShape, str], Speed],
) -> Ranking:
    """Rank shapes, at least one of which is plain decoding.

    The best of a kind is chosen among the best of each trace and law, and corrected for the bias of that
    choice (`flattery`). The others are not corrected, and rank below it.

    Args:
        entries: shapes, those of a trace in the order of the choice. If plain decoding occurs several
            times, all shapes are compared with the fastest.
        setting: the settings that they share.
        notes: limitations of the result; duplicates are dropped.
        speed: gives the speed of any other shape under a law.
    """
    placed = _placed(entries)
    groups: dict[Kind, dict[tuple[str, str], Entry]] = {}
    for _, entry in placed:
        groups.setdefault(entry.kind, {}).setdefault((entry.source, entry.law), entry)
    # By kind, the best entry of each trace and law, the best of all first.
    leaders = {kind: list(group.values()) for kind, group in groups.items()}
    bias = {kind: flattery([entry.speed for entry in group]) for kind, group in leaders.items()}
    best = {kind: _corrected(group[0], bias[kind]) for kind, group in leaders.items()}
    by_rate: list[tuple[float, Entry]] = []
    for rate, entry in placed:
        chosen, kind = entry is leaders[entry.kind][0], entry.kind
        if chosen or kind != "plain":
            rate = min(rate, best[kind].speed.rate)
            by_rate.append((rate, best[kind] if chosen else entry))
    by_rate.sort(key=lambda rate_and_entry: -rate_and_entry[0])
    ordered = tuple(entry for _, entry in by_rate)
    plain = best["plain"].speed
    rows = {entry: row_of(entry, plain, setting.batch, setting.level) for entry in ordered}
    rivals: dict[Kind, list[tuple[Choice, Speed]]] = {
        kind: [
            (rows[entry], _corrected(entry, bias[kind]).speed)
            for entry in group[1:]
            if not _equivalent(entry, group[0])
        ]
        for kind, group in leaders.items()
        if kind != "plain"
    }
    contenders = [(rows[entry], entry.speed) for entry in best.values()]
    advice = advise(contenders, setting.level, rivals)
    if any(entry.basis for entry in ordered):
        notes = [*notes, CHOSEN]
    if any(tokens * seconds > 1 for kind, (tokens, seconds) in bias.items() if kind != "plain"):
        notes = [*notes, SEVERAL]
    return Ranking(
        tuple(rows.values()),
        setting,
        tuple(dict.fromkeys(notes)),
        advice,
        ordered,
        tuple(entries),
        speed,
    )


def _corrected(entry: Entry, bias: tuple[float, float]) -> Entry:
    """The entry with fewer tokens and longer steps, by the factors that `flattery` gives."""
    tokens, seconds = bias
    return replace(entry, speed=entry.speed.fewer(tokens).longer(seconds))


def _equivalent(left: Entry, right: Entry) -> bool:
    """Whether both are chains of one source under laws that draw a single child alike."""
    alike = {left.law, right.law} <= ONE_CHILD_ALIKE and left.kind == right.kind == "chain"
    return alike and left.source == right.source


def _placed(entries: Sequence[Entry]) -> list[tuple[float, Entry]]:
    """Entries, fastest first, with the speed that each is ordered by.

    No replayed shape precedes a shape of its trace, law and kind that the choice preferred.
    """
    placed: list[tuple[float, int, int, str, Entry]] = []
    slowest: dict[tuple[str, str, str], float] = {}
    for place, entry in enumerate(entries):
        rate, order = entry.speed.rate, 0
        if entry.basis:
            group = entry.source, entry.law, entry.kind
            rate, order = min(rate, slowest.get(group, rate)), place
            slowest[group] = rate
        placed.append((-rate, order, entry.shape.size, entry.law, entry))
    placed.sort(key=lambda placement: placement[:-1])
    return [(-negative_rate, entry) for negative_rate, *_, entry in placed]
