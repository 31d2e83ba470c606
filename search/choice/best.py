"""The shape with the most predicted tokens per second, from measured acceptance and measured times."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

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
from treespec.search.integers import integer
from treespec.search.intervals import expanded_tail, require_level
from treespec.search.latency.latency import LatencyModel
from treespec.search.rates.rule_notes import accepts_alike
from treespec.search.rates.sampling_names import is_greedy, name_of
from treespec.search.rates.trace import Trace
from treespec.shape import TreeShape

__all__ = ["RATES_ALONE", "best_tree", "best_trees"]

ROOT, ONE_CHILD = TreeShape.chain(0), TreeShape.chain(1)

DRAWS = 1000
"""Resamples: of six texts and more, some lie beyond the bounds of 95 % intervals."""
RATES_ALONE = (
    "tokens are predicted from rates alone, as if every level were independent of those before it: "
    "search a trace itself to have trees replayed (`treespec trace`)"
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
    """Rank trees, chains and plain decoding by predicted tokens per second, and advise one of them or none.

        tokens per second = batch * tokens per step / step_s(shape)

    Of a trace, the tokens per step of a shape are those of its replay on the trace's texts: what a live run
    on them would have had, whatever acceptance depends on. Rates only propose trees (`proposed`), local
    moves go on from there, and all chains are tried. Few texts flatter what is chosen on them, so what is
    said of the best tree and of the best chain is cross-fitted: the shape is the one chosen on all texts,
    its speed that of the same procedure on each fifth of the texts after choosing on the others
    (`cross_fitted`), and its time longer than measured by what choosing among noisy times flatters it
    (`optimism`). The other rows of a kind stand below in the order of the choice, each with its own
    replay. Intervals are over texts (their own chance at temperatures above 0 included: a text is one draw)
    and over measured times. Levels and children that the trace has too little of are not used, and the
    notes name them.

    Where a trace holds what the draft thinks off the text's path (`treespec trace --beam`), trees that grow
    are ranked beside static ones: EAGLE-2, OPT-Tree, SpecExec, equal and cost-aware growth over a few of
    their settings, by their own replay, timed step by step and cross-fitted in the same way (`grown`).

    Of rates, tokens per step are `expected_tokens`, as if levels were independent (Sequoia,
    arXiv:2402.12374, section 3.4, over sizes and depths; ours also over laws, with the cost of wide draft
    levels). Candidates are the trees of `optimal_frontier` and all chains. Rates that count every position
    are not those of the positions where steps begin, and a product of rates is not the law of a run of
    acceptances where good and bad stretches of text take turns: a chain of 31 was predicted 8.6 tokens a
    step on a trace whose replay gives it 3.0. Search the trace itself where there is one.

    Sizes are all up to 64 nodes; of larger ones those that were measured and some between, 6 % apart
    (`sizes` names others); of a trace a coarser grid, between which local moves go.

    Args:
        acceptance: a `Trace`, rates as `optimal_tree` takes them, an `AcceptanceEstimate`, or one of these
            by law.
        latency: the times.
        sizes: nodes of trees, the root included, each of which must be possible; by default all small and
            some large ones up to `max_size`.
        max_size: the largest tree; by default as far as the times go.
        depth: the most edges; by default 64, or as deep as the rates go.
        branching: the most children of a node.
        prefix: committed tokens before the root; None for the middle one of those measured.
        batch: texts at once.
        laws: which laws to compare; by default those of `acceptance`. Acceptance and times that were
            measured under different sampling settings go together only for laws that are named here.
        chains: the same for chains, where they are known apart: a trace of another law, rates of first
            children (`estimate_acceptance` with `ranks=1`; those of trees are not those of chains), or one
            by law. Chains are then ranked by these alone, and `acceptance` is for trees. A law that is
            only here has no trees. By default, where no law is named, chains of a trace of children drawn
            without replacement are drawn independently, as `treespec run` draws them, if that was timed.
        draws: resamples; at least as many as have one beyond each bound (40 at level 0.95). Few texts need
            more, and the notes say so.
        level: of the intervals.
        seed: of the resamples.

    Raises:
        NotMeasured: if the times do not cover the sizes, prefix, batch or law asked for, or only one node
            where nobody asked for that.
        InvalidAcceptance, InvalidLimit: as for `optimal_tree`; or no law is known, or settings or models
            differ.
        InfeasibleTree: if one of `sizes` is larger than any tree within depth and branching.
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
    draws, seed = _draws(draws, level), integer("seed", seed, 0)
    batch = integer("batch", batch, 1)
    limits = Limits(read_sizes(sizes), max_size, depth, branching)
    known = acceptance_by_law(acceptance, latency, laws, batch)
    if chains is None and laws is None:
        chains = chains_as_run(acceptance, latency, batch)
    prefix = latency.prefix_at(None if prefix is None else integer("prefix", prefix, 0), batch)
    times = Times(latency, prefix, batch, draws, seed, np.random.default_rng(seed))
    sides = {law: _side(law, one, times) for law, one in known.items()}
    alone = {} if chains is None else _alone(chains, laws, times)
    rooms = {law: room_for(side, limits) for law, side in sides.items()}
    entries: list[Entry] = []
    notes = [*_disturbed(latency), *_other_passes(known, latency)]
    notes += [*_timed_otherwise(known, latency, batch), *require_sizes(limits, rooms)]
    apart = {law: room_for(side, limits, strict=False) for law, side in alone.items()}
    notes += require_trees(limits, rooms | {f"chains of {law}": apart[law] for law in apart})
    for law, side in sides.items():
        kinds: list[Kind] = ["tree", "chain"] if chains is None else ["tree"]
        added, said = _ranked(side, limits, rooms[law], kinds)
        entries += added
        notes += said
    for law, side in alone.items():
        room = apart[law]
        if limits.depth is not None and room.depth == (side.rates.levels or 0) < limits.depth:
            notes.append(
                f"{law}: no chain is longer than {room.depth}, as deep as rates of chains go"
            )
        added, said = _ranked(side, limits, room, ["chain"])
        entries += added
        notes += [f"chains: {text}" for text in _unsaid(said, notes)]
    law = min(sides, key=lambda law: latency.plain_s(prefix, law=law, batch=batch))
    plain = Entry(ROOT, law, sides[law].speed(ROOT))
    speeds = {(entry.law, entry.shape): entry.speed for entry in entries}

    def speed(shape: TreeShape, law: str) -> Speed:
        over = alone if alone and shape.is_chain else sides
        if law not in over:
            what = "this ranking is" if over is sides else "its chains are"
            raise InvalidLimit(f"law = {law!r}, but {what} over {', '.join(over)}")
        return speeds.get((law, shape)) or over[law].speed(shape)

    ranking = ranked([*entries, plain], Setting(prefix, batch, level, draws), notes, speed)
    few: tuple[str, ...] = ()
    for side in (*sides.values(), *alone.values()):
        few += _unsaid(_too_few(side, ranking.advice.level), few)
    ranking = replace(ranking, notes=(*ranking.notes, *few), on_intervals=few)
    first = ranking.best
    end = latency.largest(prefix, law=first.law, batch=batch)
    if first.size == end and first.kind != "plain":
        more = f"the best has {end} nodes, the most that were measured: profile larger trees"
        return replace(ranking, notes=(*ranking.notes, more))
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
    """`best_tree` for several prefix lengths and batch sizes, batch by batch.

    Args:
        acceptance: the same for all.
        latency: the times.
        prefixes: all that were measured by default.
        batches: all that were measured by default.
        options: see `best_tree`.
    """
    prefixes = (latency.prefixes or (None,)) if prefixes is None else prefixes
    batches = tuple(latency.batches) if batches is None else batches
    return [
        best_tree(acceptance, latency, prefix=prefix, batch=batch, **options)
        for batch in batches
        for prefix in prefixes
    ]


def _alone(
    chains: AnyAcceptance | Mapping[str, AnyAcceptance], laws: Sequence[str] | None, times: Times
) -> dict[str, LawSpeed | TraceSpeed]:
    """Chains by law. Naming laws takes settings for the same that are not, here too."""
    named = list(chains) if laws is not None and isinstance(chains, Mapping) else laws
    known = acceptance_by_law(chains, times.latency, named, times.batch)
    return {law: _side(law, one, times) for law, one in known.items()}


def _side(law: str, acceptance: Any, times: Times) -> LawSpeed | TraceSpeed:
    """What values shapes: replay, where there is a trace; else rates."""
    kind = TraceSpeed if isinstance(acceptance, Trace) else LawSpeed
    return kind(law, acceptance, times)


def _ranked(
    side: LawSpeed | TraceSpeed, limits: Limits, room: Room, kinds: Sequence[Kind]
) -> tuple[list[Entry], list[str]]:
    """The shapes of one law that are ranked, and what is to be known of them."""
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
    """Those of these notes that are not there yet, whatever law they are of: laws may share a trace."""
    there = {_without_law(note) for note in notes}
    return tuple(text for text in texts if _without_law(text) not in there)


def _without_law(note: str) -> str:
    return note.partition(": ")[2] or note


def _disturbed(latency: LatencyModel) -> list[str]:
    """What disturbed the times while they were measured."""
    return [f"times: {latency.disturbed}"] if latency.disturbed else []


def _other_passes(known: Mapping[str, Any], latency: LatencyModel) -> list[str]:
    """Where passes were run in another way while acceptance was recorded; it need not depend on that."""
    timed = passes_of(latency)
    said = (
        other_passes("what was recorded", passes_of(one), "the times", timed)
        for one in known.values()
    )
    return [f"caution: {text}" for text in dict.fromkeys(said) if text is not None]


def _timed_otherwise(known: Mapping[str, Any], latency: LatencyModel, batch: int) -> list[str]:
    """Where steps of a law were timed under other settings, or with another rule, than was recorded."""
    notes = []
    for law, one in known.items():
        times, sampling = latency.law_times(law, batch), getattr(one, "sampling", None)
        recorded, rule = name_of(sampling), getattr(one, "rule", None)
        greedy = is_greedy(sampling)
        if recorded and times.sampling and recorded != times.sampling:
            timed, acceptance = f"under {times.sampling}", f"under {recorded}"
        elif rule and times.rule and not accepts_alike(rule, times.rule, ONE_CHILD, greedy):
            timed, acceptance = f"with rule {times.rule}", f"with rule {rule}"
        else:
            continue
        notes.append(
            f"caution: steps of law {law} were timed {timed}, and acceptance was recorded {acceptance}: "
            "drawing and accepting children takes another time there"
        )
    return notes


def _draws(draws: Any, level: float) -> int:
    """The number of resamples, of which at least one lies beyond each bound."""
    draws, least = integer("draws", draws, 1), ceil(2 / (1 - level) - 1e-9)
    if draws < least:
        raise InvalidLimit(
            f"draws = {draws}, but the bounds of {100 * level:g} % intervals need at least {least}"
        )
    return draws


def _too_few(side: LawSpeed | TraceSpeed, level: float) -> list[str]:
    """A note, if the bounds that so few texts ask for lie beyond all resamples.

    Args:
        side: what was recorded, and the resamples.
        level: of each comparison that advice rests on.
    """
    draws = side.times.draws
    if side.texts is None or (tail := expanded_tail(side.texts, level)) * draws >= 1:
        return []
    needed = 1 / max(tail, 1e-300)
    more = f", or give draws = {ceil(needed)}" if needed <= MOST_DRAWS else ""
    return [
        f"{side.law}: {100 * level:g} % intervals of {side.texts} texts reach beyond all {draws} "
        f"resamples, and nothing can be advised: measure more texts{more}"
    ]
