"""Find the shape with the most predicted tokens per second, from measured acceptance and times.

Of one source, or of several together: drafts, laws or rules, each with its own trace and times.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from treespec.search.choice.candidates import Limits, Room, require_sizes, require_trees, room_for
from treespec.search.choice.growths import budgeted, grown
from treespec.search.choice.law_speed import AnyAcceptance, LawSpeed
from treespec.search.choice.pairs import acceptance_by_law, cautions, chains_as_run
from treespec.search.choice.ranking import CHOSEN, Ranking, Setting, ranked
from treespec.search.choice.rows import Choice, Kind
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.errors import InvalidLimit, SearchError
from treespec.search.intervals import require_level
from treespec.search.latency.latency import LatencyModel, Times
from treespec.search.traces.sampling_names import name_of
from treespec.search.traces.trace import Trace
from treespec.search.value.problem import require_depth
from treespec.tree.shape import TreeShape

ROOT = TreeShape.chain(0)

DRAWS = 1000

MEASURE_IT = "measure it, or consider measured sizes only: `--sizes`"
NARROW = "of the draft was measured (profile larger trees, or let `level_ms` be one number for all widths)"


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
    times = Times(latency, prefix, batch, draws, seed)
    sides = {law: _side(law, measured, times) for law, measured in known.items()}
    chain_sides: dict[str, LawSpeed | TraceSpeed] = {}
    if chains is not None:  # as for trees, naming laws permits different settings
        named = list(chains) if laws is not None and isinstance(chains, Mapping) else laws
        of_chains = acceptance_by_law(chains, latency, named, batch)
        chain_sides = {law: _side(law, measured, times) for law, measured in of_chains.items()}
    for side in sides.values():
        if isinstance(side, LawSpeed) and limits.depth is not None:
            require_depth(limits.depth, side.rates)
    rooms = {law: room_for(side.rates, side.parts, limits) for law, side in sides.items()}
    chain_rooms = {
        law: room_for(side.rates, side.parts, limits, strict=False)
        for law, side in chain_sides.items()
    }
    notes = [f"times: {latency.disturbed}"] if latency.disturbed else []
    notes += [*cautions(known, latency, batch), *require_sizes(limits, rooms)]
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
    law = min(sides, key=lambda law: sides[law].parts.step_s(ROOT))
    plain = Choice(ROOT, law, sides[law].speed(ROOT))
    rows = [*entries, replace(plain, doubts=_doubts(plain, sides[law]))]
    if treeless := _no_tree(limits, rooms):
        rows = [replace(row, doubts=(*row.doubts, treeless)) for row in rows]

    ranking = ranked(rows, Setting(prefix, batch, level, draws), notes)
    best = ranking.best
    largest = times.of(best.law).largest
    if best.size == largest and best.kind != "plain":
        note = f"the best has {largest} nodes, the most that were measured: profile larger trees"
        return replace(ranking, notes=(*ranking.notes, note))
    return ranking


def best_tree_among(
    sources: Mapping[str, tuple[AnyAcceptance, LatencyModel]], **options: Any
) -> Ranking:
    """Rank the trees, chains and plain decoding of several sources together.

    Each source is searched separately (`best_tree`), and its rows carry its name. All shapes are compared
    with the fastest plain decoding among the sources. Sources with equally many texts are resampled by the
    same texts. A shape is advised only if it is also faster than the best of its kind of every other source
    (`Advice`). The best of several sources looks slightly better than it is, which is not corrected.

    Args:
        sources: by name, a trace (or rates) and the times that belong to it.
        options: see `best_tree`.

    Raises:
        InvalidLimit: if there is no source, or they were recorded under different sampling settings.
        SearchError: as for `best_tree`, with the name of the source.
    """
    if not sources:
        raise InvalidLimit("sources is empty: name at least one trace with its times")
    settings = {
        name: name_of(getattr(acceptance, "sampling", None))
        for name, (acceptance, _) in sources.items()
    }
    if len({setting for setting in settings.values() if setting}) > 1:
        listed = ", ".join(f"{name} ({setting})" for name, setting in settings.items() if setting)
        raise InvalidLimit(
            f"these were recorded under different sampling settings: {listed}; rank each setting separately"
        )
    if len(sources) == 1:
        ((acceptance, latency),) = sources.values()
        return best_tree(acceptance, latency, **options)
    rankings: dict[str, Ranking] = {}
    for name, (acceptance, latency) in sources.items():
        try:
            rankings[name] = best_tree(acceptance, latency, **options)
        except SearchError as error:
            raise type(error)(f"{name}: {error}") from error
    if len({ranking.setting for ranking in rankings.values()}) > 1:
        prefixes = ", ".join(f"{name}: {each.setting.prefix}" for name, each in rankings.items())
        raise InvalidLimit(
            f"the times of these sources are of different prefixes ({prefixes}): give a prefix"
        )
    rows = [replace(row, source=name) for name, each in rankings.items() for row in each.rows]
    notes = [
        f"{name}: {note}"
        for name, ranking in rankings.items()
        for note in ranking.notes
        if note != CHOSEN
    ]

    setting = next(iter(rankings.values())).setting
    return ranked(rows, setting, notes)


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
    entries = [replace(row, doubts=_doubts(row, side)) for row in entries]
    if trees and isinstance(side, TraceSpeed):
        grown_entries, grown_notes = grown(side, limits, room)
        return [*entries, *grown_entries], [*notes, *grown_notes]
    return entries, notes


def _doubts(row: Choice, side: LawSpeed | TraceSpeed) -> tuple[str, ...]:
    """Why a static shape is not advised, whatever its interval."""
    typed = isinstance(side, LawSpeed) and not side.estimated
    between = side.parts.verify.between(row.size, side.parts.prefix)
    return (
        *(["the rates have no intervals (search a trace, or an estimate)"] if typed else []),
        *([f"the time of {row.size} nodes is interpolated ({MEASURE_IT})"] if between else []),
    )


def _no_tree(limits: Limits, rooms: Mapping[str, Room]) -> str:
    """Why no tree could be considered although none was excluded; empty otherwise."""
    excluded = limits.branching == 1 or limits.depth == 0
    excluded = excluded or max(limits.sizes or (limits.max_size or 3,)) < 3
    if excluded or any(room.wide and room.branching > 1 for room in rooms.values()):
        return ""
    wide = all(room.wide for room in rooms.values())
    why = "only rates of first children are known" if wide else f"no wider level {NARROW}"
    return f"no tree could be considered: {why}"
