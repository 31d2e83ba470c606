"""Find the shape with the most predicted tokens per second, from measured acceptance and times."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treespec.search.choice.candidates import Limits, Room, require_sizes, require_trees, room_for
from treespec.search.choice.growths import budgeted, grown
from treespec.search.choice.law_speed import (
    AnyAcceptance,
    LawSpeed,
    acceptance_by_law,
    chains_as_run,
)
from treespec.search.choice.pairs import other_passes, passes_of
from treespec.search.choice.ranking import Ranking, Setting, ranked
from treespec.search.choice.rows import Choice, Kind
from treespec.search.choice.times import Times
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.intervals import require_level
from treespec.search.latency.latency import LatencyModel
from treespec.search.traces.rule_notes import accepts_alike
from treespec.search.traces.sampling_names import is_greedy, name_of
from treespec.search.traces.trace import Trace
from treespec.search.value.problem import require_depth
from treespec.tree.shape import TreeShape

ROOT, ONE_CHILD = TreeShape.chain(0), TreeShape.chain(1)

DRAWS = 1000


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
    on them would have emitted, whatever acceptance depends on. Rates only propose trees, and all chains are
    tried. A shape chosen on few texts looks better on them than it is, so the best of each kind is the one
    that is fastest on all texts, and its speed is that of choosing on one half of the texts and decoding
    the other half, averaged over several splits (`on_other_half`). The other rows of a kind have their own
    replay. Intervals cover the variation of texts (at temperatures above 0 that of sampling too: a text is
    one draw) and of measured times. They do not include the spread of choosing: on other texts another
    shape might have been chosen, with another speed. Levels that the trace has too few positions of are not
    used, and the notes name them.

    Where a trace holds the draft's probabilities off the text's path (`treespec trace --beam`), trees that
    grow are ranked beside static ones: EAGLE-2, OPT-Tree, SpecExec, equal and cost-aware growth over a few
    of their settings, by their own replay, timed step by step and chosen in the same way.

    For rates, tokens per step are `expected_tokens`, as if levels were independent (Sequoia,
    arXiv:2402.12374, section 3.4, over sizes and depths; ours also over laws, with the cost of wide draft
    levels). Candidates are the trees of `optimal_frontier` and all chains. Rates over all positions are not
    those of the positions where steps begin, and where good and bad stretches of text alternate, a product
    of rates is not the probability of a run of acceptances: a chain of 31 was predicted 8.6 tokens a step
    on a trace whose replay gives 3.0. Search the trace itself where there is one.

    All sizes up to 64 nodes are tried; above that, sizes 6 % apart (`sizes` replaces these).

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
        draws: number of resamples that the widths of the intervals are computed from.
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
    limits = Limits(None if sizes is None else tuple(sizes), max_size, depth, branching)
    known = acceptance_by_law(acceptance, latency, laws, batch)
    if chains is None and laws is None:
        chains = chains_as_run(acceptance, latency, batch)
    draws, seed, batch = int(draws), int(seed), int(batch)
    prefix = latency.prefix_at(None if prefix is None else int(prefix), batch)
    times = Times(latency, prefix, batch, draws, seed, np.random.default_rng(seed))
    sides = {law: _side(law, measured, times) for law, measured in known.items()}
    chain_sides: dict[str, LawSpeed | TraceSpeed] = {}
    if chains is not None:  # as for trees, naming laws permits different settings
        named = list(chains) if laws is not None and isinstance(chains, Mapping) else laws
        of_chains = acceptance_by_law(chains, latency, named, batch)
        chain_sides = {law: _side(law, measured, times) for law, measured in of_chains.items()}
    for side in sides.values():
        if isinstance(side, LawSpeed) and limits.depth is not None:
            require_depth(limits.depth, side.rates)
    rooms = {law: room_for(law, side.rates, times, limits) for law, side in sides.items()}
    chain_rooms = {
        law: room_for(law, side.rates, times, limits, strict=False)
        for law, side in chain_sides.items()
    }
    notes = [f"times: {latency.disturbed}"] if latency.disturbed else []
    notes += [*_cautions(known, latency, batch), *require_sizes(limits, rooms)]
    named_rooms = {f"chains of {law}": room for law, room in chain_rooms.items()}
    notes += require_trees(limits, rooms | named_rooms)
    entries: list[Choice] = []
    for law, side in sides.items():
        law_entries, law_notes = _ranked(
            side, limits, rooms[law], trees=True, chains=chains is None
        )
        entries += law_entries
        notes += law_notes
    for law, side in chain_sides.items():
        room = chain_rooms[law]
        if limits.depth is not None and room.depth == (side.rates.levels or 0) < limits.depth:
            notes.append(
                f"{law}: no chain is longer than {room.depth}, the deepest level with rates of chains"
            )
        law_entries, law_notes = _ranked(side, limits, room, trees=False, chains=True)
        entries += law_entries
        said = {note.partition(": ")[2] or note for note in notes}  # laws may share a trace
        unsaid = [note for note in law_notes if (note.partition(": ")[2] or note) not in said]
        notes += [f"chains: {note}" for note in unsaid]
    law = min(sides, key=lambda law: latency.plain_s(prefix, law=law, batch=batch))
    plain = Choice(ROOT, law, sides[law].speed(ROOT))

    ranking = ranked([*entries, plain], Setting(prefix, batch, level, draws), notes)
    best = ranking.best
    largest = latency.largest(prefix, law=best.law, batch=batch)
    if best.size == largest and best.kind != "plain":
        note = f"the best has {largest} nodes, the most that were measured: profile larger trees"
        return replace(ranking, notes=(*ranking.notes, note))
    return ranking


def _side(law: str, acceptance: Any, times: Times) -> LawSpeed | TraceSpeed:
    """Acceptance and times of one law: shapes are valued by replay of a trace, or else by rates."""
    kind = TraceSpeed if isinstance(acceptance, Trace) else LawSpeed
    return kind(law, acceptance, times)


def _ranked(
    side: LawSpeed | TraceSpeed, limits: Limits, room: Room, *, trees: bool, chains: bool
) -> tuple[list[Choice], list[str]]:
    """The shapes of one law that are ranked, and notes on them."""
    if isinstance(side, TraceSpeed) and side.trace.text_drafts is not None:
        entries, notes = budgeted(side, limits, room)
        return entries, [*(f"{side.law}: {text}" for text in side.warnings(limits.depth)), *notes]
    kinds: list[Kind] = [*(["tree"] if trees else []), *(["chain"] if chains else [])]
    entries, notes = side.ranked(limits, room, kinds)
    if trees and isinstance(side, TraceSpeed):
        grown_entries, grown_notes = grown(side, limits, room)
        return [*entries, *grown_entries], [*notes, *grown_notes]
    return entries, notes


def _cautions(known: Mapping[str, Any], latency: LatencyModel, batch: int) -> Iterator[str]:
    """Cautions where acceptance was recorded with other passes, settings or rules than the times."""
    timed_passes = passes_of(latency)
    for law, acceptance in known.items():
        passes = passes_of(acceptance)
        if text := other_passes("what was recorded", passes, "the times", timed_passes):
            yield f"caution: {text}"
        times, sampling = latency.law_times(law, batch), getattr(acceptance, "sampling", None)
        setting, rule = name_of(sampling), getattr(acceptance, "rule", None)
        if setting and times.sampling and setting != times.sampling:
            timed, recorded = f"under {times.sampling}", f"under {setting}"
        elif (
            rule
            and times.rule
            and not accepts_alike(rule, times.rule, ONE_CHILD, is_greedy(sampling))
        ):
            timed, recorded = f"with rule {times.rule}", f"with rule {rule}"
        else:
            continue
        yield (
            f"caution: steps of law {law} were timed {timed}, and acceptance was recorded {recorded}: "
            "drawing and accepting children takes a different time there"
        )
