"""The shapes that a choice on a trace ranks, each by replay, less what the choice itself flatters."""

from collections.abc import Sequence

import numpy as np

from treespec.search.choice.candidates import RANKED_TREES, Limits, Room
from treespec.search.choice.cross_fitting import Kind, choose, cross_fitted
from treespec.search.choice.local_moves import Bounds
from treespec.search.choice.rows import Entry
from treespec.search.choice.trace_speed import TraceSpeed

__all__ = ["traced"]


def traced(
    side: TraceSpeed, limits: Limits, room: Room, kinds: Sequence[Kind]
) -> tuple[list[Entry], list[str]]:
    """The best trees and all chains by replayed tokens over measured time.

    The best shape of each kind has the speed of the procedure that chose it (`cross_fitted`). The other
    shapes of the kind, of which the best was the luckiest, have their own replay on all texts, with as much
    taken off as cross-fitting takes off the best.

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
    notes, entries = [f"{side.law}: {warning}" for warning in side.warnings], []
    everything = np.ones(len(side.sampled), dtype=bool)
    for kind in kinds:
        if kind == "tree" and not room.wide:
            notes.append(f"{side.law}: chains only, since no wider level of the draft was measured")
            continue
        pool = choose(side, bounds, kind, everything)
        if not pool:
            continue
        shapes = pool if kind == "chain" else pool[:RANKED_TREES]
        speeds = {shape: side.speed(shape) for shape in shapes}
        best = shapes[0]
        fitted = cross_fitted(side, bounds, kind, best)
        share = fitted.tokens / speeds[best].tokens
        entries += [
            Entry(shape, side.law, fitted if shape is best else speed.scaled(share))
            for shape, speed in speeds.items()
        ]
    return entries, notes
