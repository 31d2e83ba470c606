"""Confidence bounds of acceptance rates: from counts, or by resampling texts."""

import numpy as np
from jaxtyping import Float

from treespec.search.errors import InvalidLimit
from treespec.search.intervals import bootstrap_bounds, draws, wilson
from treespec.search.rates.counts import Counts
from treespec.search.rates.rates import RateSettings, stood_in

NUMBERS_PER_BLOCK = 1 << 21
"""Limit on the numbers that are processed at a time."""


def wilson_bounds(
    settings: RateSettings,
    mass: Float[np.ndarray, "levels ranks"],
    trials: Float[np.ndarray, "levels ranks"],
    level: float,
) -> list[Float[np.ndarray, "levels ranks"]]:
    """Wilson's bounds of expected hits over trials, processed like the rates.

    They are shrunk and scaled as the rates are. The bounds of siblings may sum to more than
    1, since not all siblings are at their bounds at once.
    """
    scale = settings.scale(settings.share(mass, trials, mass))
    bounds = []
    for bound in wilson(np.minimum(mass, trials), trials, level):
        bounds.append(np.clip(settings.share(bound * trials, trials, mass) * scale, 0.0, 1.0))
    return bounds


def bounds_over_texts(
    settings: RateSettings, counts: Counts, level: float, seed: int
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
        rates.append(settings.rates(*stood_in(counts, *resampled)))
    return bootstrap_bounds(np.concatenate(rates), texts, level)
