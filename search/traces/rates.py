"""Compute rates and their bounds from counts, in the same way for an estimate and each of its resamples."""

import numpy as np
from jaxtyping import Float, Int

from treespec.search.errors import InvalidLimit
from treespec.search.intervals import bootstrap_bounds, draws, wilson
from treespec.search.isotonic import non_increasing
from treespec.search.traces.counts import Counts

NUMBERS_PER_BLOCK = 1 << 21
"""Limit on the numbers that are processed at a time."""


def rates_of(
    mass: Float[np.ndarray, "*B levels ranks"],
    trials: Float[np.ndarray, "*B levels ranks"],
    shrinkage: float,
    *,
    monotone: bool = False,
) -> Float[np.ndarray, "*B levels ranks"]:
    """Rates from expected hits and trials; 0 without trials.

    Rates are shrunk, then made monotone over ranks if wanted, by isotonic regression weighted by trials;
    then rows that sum to more than 1 (possible if ranks have different trials) are scaled to 1.

    Args:
        mass: expected hits.
        trials: the trials.
        shrinkage: pseudo-trials at the rate of the same rank over all depths, added to each depth's trials.
        monotone: whether no child has a larger rate than an elder sibling.
    """
    rates = _share(mass, trials, mass, shrinkage)
    rates = non_increasing(rates, trials) if monotone else rates
    return np.clip(rates * _scale(rates), 0.0, 1.0)


def _share(
    hits: np.ndarray, trials: np.ndarray, mass: np.ndarray, shrinkage: float
) -> Float[np.ndarray, "*B levels ranks"]:
    """Hits over trials, shrunk towards the rate over all depths, which is computed from `mass`."""
    pooled = _over(mass.sum(axis=-2, keepdims=True), trials.sum(axis=-2, keepdims=True))
    return _over(hits + shrinkage * pooled, trials + shrinkage)


def _scale(rates: np.ndarray) -> Float[np.ndarray, "*B levels 1"]:
    """The factor that scales the rates of siblings to a sum of at most 1."""
    return 1.0 / np.maximum(rates.sum(axis=-1, keepdims=True), 1.0)


def stood_in(
    counts: Counts,
    mass: Float[np.ndarray, "*B levels ranks"],
    trials: Float[np.ndarray, "*B levels ranks"],
) -> tuple[Float[np.ndarray, "*B levels ranks"], Float[np.ndarray, "*B levels ranks"]]:
    """Expected hits and trials of resamples; those of all texts replace cells that no drawn text tried.

    All trials of a level may come from one text, which more than a third of all resamples lack. Without
    this replacement its rate would be 0 in these.
    """
    missing = trials == 0
    return (
        np.where(missing, counts.mass.sum(axis=0), mass),
        np.where(missing, counts.trials.sum(axis=0), trials),
    )


def redrawn(
    rates: Float[np.ndarray, "levels ranks"],
    trials: Int[np.ndarray, "levels ranks"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "levels ranks"]:
    """Hits of a parametric resample, as if positions were independent.

    Ranks of a level with equal trials were tried at the same positions, and at most one child is accepted
    at a position, so their hits are one multinomial draw.
    """
    hits = np.zeros(rates.shape)
    for level, row in enumerate(trials):
        for count in np.unique(row[row > 0]):
            together = row == count
            shares = rates[level, together]
            drawn = rng.multinomial(count, [*shares, max(0.0, 1.0 - shares.sum())])
            hits[level, together] = drawn[:-1]
    return hits


def _over(mass: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """Mass over trials; 0 where there are no trials."""
    trials = np.asarray(trials, dtype=np.float64)
    return np.divide(mass, trials, out=np.zeros(np.broadcast_shapes(mass.shape, trials.shape)),
                     where=trials > 0)  # fmt: skip


def wilson_bounds(
    mass: Float[np.ndarray, "levels ranks"],
    trials: Float[np.ndarray, "levels ranks"],
    shrinkage: float,
    level: float,
) -> list[Float[np.ndarray, "levels ranks"]]:
    """Wilson's bounds of expected hits over trials, processed like the rates.

    They are shrunk and scaled as the rates are. The bounds of siblings may sum to more than
    1, since not all siblings are at their bounds at once.
    """
    scale = _scale(_share(mass, trials, mass, shrinkage))
    bounds = []
    for bound in wilson(np.minimum(mass, trials), trials, level):
        bounds.append(np.clip(_share(bound * trials, trials, mass, shrinkage) * scale, 0.0, 1.0))
    return bounds


def bounds_over_texts(
    counts: Counts, shrinkage: float, level: float, seed: int
) -> tuple[Float[np.ndarray, "levels ranks"], Float[np.ndarray, "levels ranks"]]:
    """Bootstrap bounds over texts drawn with replacement; see `stood_in` for cells without trials."""
    texts, levels, ranks = counts.mass.shape
    if texts < 2:
        raise InvalidLimit(
            "interval = 'bootstrap' draws texts with replacement, but there is only one text: record more, "
            "or use interval = 'wilson'"
        )
    drawn = draws(texts, seed=seed)
    mass = counts.mass.reshape(texts, -1)
    trials = counts.trials.reshape(texts, -1).astype(np.float64)
    rows = max(1, NUMBERS_PER_BLOCK // (levels * ranks))
    rates = []
    for start in range(0, len(drawn), rows):
        block = drawn[start : start + rows]
        cells = (len(block), levels, ranks)
        resampled = (block @ mass).reshape(cells), (block @ trials).reshape(cells)
        rates.append(rates_of(*stood_in(counts, *resampled), shrinkage))
    return bootstrap_bounds(np.concatenate(rates), texts, level)
