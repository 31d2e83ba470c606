"""The speed of shapes on a trace: tokens from replay of its texts, seconds from measured times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from treespec.search.choice.candidates import (
    RANKED_TREES,
    Limits,
    Room,
    candidate_depths,
    candidate_sizes,
    chains_within,
)
from treespec.search.choice.rows import Basis, Choice, Growing, Kind, Speed
from treespec.search.errors import InvalidTrace, NotMeasured
from treespec.search.intervals import draws
from treespec.search.latency.interpolation import Term
from treespec.search.latency.latency import Times
from treespec.search.latency.step_parts import require_time, seconds_of
from treespec.search.traces.acceptance import Rates
from treespec.search.traces.counts import FEWEST_TRIALS
from treespec.search.traces.rates import rates_of
from treespec.search.traces.replay import by_file, require_given_trees
from treespec.search.traces.rule_notes import in_order, note_on
from treespec.search.traces.totals import TextTotals
from treespec.search.traces.trace import Trace
from treespec.search.value.frontier import optimal_frontier
from treespec.tree.shape import TreeShape

NEARLY_KNOWN_LEVELS = 16
"""Levels that trees may have although they are not known at the ends of texts, if they are known at the
share `LEAST_SHARE_KNOWN` of the positions."""
LEAST_SHARE_KNOWN = 0.85
SPLITS = 16
"""Random splits of the texts into halves that the value of a choice is averaged over."""
SHRINKAGE_TRIALS = 20.0
"""Pseudo-trials that shrink each depth's rate towards that of all depths: deep levels have few trials."""


@dataclass(frozen=True, eq=False)
class Totals:
    """The replayed steps of a shape: emitted tokens and seconds of each text, and its mean step's time."""

    emitted: Float[np.ndarray, "texts"]
    seconds: Float[np.ndarray, "texts"]
    mean_step: Sequence[Term]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return float(self.emitted.sum() / self.seconds.sum())


class TraceSpeed:
    """Trace and times of one law, and the speed of any shape.

    A shape is valued by its replay along the recorded ranks; rates only propose trees. The end of a text is
    not like its beginning, and the depth of a tree limits the positions at which its steps are known, so
    all shapes are valued on the positions at which the deepest one is known. Excerpts of one file count as
    one text.

    Args:
        law: name of the law.
        trace: a trace of decoding with at least two texts.
        times: times for a prefix and batch, which are the same for all laws.

    Attributes:
        parts: the measured times that steps are sums of.
        texts: number of texts that count.
        rates: rates by depth, for the levels that the trace has enough positions of.
        deepest: edges of the deepest tree that is considered.
        valued: the trace, up to where such a tree is known.

    Raises:
        InvalidTrace: if the trace is of given texts, has a single text, or supports no tree.
    """

    def __init__(self, law: str, trace: Trace, times: Times) -> None:
        _require_replays(trace)
        self.law, self.times, self.parts = law, times, times.of(law)
        self.trace, self.texts = trace, trace.samples
        known = _deepest(trace)
        self.rates, self._too_deep = _rates(trace, known)
        largest = self.parts.largest
        self.deepest = min(self.rates.levels or known, largest - 1 if largest else known)
        self.valued = _known_to(self.deepest, trace)
        self._valued_totals, self._trace_totals = TextTotals(self.valued), TextTotals(trace)
        self.unmeasured: dict[TreeShape, NotMeasured] = {}

    def warnings(self, depth: int | None) -> Iterator[str]:
        """What the trace does not support, for trees of at most `depth` edges; None for no limit."""
        if self.trace.samples < self.trace.texts:
            yield (
                f"{self.trace.texts} texts are excerpts of {self.texts} files, and count as {self.texts}"
            )
        recorded, valued = int(self.trace.text_kept.sum()), int(self.valued.text_kept.sum())
        if valued < recorded:
            yield (
                f"{recorded - valued} of {recorded} positions, at the ends of texts, were left out for "
                f"all shapes: trees of depth {self.deepest} are not known there; record more beyond the "
                "ends of texts (`treespec trace --beyond`)"
            )
        yield from note_on(self.trace.rule)
        if self._too_deep and (depth is None or depth > (self.rates.levels or 0)):
            yield self._too_deep

    def ranked(
        self, limits: Limits, room: Room, kinds: Sequence[Kind]
    ) -> tuple[list[Choice], list[str]]:
        """The best static trees and all chains, each kind with the chosen one first, and notes."""
        notes = [f"{self.law}: {warning}" for warning in self.warnings(limits.depth)]
        entries: list[Choice] = []
        if "tree" in kinds and not room.wide:
            notes.append(f"{self.law}: chains only, since no wider level of the draft was measured")
        elif "tree" in kinds:
            entries += self.chosen(self.totals(self._trees(limits, room)), RANKED_TREES)
        if "chain" in kinds:
            entries += self.chosen(self.totals(chains_within(limits, room)))
        if self.unmeasured:
            first = next(iter(self.unmeasured.values()))
            notes.append(
                f"{self.law}: {len(self.unmeasured)} of the shapes were skipped because a time was not "
                f"measured: {first}"
            )
        return entries, notes

    def _trees(self, limits: Limits, room: Room) -> list[TreeShape]:
        """The trees with the most expected tokens, for all small sizes and a grid of larger ones.

        They are the best under the rates by depth, and under those of the first level at every depth.
        """
        if room.depth < 1:
            return []
        sizes = sorted(limits.sizes or candidate_sizes(room.size))
        trees: dict[TreeShape, None] = {}
        table = self.rates.table[: room.depth, : room.branching]
        for rates in (table, table[0]):
            frontier = optimal_frontier(rates, max(sizes), depth=room.depth)
            tokens = frontier.values
            for depth in candidate_depths(min(room.depth, len(tokens) - 1)):
                for size in sizes:
                    if size > depth + 1 and tokens[depth, size] > max(tokens[depth - 1, size], 0.0):
                        trees[frontier.shape(size, depth)] = None
        return list(trees)

    def totals(self, shapes: Sequence[TreeShape]) -> dict[TreeShape, Totals]:
        """Replay shapes on all texts; those without a measured time are left out (`unmeasured`).

        Shapes within `deepest` are valued on the same positions; a deeper one up to where it is known.
        """
        steps_of: dict[TreeShape, Any] = {}
        for shape in shapes:
            try:
                steps_of[shape] = self.parts.step(shape)
            except NotMeasured as error:
                self.unmeasured[shape] = error
        if not steps_of:
            return {}
        if any(shape.size > 1 for shape in steps_of):
            require_given_trees(self.trace)
        within = max(shape.depth for shape in steps_of) <= self.deepest
        texts = self._valued_totals if within else self._trace_totals
        found = {}
        for (shape, step), emitted, steps in zip(
            steps_of.items(), *texts.of(list(steps_of)), strict=True
        ):
            seconds = float(seconds_of(step)[0])
            require_time(self.law, seconds, shape.size)
            found[shape] = Totals(self.by_file(emitted), seconds * self.by_file(steps), step)
        return found

    def by_file(self, totals: Any) -> Float[np.ndarray, "files"]:
        """Totals of texts, as totals of the texts that count."""
        return by_file(np.asarray(totals, dtype=float), self.trace.file_of)

    def chosen(
        self, candidates: dict[TreeShape, Totals] | dict[Growing, Totals], most: int | None = None
    ) -> list[Choice]:
        """Entries of the fastest on all texts, the first one valued as `on_other_half` does."""
        if not candidates:
            return []
        best, *others = sorted(candidates.items(), key=lambda item: -item[1].rate)[:most]
        held = on_other_half(list(candidates.values()), self.times.seed)
        first = self._entry(best[0], held, "other texts")
        return [first, *(self._entry(shape, totals, "replay") for shape, totals in others)]

    def _entry(self, shape: TreeShape | Growing, totals: Totals, basis: Basis) -> Choice:
        growth = shape if isinstance(shape, Growing) else None
        static = TreeShape.chain(0) if isinstance(shape, Growing) else shape
        speed = self._speed(totals, static.size)
        return Choice(static, self.law, speed, basis=basis, growth=growth)

    def speed(self, shape: TreeShape) -> Speed:
        """Tokens per step by replay of all texts, and seconds; the root alone is plain decoding."""
        totals = self.totals([shape])
        if shape not in totals:
            raise self.unmeasured[shape]
        return self._speed(totals[shape], shape.size)

    def _speed(self, totals: Totals, size: int) -> Speed:
        """The tokens of steps that take as long as the mean step; `size` is for messages.

        A text counts as its seconds over the mean step's time: some growths spend less on hard texts.
        """
        seconds, seconds_drawn = self.times.seconds(totals.mean_step, self.law, size)
        weights = draws(self.texts, self.times.draws, self.times.seed)
        drawn = (weights @ totals.emitted) / (weights @ totals.seconds)
        return Speed(totals.rate * seconds, seconds, drawn * seconds, seconds_drawn, self.texts)


def _require_replays(trace: Trace) -> None:
    """Refuse a trace that no shape can be chosen on."""
    if trace.forced:
        raise InvalidTrace(
            "the trace is of given texts, so there are no steps to replay: record one while decoding "
            "(`treespec trace` without --follow), or search with its rates (`treespec estimate --out`)"
        )
    if trace.samples < 2:
        raise InvalidTrace(
            f"the trace has texts of {trace.samples} file ({trace.texts}), but shapes are chosen on some "
            "files and valued on others: record at least 2, better 24 (`prompts.count=24`), or search with "
            "its rates (`treespec estimate --out`)"
        )
    if trace.width > 1 and not in_order(trace.rule):
        raise InvalidTrace(
            f"under rule {trace.rule!r} acceptance depends on the number of children, and the trace holds "
            f"{trace.width} at each position, so shapes cannot be compared: record with --width 1 to "
            "search among chains, or record under a rule that tries children in order, such as rrs"
        )


def _rates(trace: Trace, known: int) -> tuple[Rates, str]:
    """Rates of the levels with enough positions, and a note on the levels below them.

    Rates are non-increasing in the rank, which makes the search for trees fast and removes only noise.
    """
    mass, trials = _counts(trace, np.flatnonzero(trace.inside), known)
    few = np.flatnonzero(trials < FEWEST_TRIALS)
    depth = int(few[0]) if len(few) else len(trials)
    if depth == 0:
        raise InvalidTrace(
            f"the trace has {int(trials[0])} positions, but a tree needs at least {FEWEST_TRIALS} before a "
            "level is used: record more or longer texts"
        )
    note = f"levels from depth {depth + 1} on were not used: "
    if depth < len(trials):
        note += f"reached from {int(trials[depth])} positions, fewer than {FEWEST_TRIALS}"
    elif depth == known:
        note += (
            "trees that deep are not known at the ends of texts; record more beyond the ends (`treespec "
            "trace --beyond`)"
        )
    else:
        note = ""
    every_rank = np.broadcast_to(trials[:depth, None], mass[:depth].shape)
    table = rates_of(mass[:depth], every_rank, SHRINKAGE_TRIALS, monotone=True)
    return Rates(table, by_depth=True), note


def _counts(
    trace: Trace, at: Int[np.ndarray, "starts"], levels: int
) -> tuple[Float[np.ndarray, "levels ranks"], Int[np.ndarray, "levels"]]:
    """Expected hits of each child at each depth of steps from these positions, and trials of each depth."""
    ends = trace.offsets[1:][trace.text_of[at]]
    mass, trials = [], []
    while len(at) and len(trials) < levels:
        level = len(trials)
        mass.append(trace.accepted_below(at, level).sum(axis=0))
        trials.append(len(at))
        goes_on = (trace.ranks_below(at, level) < trace.width) & (at + level + 1 < ends)
        at, ends = at[goes_on], ends[goes_on]
    return np.array(mass).reshape(-1, trace.width), np.array(trials)


def _deepest(trace: Trace) -> int:
    """Edges of the deepest tree that is known wherever a step may begin.

    If that is less than `NEARLY_KNOWN_LEVELS`, a depth up to that limit at which trees are known at nearly
    all positions.
    """
    lengths, kept = np.diff(trace.offsets), trace.text_kept
    most = trace.levels or len(trace.tokens)
    everywhere = min(1 + int((lengths - kept).min()), most)
    for depth in range(min(NEARLY_KNOWN_LEVELS, int(lengths.min()), most), everywhere, -1):
        if np.minimum(kept, lengths - depth + 1).sum() >= LEAST_SHARE_KNOWN * kept.sum():
            return depth
    return everywhere


def _known_to(depth: int, trace: Trace) -> Trace:
    """The trace, with `kept` reduced to the positions at which trees of this depth are known."""
    kept = np.minimum(trace.text_kept, np.diff(trace.offsets) - depth + 1)
    return trace if (kept == trace.text_kept).all() else replace(trace, kept=kept)


def on_other_half(candidates: Sequence[Totals], seed: int) -> Totals:
    """The totals that choosing the fastest gives: on each half, those of the shape chosen on the other one.

    The best of many shapes on few texts looks better on them than it is. Each text is in the other half
    once in every split, so its totals are means over the splits. They do not depend on the order of texts,
    which are first sorted by what the shapes emit on them.
    """
    emitted = np.stack([totals.emitted for totals in candidates])
    seconds = np.stack([totals.seconds for totals in candidates])
    order = np.lexsort(np.concatenate([seconds, emitted]))
    rng, texts = np.random.default_rng(seed), len(order)
    halves = np.zeros((SPLITS, texts), dtype=bool)
    for half in halves:
        half[order[rng.permutation(texts)[: texts // 2]]] = True
    chosen_on = np.concatenate([halves, ~halves])
    rates = (emitted @ chosen_on.T) / (seconds @ chosen_on.T)
    chosen = rates.argmax(axis=0)
    best = max(candidates, key=lambda totals: totals.rate)
    return Totals(
        (emitted[chosen] * ~chosen_on).sum(axis=0) / SPLITS,
        (seconds[chosen] * ~chosen_on).sum(axis=0) / SPLITS,
        best.mean_step,
    )
