"""The shapes that a choice on a trace ranks: the chosen ones cross-fitted, the others by replay."""

from collections.abc import Sequence

import numpy as np

from treespec.search.choice.candidates import RANKED_TREES, Limits, Room
from treespec.search.choice.cross_fitting import Kind, choose, cross_fitted
from treespec.search.choice.growths import budgeted, grown
from treespec.search.choice.local_moves import Bounds
from treespec.search.choice.rows import Entry
from treespec.search.choice.trace_speed import TraceSpeed

__all__ = ["traced"]


def traced(
    side: TraceSpeed, limits: Limits, room: Room, kinds: Sequence[Kind]
) -> tuple[list[Entry], list[str]]:
    """The best trees, all chains, and trees that grow, by replayed tokens over measured time.

    The first of each kind is the chosen one, with the speed of the procedure that chose it
    (`cross_fitted`). The others follow in the order of the choice, each with its own replay on all texts.
    Sorted by that, the first would be the luckiest and not the chosen one; and what the choice flatters
    says nothing of shapes that nobody chose, so that it is not taken off them. Of a text source, budgets
    are ranked and nothing else (`budgeted`).

    Args:
        side: trace and times.
        limits: what was asked for.
        room: what trace and times leave of that.
        kinds: trees, chains or both.

    Returns:
        The shapes with their speeds, and what is to be known of them.
    """
    sizes = None if limits.sizes is None else frozenset(limits.sizes)
    bounds = Bounds(room.size, room.depth, room.branching, sizes)
    notes, entries = (
        [f"{side.law}: {warning}" for warning in side.warnings_within(limits.depth)],
        [],
    )
    everything = np.ones(len(side.sampled), dtype=bool)
    if side.trace.text_drafts is not None:
        added, said = budgeted(side, limits, room)
        return added, [*notes, *said]
    for kind in kinds:
        if kind == "tree" and not room.wide:
            notes.append(f"{side.law}: chains only, since no wider level of the draft was measured")
            continue
        pool = choose(side, bounds, kind, everything)
        if not pool:
            continue
        best, *others = list(pool)[: None if kind == "chain" else RANKED_TREES]
        fitted = cross_fitted(side, bounds, kind, pool)
        entries.append(Entry(best, side.law, fitted, basis="cross-fitted"))
        entries += [Entry(shape, side.law, side.speed(shape), basis="replay") for shape in others]
    if "tree" in kinds:
        added, said = grown(side, limits, room)
        entries += added
        notes += said
    return entries, [*notes, *(f"{side.law}: {note}" for note in side.passed_over)]
