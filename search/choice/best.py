"""Find the shape with the most predicted tokens per second, from measured acceptance and times."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from treespec.door import integer
from treespec.search.arguments import SEQUENCE, maybe, of_class, takes
from treespec.search.choice.advice import MOST_DRAWS
from treespec.search.choice.candidates import (
    Limits,
    Room,
    candidates,
    chains_within,
    read_sizes,
    require_sizes,
    require_trees,
    room_for,
)
from treespec.search.choice.cross_fitting import Kind
from treespec.search.choice.law_speed import (
    AnyAcceptance,
    LawSpeed,
    Times,
    acceptance_by_law,
    chains_as_run,
)
from treespec.search.choice.pairs import other_passes, passes_of
from treespec.search.choice.ranking import Ranking, Setting, ranked
from treespec.search.choice.rows import Entry, Speed
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.choice.traced import traced
from treespec.search.errors import InvalidLimit
from treespec.search.intervals import expanded_tail, require_level
from treespec.search.latency.latency import LatencyModel
from treespec.search.rates.rule_notes import accepts_alike
from treespec.search.rates.sampling_names import is_greedy, name_of
from treespec.search.rates.trace import Trace
from treespec.shape import TreeShape

__all__ = ["RATES_ALONE", "best_tree", "best_trees"]

ROOT, ONE_CHILD = TreeShape.chain(0), TreeShape.chain(1)

DRAWS = 1000
"""Resamples by default: with six texts or more, some lie beyond the bounds of 95 % intervals."""
RATES_ALONE = (
    "tokens are predicted from rates alone, as if every level were independent of those before it: "
    "search a trace to have trees replayed instead (`treespec trace`)"
)


@takes(latency=of_class("a search.LatencyModel", "LatencyModel"))
def best_tree(
    acceptance: AnyAcceptance | Mapping[str, AnyAcceptance],
    latency: LatencyModel,
    *,
    sizes: Iterable[int] | None = None,
    max_size: int | None = None,
    depth: int | None = None,
    branching: int | None = None,
    prefix: int | None = None,
    batch: int = 1,
    laws: Sequence[str] | None = None,
    chains: AnyAcceptance | Mapping[str, AnyAcceptance] | None = None,
    draws: int = DRAWS,
    level: float = 0.95,
    seed: int = 0,
) -> Ranking:
    """Rank trees, chains and plain decoding by predicted tokens per second, and advise at most one.

        tokens per second = batch * tokens per step / step_s(shape)

    For a trace, the tokens per step of a shape come from its replay on the trace's texts: what a live run
    on them would have emitted, whatever acceptance depends on. Rates only propose trees (`proposed`), local
    moves improve them, and all chains are tried. A shape chosen on few texts looks better on them than it
    is, so the best tree and the best chain are cross-fitted: the shape is the one chosen on all texts; its
    speed is that of the same procedure on each fifth of the texts after choosing on the others
    (`cross_fitted`); and its time exceeds the measured one by the bias of choosing among noisy times
    (`optimism`). The other rows of a kind follow in the order of the choice, each with its own replay.
    Intervals cover the variation of texts (at temperatures above 0 that of sampling too: a text is one
    draw) and of measured times. Levels and children that the trace has too little of are not used, and the
    notes name them.

    Where a trace holds the draft's probabilities off the text's path (`treespec trace --beam`), trees that
    grow are ranked beside static ones: EAGLE-2, OPT-Tree, SpecExec, equal and cost-aware growth over a few
    of their settings, by their own replay, timed step by step and cross-fitted in the same way (`grown`).

    For rates, tokens per step are `expected_tokens`, as if levels were independent (Sequoia,
    arXiv:2402.12374, section 3.4, over sizes and depths; ours also over laws, with the cost of wide draft
    levels). Candidates are the trees of `optimal_frontier` and all chains. Rates over all positions are not
    those of the positions where steps begin, and where good and bad stretches of text alternate, a product
    of rates is not the probability of a run of acceptances: a chain of 31 was predicted 8.6 tokens a step
    on a trace whose replay gives 3.0. Search the trace itself where there is one.

    All sizes up to 64 nodes are tried; above that, the measured sizes and others 6 % apart between them
    (`sizes` replaces these); for a trace a coarser grid, which local moves refine.

    Args:
        acceptance: a `Trace`, rates as `optimal_tree` takes them, an `AcceptanceEstimate`, or one of these
            by law.
        latency: the measured times.
        sizes: numbers of nodes, the root included, each of which must be feasible; by default all small and
            some large ones up to `max_size`.
        max_size: nodes of the largest tree; by default the largest that was measured.
        depth: maximum number of edges; by default 64, or the deepest level of the rates.
        branching: maximum number of children of a node.
        prefix: committed tokens before the root; None for the middle one of those measured.
        batch: number of texts decoded at once.
        laws: names of the laws to compare; by default those of `acceptance`. Acceptance and times measured
            under different sampling settings are combined only for laws that are named here.
        chains: acceptance of chains, where it is known separately: a trace of another law, rates of first
            children (`estimate_acceptance` with `ranks=1`; those of trees are not those of chains), or one
            by law. Chains are then ranked by these alone, and trees by `acceptance`. A law given only here
            has no trees. By default, where no law is named, chains of a trace of children drawn without
            replacement are drawn independently, as `treespec run` draws them, if that was timed.
        draws: number of resamples, enough that at least one lies beyond each bound (40 at level 0.95). Few
            texts need more, and the notes say so.
        level: confidence level of the intervals.
        seed: seed of the resamples.

    Raises:
        NotMeasured: if the times do not cover the requested sizes, prefix, batch or law, or cover one node
            only and no limit asks for that.
        InvalidAcceptance, InvalidLimit: as for `optimal_tree`; or if no law is known, or settings or models
            differ.
        InfeasibleTree: if one of `sizes` exceeds every tree within depth and branching.
        InvalidLatency: if a step takes no time.
        InvalidTrace: if a trace has one text, is of given texts, or is too short for any tree.

    Example:
        >>> latency = LatencyModel.from_tables(verify={1: 0.020, 64: 0.026}, draft=0.001)
        >>> best_tree([0.6, 0.2, 0.1], latency, max_size=32).best.shape.size
        32
        >>> best_tree([0.1], LatencyModel.from_tables(verify=0.02, draft=0.01), max_size=8).best.kind
        'plain'
    """
    require_level(level)
    draws, seed = _draws(draws, level), integer("seed", seed, 0, InvalidLimit)
    batch = integer("batch", batch, 1, InvalidLimit)
    limits = Limits(read_sizes(sizes), max_size, depth, branching)
    known = acceptance_by_law(acceptance, latency, laws, batch)
    if chains is None and laws is None:
        chains = chains_as_run(acceptance, latency, batch)
    prefix = None if prefix is None else integer("prefix", prefix, 0, InvalidLimit)
    prefix = latency.prefix_at(prefix, batch)
    times = Times(latency, prefix, batch, draws, seed, np.random.default_rng(seed))
    sides = {law: _side(law, measured, times) for law, measured in known.items()}
    chain_sides = {} if chains is None else _chain_sides(chains, laws, times)
    rooms = {law: room_for(side, limits) for law, side in sides.items()}
    entries: list[Entry] = []
    notes = [*_disturbed(latency), *_other_passes(known, latency)]
    notes += [*_timed_otherwise(known, latency, batch), *require_sizes(limits, rooms)]
    chain_rooms = {law: room_for(side, limits, strict=False) for law, side in chain_sides.items()}
    named_rooms = {f"chains of {law}": room for law, room in chain_rooms.items()}
    notes += require_trees(limits, rooms | named_rooms)
    for law, side in sides.items():
        kinds: list[Kind] = ["tree", "chain"] if chains is None else ["tree"]
        law_entries, law_notes = _ranked(side, limits, rooms[law], kinds)
        entries += law_entries
        notes += law_notes
    for law, side in chain_sides.items():
        room = chain_rooms[law]
        if limits.depth is not None and room.depth == (side.rates.levels or 0) < limits.depth:
            notes.append(
                f"{law}: no chain is longer than {room.depth}, the deepest level with rates of chains"
            )
        law_entries, law_notes = _ranked(side, limits, room, ["chain"])
        entries += law_entries
        notes += [f"chains: {text}" for text in _unsaid(law_notes, notes)]
    law = min(sides, key=lambda law: latency.plain_s(prefix, law=law, batch=batch))
    plain = Entry(ROOT, law, sides[law].speed(ROOT))
    speeds = {(entry.law, entry.shape): entry.speed for entry in entries}

    def speed(shape: TreeShape, law: str) -> Speed:
        by_law = chain_sides if chain_sides and shape.is_chain else sides
        if law not in by_law:
            what = "this ranking is" if by_law is sides else "its chains are"
            raise InvalidLimit(f"law = {law!r}, but {what} over {', '.join(by_law)}")
        return speeds.get((law, shape)) or by_law[law].speed(shape)

    ranking = ranked([*entries, plain], Setting(prefix, batch, level, draws), notes, speed)
    too_few: tuple[str, ...] = ()
    for side in (*sides.values(), *chain_sides.values()):
        too_few += _unsaid(_too_few(side, ranking.advice.level), too_few)
    ranking = replace(ranking, notes=(*ranking.notes, *too_few), on_intervals=too_few)
    best = ranking.best
    largest = latency.largest(prefix, law=best.law, batch=batch)
    if best.size == largest and best.kind != "plain":
        note = f"the best has {largest} nodes, the most that were measured: profile larger trees"
        return replace(ranking, notes=(*ranking.notes, note))
    return ranking


@takes(
    latency=of_class("a search.LatencyModel", "LatencyModel"),
    prefixes=maybe(SEQUENCE),
    batches=maybe(SEQUENCE),
)
def best_trees(
    acceptance: AnyAcceptance | Mapping[str, AnyAcceptance],
    latency: LatencyModel,
    *,
    prefixes: Sequence[int | None] | None = None,
    batches: Sequence[int] | None = None,
    **options: Any,
) -> list[Ranking]:
    """Call `best_tree` for several prefix lengths and batch sizes; rankings are ordered batch by batch.

    Args:
        acceptance: the same for all rankings.
        latency: the measured times.
        prefixes: prefix lengths; by default all that were measured.
        batches: batch sizes; by default all that were measured.
        options: see `best_tree`.
    """
    prefixes = (latency.prefixes or (None,)) if prefixes is None else prefixes
    batches = tuple(latency.batches) if batches is None else batches
    return [
        best_tree(acceptance, latency, prefix=prefix, batch=batch, **options)
        for batch in batches
        for prefix in prefixes
    ]


def _chain_sides(
    chains: AnyAcceptance | Mapping[str, AnyAcceptance], laws: Sequence[str] | None, times: Times
) -> dict[str, LawSpeed | TraceSpeed]:
    """Acceptance and times of chains, by law. As for trees, naming laws permits different settings."""
    named = list(chains) if laws is not None and isinstance(chains, Mapping) else laws
    known = acceptance_by_law(chains, times.latency, named, times.batch)
    return {law: _side(law, measured, times) for law, measured in known.items()}


def _side(law: str, acceptance: Any, times: Times) -> LawSpeed | TraceSpeed:
    """Acceptance and times of one law: shapes are valued by replay of a trace, or else by rates."""
    kind = TraceSpeed if isinstance(acceptance, Trace) else LawSpeed
    return kind(law, acceptance, times)


def _ranked(
    side: LawSpeed | TraceSpeed, limits: Limits, room: Room, kinds: Sequence[Kind]
) -> tuple[list[Entry], list[str]]:
    """The shapes of one law that are ranked, and notes on them."""
    if isinstance(side, TraceSpeed):
        return traced(side, limits, room, kinds)
    if "tree" in kinds:
        shapes, notes = candidates(side, limits, room, chains="chain" in kinds)
    else:
        shapes, notes = chains_within(limits, room), [f"{side.law}: {w}" for w in side.warnings]
    if isinstance(side.acceptance, np.ndarray) and shapes:
        notes.append(RATES_ALONE)
    return [Entry(shape, side.law, side.speed(shape)) for shape in shapes], notes


def _unsaid(texts: Sequence[str], notes: Sequence[str]) -> tuple[str, ...]:
    """The texts that are not among the notes yet, under any law: laws may share a trace."""
    known = {_without_law(note) for note in notes}
    return tuple(text for text in texts if _without_law(text) not in known)


def _without_law(note: str) -> str:
    return note.partition(": ")[2] or note


def _disturbed(latency: LatencyModel) -> list[str]:
    """A note on what disturbed the times while they were measured."""
    return [f"times: {latency.disturbed}"] if latency.disturbed else []


def _other_passes(known: Mapping[str, Any], latency: LatencyModel) -> list[str]:
    """Cautions where acceptance was recorded with other kinds of passes, which need not affect it."""
    timed = passes_of(latency)
    sentences = (
        other_passes("what was recorded", passes_of(acceptance), "the times", timed)
        for acceptance in known.values()
    )
    return [f"caution: {text}" for text in dict.fromkeys(sentences) if text is not None]


def _timed_otherwise(known: Mapping[str, Any], latency: LatencyModel, batch: int) -> list[str]:
    """Cautions where a law was timed and recorded under different settings or with different rules."""
    notes = []
    for law, acceptance in known.items():
        times, sampling = latency.law_times(law, batch), getattr(acceptance, "sampling", None)
        setting, rule = name_of(sampling), getattr(acceptance, "rule", None)
        greedy = is_greedy(sampling)
        if setting and times.sampling and setting != times.sampling:
            timed, recorded = f"under {times.sampling}", f"under {setting}"
        elif rule and times.rule and not accepts_alike(rule, times.rule, ONE_CHILD, greedy):
            timed, recorded = f"with rule {times.rule}", f"with rule {rule}"
        else:
            continue
        notes.append(
            f"caution: steps of law {law} were timed {timed}, and acceptance was recorded {recorded}: "
            "drawing and accepting children takes a different time there"
        )
    return notes


def _draws(draws: Any, level: float) -> int:
    """Check the number of resamples: at least one must lie beyond each bound."""
    draws, least = integer("draws", draws, 1, InvalidLimit), ceil(2 / (1 - level) - 1e-9)
    if draws < least:
        raise InvalidLimit(
            f"draws = {draws}, but the bounds of {100 * level:g} % intervals need at least {least}"
        )
    return draws


def _too_few(side: LawSpeed | TraceSpeed, level: float) -> list[str]:
    """A note if, for so few texts, the bounds lie beyond all resamples.

    Args:
        side: acceptance and times of a law, with their resamples.
        level: confidence level of each comparison that the advice rests on.
    """
    draws = side.times.draws
    if side.texts is None or (tail := expanded_tail(side.texts, level)) * draws >= 1:
        return []
    needed = 1 / max(tail, 1e-300)
    more = f", or give draws = {ceil(needed)}" if needed <= MOST_DRAWS else ""
    return [
        f"{side.law}: {100 * level:g} % intervals of {side.texts} texts reach beyond all {draws} "
        f"resamples, so nothing can be advised: record more texts{more}"
    ]
