"""The shapes ranked on a trace: the chosen ones cross-fitted, the others by replay."""

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

    The first of each kind is the chosen shape, with the speed of the procedure that chose it
    (`cross_fitted`). The others follow in the order of the choice, each with its own replay on all texts.
    Sorted by that replay, the first would be the luckiest and not the chosen one. The bias of choosing
    concerns the chosen shape only, so it is not taken off the others. For a text source, only budgets are
    ranked (`budgeted`).

    Args:
        side: trace and times.
        limits: the requested limits.
        room: what trace and times leave of these limits.
        kinds: trees, chains or both.

    Returns:
        The shapes with their speeds, and notes on them.
    """
    sizes = None if limits.sizes is None else frozenset(limits.sizes)
    bounds = Bounds(room.size, room.depth, room.branching, sizes)
    notes = [f"{side.law}: {warning}" for warning in side.warnings_within(limits.depth)]
    entries: list[Entry] = []
    all_texts = np.ones(len(side.sampled), dtype=bool)
    if side.trace.text_drafts is not None:
        budget_entries, budget_notes = budgeted(side, limits, room)
        return budget_entries, [*notes, *budget_notes]
    for kind in kinds:
        if kind == "tree" and not room.wide:
            notes.append(f"{side.law}: chains only, since no wider level of the draft was measured")
            continue
        pool = choose(side, bounds, kind, all_texts)
        if not pool:
            continue
        best, *others = list(pool)[: None if kind == "chain" else RANKED_TREES]
        fitted = cross_fitted(side, bounds, kind, pool)
        entries.append(Entry(best, side.law, fitted, basis="cross-fitted"))
        entries += [Entry(shape, side.law, side.speed(shape), basis="replay") for shape in others]
    if "tree" in kinds:
        growth_entries, growth_notes = grown(side, limits, room)
        entries += growth_entries
        notes += growth_notes
    return entries, [*notes, *(f"{side.law}: {note}" for note in side.passed_over)]
