"""What `best_tree` gives: shapes by predicted speed, each with its interval, and advice in words."""

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
    "order: by speed, and within a kind (tree, chain, tree that grows; of each law and trace) as the "
    "choice ranks it, with the noise of single texts smoothed out. The first of a kind was chosen, and is "
    "valued on other texts than it was chosen on, its time made longer by what choosing flatters; those "
    "after it on the same texts, which flatters the luckiest: they may look faster, and are not shown to be"
)
"""Said of rankings on traces."""

SEVERAL = (
    "the first of a kind was chosen among several traces or laws, too: what that flatters is taken off its "
    "tokens and time; the others keep theirs, and may look faster"
)
"""Said where that is anything."""

VALUED_ON: Mapping[Basis, str] = {"": "", "replay": "same texts", "cross-fitted": "other texts"}
"""Than those that a shape was chosen on."""

TREES = (
    "tree 3+4: 3 nodes at depth 1, 4 at depth 2; (3,1): the children of each node, where trees of as many "
    "nodes at each depth are listed"
)
"""How trees are named."""

ONE_CHILD_ALIKE = {Law.IID.value, Law.WITHOUT_REPLACEMENT.value}
"""Laws under which chains are the same."""

ROWS_SHOWN = 12
"""Rows that are printed, besides the best chain and plain decoding."""


@dataclass(frozen=True)
class Setting:
    """What all shapes of a ranking have in common.

    Args:
        prefix: the prefix length that was asked for; None for times that hold behind every prefix.
        batch: texts at once.
        level: of the intervals.
        draws: resamples.
    """

    prefix: int | None
    batch: int
    level: float
    draws: int


@dataclass(frozen=True, eq=False)
class Ranking:
    """Shapes by predicted tokens per second.

    Args:
        rows: fastest first: the best trees, all chains, plain decoding. Of a trace, the shapes of a kind
            stand in the order of the choice (`Choice.basis`).
        setting: prefix, batch, level of the intervals and number of resamples.
        notes: what limits the result.
        advice: which shape to use, or between which it is not decided.
        entries: the rows with their resamples, in the same order.
        before_correction: the same before anything was taken off, in the order in which they were found.
        on_intervals: those of the notes that say which intervals there are too few texts for.
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
        """The prefix length that was asked for; None for times that hold behind every prefix."""
        return self.setting.prefix

    @property
    def batch(self) -> int:
        """Texts at once."""
        return self.setting.batch

    @property
    def level(self) -> float:
        """Confidence of the intervals."""
        return self.setting.level

    @property
    def draws(self) -> int:
        """Resamples."""
        return self.setting.draws

    @cached_property
    def tree_beats_chain(self) -> float:
        """In how many of the resamples the best tree is faster than the best chain, as a share.

        Ties count half; NaN if there is no tree or no chain.
        """
        rows = self.tree, self.chain
        if rows[0] is None or rows[1] is None:
            return float("nan")
        tree, chain = (self.entries[self.rows.index(row)].speed.rate_drawn for row in rows if row)
        return float(((tree > chain) + 0.5 * (tree == chain)).mean())

    @property
    def best(self) -> Choice:
        """The fastest of all: a tree, a chain, a tree that grows, or plain decoding."""
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

    def speed(self, shape: TreeShape, law: str) -> Speed:
        """Tokens and time of a step of any shape that was measured; of the root alone, of plain decoding.

        Raises:
            NotMeasured, InvalidAcceptance, InvalidTrace, InvalidLimit: if it was not.
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
        """What is lost by using this shape, tuned elsewhere, instead of the best one here.

        1 - tokens per second of the shape / tokens per second of `best`: 0.1 is a tenth of the speed. Both
        are resampled together. Of a trace, `best` and the best of the other kind have what cross-fitting
        leaves of them, and a longer time (`optimism`); any other shape has its own replay: one that looks
        faster than `best` by chance has a negative regret.

        Args:
            shape: any that the rates and times cover; the root alone is plain decoding.
            law: how its children are drawn; by default as those of the best of its kind.

        Raises:
            NotMeasured, InvalidAcceptance: if times or rates do not cover the shape.
        """
        if law is None:
            law = ((self.chain if shape.is_chain else self.tree) or self.plain).law
        here, best = self.speed(shape, str(law)), self.entries[0].speed
        drawn = 1 - here.rate_drawn / best.rate_drawn
        texts = min((s.texts for s in (here, best) if s.texts is not None), default=None)
        return bounds(1 - here.rate / best.rate, drawn, self.level, texts)

    @property
    def verdict(self) -> str:
        """The advice in words."""
        return str(self.advice)

    def __str__(self) -> str:
        shown = list(self.rows[:ROWS_SHOWN])
        shown += [row for row in (self.tree, self.chain, self.plain) if row and row not in shown]
        shown.sort(key=self.rows.index)
        named, on_trace = any(row.source for row in self.rows), any(row.basis for row in self.rows)
        trees = [row.shape for row in shown if row.kind == "tree"]
        names = dict(zip(trees, tree_names(trees), strict=True))
        head = (
            "rank",
            *(["trace"] if named else []),
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
                    *([row.source] if named else []),
                    *(shape, row.law, f"{row.nodes:.4g}", str(row.depth)),
                    *(row.tokens_per_step.text(), row.step_s.scaled(1e3).text()),
                    *(f"{row.tokens_per_s.estimate:.1f}", row.speedup.text()),
                    *([VALUED_ON[row.basis]] if on_trace else []),
                )
            )
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
                 for line in cells]  # fmt: skip
        where = "" if self.prefix is None else f", behind {self.prefix} tokens"
        title = f"predicted speed of trees, chains and plain decoding{where}, batch {self.batch}"
        lines.append(f"{100 * self.level:g} % intervals from {self.draws} resamples")
        if trees:
            lines.append(TREES)
        if on_trace:
            lines.append(EMITTED)
        return "\n".join([title, *lines, *self.notes, self.verdict])

    def to_json(self) -> str:
        """Verdict and rows as JSON, times in milliseconds, shapes as parents."""

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
    """The ranking of these shapes, of which one at least is plain decoding.

    The best of a kind is chosen among the best of each trace and law, and what that flatters is taken off
    it (`flattery`). The others keep what they have, and stand behind it.

    Args:
        entries: shapes, those of a trace in the order of the choice; of several that are plain decoding,
            the fastest is what all are held against.
        setting: what they have in common.
        notes: what limits the result; each is said once.
        speed: of any other shape, by law.
    """
    placed = _placed(entries)
    groups: dict[Kind, dict[tuple[str, str], Entry]] = {}
    for _, entry in placed:
        groups.setdefault(entry.kind, {}).setdefault((entry.source, entry.law), entry)
    firsts = {kind: [*ones.values()] for kind, ones in groups.items()}
    taken = {kind: flattery([one.speed for one in ones]) for kind, ones in firsts.items()}
    best = {kind: _less(ones[0], taken[kind]) for kind, ones in firsts.items()}
    kept: list[tuple[float, Entry]] = []
    for rate, entry in placed:
        chosen, kind = entry is firsts[entry.kind][0], entry.kind
        if chosen or kind != "plain":
            rate = min(rate, best[kind].speed.rate)
            kept.append((rate, best[kind] if chosen else entry))
    kept.sort(key=lambda one: -one[0])
    ordered = tuple(entry for _, entry in kept)
    plain = best["plain"].speed
    rows = {entry: row_of(entry, plain, setting.batch, setting.level) for entry in ordered}
    advice = advise(
        [(rows[entry], entry.speed) for entry in best.values()],
        setting.level,
        {
            kind: [
                (rows[one], _less(one, taken[kind]).speed)
                for one in ones[1:]
                if not _same(one, ones[0])
            ]
            for kind, ones in firsts.items()
            if kind != "plain"
        },
    )
    if any(one.basis for one in ordered):
        notes = [*notes, CHOSEN]
    if any(tokens * seconds > 1 for kind, (tokens, seconds) in taken.items() if kind != "plain"):
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


def _less(entry: Entry, flattered: tuple[float, float]) -> Entry:
    """The shape with as many fewer tokens, and so much more time, as `flattery` says."""
    tokens, seconds = flattered
    return replace(entry, speed=entry.speed.fewer(tokens).longer(seconds))


def _same(one: Entry, other: Entry) -> bool:
    """Whether these are one thing under two names: one child is drawn alike by either law."""
    alike = {one.law, other.law} <= ONE_CHILD_ALIKE and one.kind == other.kind == "chain"
    return alike and one.source == other.source


def _placed(entries: Sequence[Entry]) -> list[tuple[float, Entry]]:
    """The fastest first, with the speed that each is placed by.

    No replayed shape stands before one of its trace, law and kind that the choice preferred.
    """
    placed: list[tuple[float, int, int, str, Entry]] = []
    slowest: dict[tuple[str, str, str], float] = {}
    for place, entry in enumerate(entries):
        rate, before = entry.speed.rate, 0
        if entry.basis:
            group = entry.source, entry.law, entry.kind
            rate, before = min(rate, slowest.get(group, rate)), place
            slowest[group] = rate
        placed.append((-rate, before, entry.shape.size, entry.law, entry))
    return [(-one[0], one[-1]) for one in sorted(placed, key=lambda one: one[:-1])]
