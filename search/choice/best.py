"""The shape with the most predicted tokens per second, from measured acceptance and measured times."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np

from treespec.search.arguments import SEQUENCE, maybe, of_class, takes
from treespec.search.choice.candidates import (
    Limits,
    candidates,
    chains_within,
    read_sizes,
    require_sizes,
    room_for,
)
from treespec.search.choice.law_speed import AnyAcceptance, LawSpeed, Times, acceptance_by_law
from treespec.search.choice.ranking import Choice, Ranking, Speed, bounds
from treespec.search.errors import InvalidLimit
from treespec.search.integers import integer
from treespec.search.intervals import expanded_tail, require_level
from treespec.search.latency.latency import LatencyModel
from treespec.shape import TreeShape

__all__ = ["best_tree", "best_trees"]

ROOT = TreeShape.chain(0)

DRAWS = 1000
"""Resamples: of six texts and more, some lie beyond the bounds of 95 % intervals."""
MOST_RESAMPLES = 100_000
"""Resamples beyond which a message asks for more texts instead of more of them."""


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
    """Rank trees, chains and plain decoding by predicted tokens per second.

        tokens per second = batch * expected_tokens(shape, acceptance) / step_s(shape)

    Sequoia's hardware-aware choice (arXiv:2402.12374, section 3.4) over sizes and depths; ours also over
    laws, with the cost of wide draft levels, chains and plain decoding among the candidates, and intervals:
    acceptance and times are resampled (bootstrap), the shapes stay. The best of many looks a little better
    than it is; resampling with fixed shapes does not correct that.

    Candidates are the trees of `optimal_frontier`, the best for their size and depth, and all chains. Where
    the time depends on size and depth alone, no tree is faster than the best candidate, among the sizes
    looked at: all up to 64 nodes, beyond that those that were measured and some between, 6 % apart
    (`sizes` names others). Where wide levels cost more than narrow ones a tree that is not on the frontier
    can be; the tests measure by how much.

    Rates that count every position as the beginning of a step (`estimate_acceptance` of a trace, unless it
    is told `starts`) are not those of the positions at which steps do begin, behind a bonus token. Where
    good and bad stretches of text take turns, trees tend to keep more tokens than is predicted, deep ones
    most of all. Check the best by `treespec.search.rates.replay`, or estimate anew with `starts=` the
    best tree.

    A chain reaches a depth along first children alone, where a tree of several children gets there more
    often and at worse places: rates of trees by depth are not those of chains. `chains` are their own.

    Args:
        acceptance: rates as `optimal_tree` takes them, an `AcceptanceEstimate`, or one of these by law.
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
        chains: rates of chains, where they are known apart: `estimate_acceptance` of a trace with
            `ranks=1`, or one by law. Chains are then ranked by these alone, and `acceptance` is for trees.
            A law that is only here has no trees.
        draws: resamples; at least as many as have one beyond each bound (40 at level 0.95). Few texts need
            more, and the notes say so.
        level: of the intervals.
        seed: of the resamples.

    Raises:
        NotMeasured: if the times do not cover the sizes, prefix, batch or law asked for.
        InvalidAcceptance, InvalidLimit: as for `optimal_tree`; or no law is known, or settings differ.
        InfeasibleTree: if one of `sizes` is larger than any tree within depth and branching.
        InvalidLatency: if a step takes no time.

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
    prefix = latency.prefix_at(None if prefix is None else integer("prefix", prefix, 0), batch)
    times = Times(latency, prefix, batch, draws, seed, np.random.default_rng(seed))
    sides = {law: LawSpeed(law, one, times) for law, one in known.items()}
    alone = {} if chains is None else _alone(chains, laws, times)
    rooms = {law: room_for(side, limits) for law, side in sides.items()}
    speeds: dict[tuple[str, TreeShape], Speed] = {}
    notes = require_sizes(limits, rooms)
    for law, side in sides.items():
        shapes, said = candidates(side, limits, rooms[law], chains=chains is None)
        speeds |= {(law, shape): side.speed(shape) for shape in shapes}
        notes += said + _too_few(side, level)
    for law, side in alone.items():
        room = room_for(side, limits, strict=False)
        shapes = chains_within(limits, room)
        if limits.depth is not None and room.depth == (side.rates.levels or 0) < limits.depth:
            notes.append(
                f"{law}: no chain is longer than {room.depth}, as deep as rates of chains go"
            )
        speeds |= {(law, shape): side.speed(shape) for shape in shapes}
        notes += [f"{law}, chains: {text}" for text in side.warnings] + _too_few(side, level)
    law = min(sides, key=lambda law: latency.plain_s(prefix, law=law, batch=batch))
    speeds[law, ROOT] = plain = sides[law].speed(ROOT)
    rows = [
        _choice(law, shape, speed, plain, batch, level) for (law, shape), speed in speeds.items()
    ]
    rows.sort(key=lambda row: (-row.tokens_per_s.estimate, row.size, row.law))
    end = latency.largest(prefix, law=rows[0].law, batch=batch)
    if rows[0].size == end and rows[0].kind != "plain":
        notes.append(f"the best has {end} nodes, the most that were measured: profile larger trees")

    def speed(shape: TreeShape, law: str) -> Speed:
        if shape.size == 1:
            return plain
        over = alone if alone and shape.is_chain else sides
        if law not in over:
            what = "this ranking is" if over is sides else "its chains are"
            raise InvalidLimit(f"law = {law!r}, but {what} over {', '.join(over)}")
        return over[law].speed(shape)

    return Ranking(
        rows=tuple(rows),
        tree_beats_chain=_beats(rows, speeds),
        prefix=prefix,
        batch=batch,
        level=level,
        draws=draws,
        notes=tuple(dict.fromkeys(notes)),
        _speed=speed,
    )


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
) -> dict[str, LawSpeed]:
    """Chains by law. Naming laws takes settings for the same that are not, here too."""
    named = list(chains) if laws is not None and isinstance(chains, Mapping) else laws
    known = acceptance_by_law(chains, times.latency, named, times.batch)
    return {law: LawSpeed(law, one, times) for law, one in known.items()}


def _choice(
    law: str, shape: TreeShape, speed: Speed, plain: Speed, batch: int, level: float
) -> Choice:
    ratio = speed.rate_drawn / plain.rate_drawn
    return Choice(
        "plain" if shape.size == 1 else "chain" if shape.is_chain else "tree",
        shape,
        law,
        bounds(speed.tokens, speed.tokens_drawn, level, speed.texts),
        bounds(speed.seconds, speed.seconds_drawn, level),
        bounds(batch * speed.rate, batch * speed.rate_drawn, level, speed.texts),
        bounds(speed.rate / plain.rate, ratio, level, speed.texts),
    )


def _beats(rows: Sequence[Choice], speeds: Mapping[tuple[str, TreeShape], Speed]) -> float:
    """The share of resamples in which the best tree is faster than the best chain; ties count half."""
    firsts = [next((row for row in rows if row.kind == kind), None) for kind in ("tree", "chain")]
    if None in firsts:
        return float("nan")
    tree, chain = (speeds[row.law, row.shape].rate_drawn for row in firsts if row is not None)
    return float(((tree > chain) + 0.5 * (tree == chain)).mean())


def _draws(draws: Any, level: float) -> int:
    """The number of resamples, of which at least one lies beyond each bound."""
    draws, least = integer("draws", draws, 1), ceil(2 / (1 - level) - 1e-9)
    if draws < least:
        raise InvalidLimit(
            f"draws = {draws}, but the bounds of {100 * level:g} % intervals need at least {least}"
        )
    return draws


def _too_few(side: LawSpeed, level: float) -> list[str]:
    """A note, if the bounds that so few texts ask for lie beyond all resamples."""
    draws = side.times.draws
    if side.texts is None or (tail := expanded_tail(side.texts, level)) * draws >= 1:
        return []
    needed = 1 / max(tail, 1e-300)
    more = f", or give draws = {ceil(needed)}" if needed <= MOST_RESAMPLES else ""
    return [
        f"{side.law}: {100 * level:g} % intervals of {side.texts} texts reach beyond all {draws} resamples "
        f"and are shown too narrow: measure more texts{more}"
    ]
