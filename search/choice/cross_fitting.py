"""Shapes chosen on some texts and valued on the others, less what noisy times flatter."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from treespec.search.choice.local_moves import Bounds, climb
from treespec.search.choice.optimism import OPTIMISM_DRAWS, optimism
from treespec.search.choice.proposals import chains, proposed, rates_at
from treespec.search.choice.rows import Speed
from treespec.search.choice.smoothing import Smoothed
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.rates.replay import step_starts
from treespec.shape import TreeShape

__all__ = ["Kind", "choose", "cross_fitted"]

Kind = Literal["tree", "chain"]

FOLDS = 5
"""Parts of the texts, each of which is left out once."""
TREES_TO_CLIMB_FROM = 2
"""Of the best trees that are proposed, how many are starting points of local moves."""
MOST_ITERATIONS = 3
"""Proposals for the steps of the best tree so far; it stays the same after one or two."""


def choose(
    side: TraceSpeed, bounds: Bounds, kind: Kind, texts: Bool[np.ndarray, "t"]
) -> dict[TreeShape, float]:
    """Shapes of a kind with the tokens per second that they promise, the one chosen on these texts first.

    Of chains, all by replay. Of trees, those that are best under the rates of steps that begin anywhere,
    and, as long as that changes the choice, of steps that begin where those of the chosen tree do; and what
    local moves make of the best of them. Trees are chosen by replay less its noise (`Smoothed`).

    Args:
        side: trace and times.
        bounds: which shapes are looked at.
        kind: trees or chains.
        texts: those of `side.sample` that count.
    """
    if bounds.depth < 1:
        return {}
    return _trees(side, bounds, texts) if kind == "tree" else _chains(side, bounds, texts)


def _chains(side: TraceSpeed, bounds: Bounds, texts: np.ndarray) -> dict[TreeShape, float]:
    if not (shapes := chains(bounds)):
        return {}
    emitted, steps = (part[:, texts].sum(axis=1) for part in side.sampled_totals(shapes))
    return _ordered(dict(zip(shapes, emitted / steps / side.seconds(shapes), strict=True)))


def _trees(side: TraceSpeed, bounds: Bounds, texts: np.ndarray) -> dict[TreeShape, float]:
    pool: list[TreeShape] = []
    starts, best, smoothed = np.flatnonzero(side.sample.inside), None, None
    for _ in range(1 + MOST_ITERATIONS):
        rates = rates_at(side.sample, starts, texts, bounds)
        pool = list(dict.fromkeys(pool + proposed(rates, bounds)))
        if not pool:
            return {}
        smoothed = Smoothed(side, texts, rates, pool)
        first = next(iter(_ordered(_speeds(side, smoothed, pool))), None)
        if first is None:
            return {}
        if first == best:
            break
        best, starts = first, step_starts(side.sample, first)
    assert smoothed is not None
    known: dict[TreeShape, float] = {}

    def speeds(shapes: Sequence[TreeShape]) -> Float[np.ndarray, "trees"]:
        speed_of = _speeds(side, smoothed, shapes)
        known.update(speed_of)
        return np.array([speed_of[shape] for shape in shapes])

    speeds(pool)
    for shape in list(_ordered(known))[:TREES_TO_CLIMB_FROM]:
        climb(shape, speeds, lambda shape: side.ends(shape, texts), bounds)
    return _ordered(known)


def _speeds(
    side: TraceSpeed, smoothed: Smoothed, shapes: Sequence[TreeShape]
) -> dict[TreeShape, float]:
    """Tokens per second of each."""
    speeds = smoothed.tokens(shapes) / side.seconds(shapes)
    return dict(zip(shapes, speeds.tolist(), strict=True))


def _ordered(speeds: dict[TreeShape, float]) -> dict[TreeShape, float]:
    """The fastest first; what was not timed is left out."""
    known = [(shape, speed) for shape, speed in speeds.items() if speed > 0]
    return dict(sorted(known, key=lambda one: (-one[1], one[0].size)))


def cross_fitted(
    side: TraceSpeed, bounds: Bounds, kind: Kind, pool: Mapping[TreeShape, float]
) -> Speed:
    """The speed of choosing: on each part of the texts, that of the shape chosen on the others.

    Texts are dealt to parts by lot, all excerpts of a file to the same one.

    Tokens and steps of all parts are pooled. A step of a shape that was chosen without a part counts as
    many steps of the best of `pool` as it takes their time, so that the speed is that of the procedure,
    said as tokens per step of the shape that it ends with. That one was chosen on all texts, a few more
    than any other. Its steps take longer than measured by what the choice flatters them (`optimism`).

    Args:
        side: trace and times.
        bounds: which shapes are looked at.
        kind: trees or chains.
        pool: what `choose` gave on all texts.
    """
    folds = min(FOLDS, side.texts)
    part_of = side.parts(folds)
    emitted, steps = np.zeros(len(part_of)), np.zeros(len(part_of))
    best, whole = next(iter(pool)), side.seconds(list(pool))
    by = optimism(
        np.array(list(pool.values())) * whole,
        whole,
        side.times.drawn(side.parts_of_steps.tree(list(pool)), OPTIMISM_DRAWS),
    )
    for part in range(folds):
        chosen = next(iter(choose(side, bounds, kind, part_of[side.sampled] != part)), best)
        mine = part_of == part
        tokens, counts = (each[0, mine] for each in side.totals([chosen]))
        emitted[mine], steps[mine] = tokens, counts * (side.seconds([chosen])[0] / whole[0])
    return side.pooled(best, emitted, steps).longer(by)
