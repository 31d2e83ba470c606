"""Choose shapes on some texts and value them on the others, corrected for the bias of noisy times."""

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
"""Number of folds of the texts, each of which is left out once."""
TREES_TO_CLIMB_FROM = 2
"""Number of the best proposed trees that local moves start from."""
MOST_ITERATIONS = 3
"""Limit on rounds of proposals for the steps of the best tree so far; it settles after one or two."""


def choose(
    side: TraceSpeed, bounds: Bounds, kind: Kind, texts: Bool[np.ndarray, "t"]
) -> dict[TreeShape, float]:
    """Shapes of one kind with their estimated tokens per second, the one chosen on these texts first.

    All chains are valued by replay. Trees are proposed under the rates of steps that begin anywhere, then,
    until the choice no longer changes, under those of steps that begin where the chosen tree's do; local
    moves improve the best of them. Trees are chosen by smoothed replay (`Smoothed`).

    Args:
        side: trace and times.
        bounds: the shapes to consider.
        kind: trees or chains.
        texts: mask of the texts of `side.sample` that count.
    """
    if bounds.depth < 1:
        return {}
    return _trees(side, bounds, texts) if kind == "tree" else _chains(side, bounds, texts)


def _chains(side: TraceSpeed, bounds: Bounds, texts: np.ndarray) -> dict[TreeShape, float]:
    if not (shapes := chains(bounds)):
        return {}
    emitted, steps = (totals[:, texts].sum(axis=1) for totals in side.sampled_totals(shapes))
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
        fastest = next(iter(_ordered(_speeds(side, smoothed, pool))), None)
        if fastest is None:
            return {}
        if fastest == best:
            break
        best, starts = fastest, step_starts(side.sample, fastest)
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
    """Smoothed tokens per second of each shape."""
    speeds = smoothed.tokens(shapes) / side.seconds(shapes)
    return dict(zip(shapes, speeds.tolist(), strict=True))


def _ordered(speeds: dict[TreeShape, float]) -> dict[TreeShape, float]:
    """The shapes, fastest first, without those that were not timed."""
    timed = [shape for shape, speed in speeds.items() if speed > 0]
    timed.sort(key=lambda shape: (-speeds[shape], shape.size))
    return {shape: speeds[shape] for shape in timed}


def cross_fitted(
    side: TraceSpeed, bounds: Bounds, kind: Kind, pool: Mapping[TreeShape, float]
) -> Speed:
    """The speed of the choice: on each fold of the texts, that of the shape chosen on the other folds.

    Texts are assigned to folds at random, all excerpts of a file to the same fold.

    Tokens and steps of all folds are pooled. A step of the shape chosen without a fold counts as the number
    of steps of the best of `pool` that take the same time, so the speed is that of the procedure, stated in
    tokens per step of the shape that it ends with. That shape was chosen on all texts, a few more than any
    of the others. Its time is lengthened by the bias of choosing among noisy times (`optimism`).

    Args:
        side: trace and times.
        bounds: the shapes to consider.
        kind: trees or chains.
        pool: the result of `choose` on all texts.
    """
    folds = min(FOLDS, side.texts)
    fold_of = side.parts(folds)
    emitted, steps = np.zeros(len(fold_of)), np.zeros(len(fold_of))
    shapes = list(pool)
    best, seconds = shapes[0], side.seconds(shapes)
    bias = optimism(
        np.array(list(pool.values())) * seconds,
        seconds,
        side.times.drawn(side.parts_of_steps.tree(shapes), OPTIMISM_DRAWS),
    )
    for fold in range(folds):
        chosen = next(iter(choose(side, bounds, kind, fold_of[side.sampled] != fold)), best)
        left_out = fold_of == fold
        tokens, counts = (totals[0, left_out] for totals in side.totals([chosen]))
        emitted[left_out] = tokens
        steps[left_out] = counts * (side.seconds([chosen])[0] / seconds[0])
    return side.pooled(best, emitted, steps).longer(bias)
