"""Isotonic regression: the monotone values that are nearest in weighted least squares."""

import numpy as np
from jaxtyping import Float


def non_increasing(
    values: Float[np.ndarray, "*rows R"], weights: Float[np.ndarray, "*rows R"]
) -> Float[np.ndarray, "*rows R"]:
    """The non-increasing rows that are nearest to `values`, in weighted least squares.

    Computed by the min-max formula, value r = min over a <= r of max over b >= r of the mean of a..b
    (Barlow, Bartholomew, Bremner & Brunk, Statistical Inference under Order Restrictions, 1972). It equals
    the result of pooling adjacent violators, for any number of rows at once, and preserves weighted sums.

    Args:
        values: rows of numbers.
        weights: weights of at least 0; a row of zeros counts as equal weights.

    Example:
        >>> non_increasing(np.array([0.5, 0.1, 0.3]), np.array([1.0, 1.0, 3.0])).round(3).tolist()
        [0.5, 0.25, 0.25]
    """
    weights = np.where(weights.sum(axis=-1, keepdims=True) > 0, weights, 1.0)
    weights = np.maximum(weights, 1e-12 * weights.max(axis=-1, keepdims=True))
    ranks = values.shape[-1]

    def sums(x: np.ndarray) -> np.ndarray:
        """Sums over a..b at index [..., a, b]; meaningless for a > b."""
        totals = np.concatenate([np.zeros((*x.shape[:-1], 1)), np.cumsum(x, axis=-1)], axis=-1)
        return totals[..., None, 1:] - totals[..., :-1, None]

    mass, weight = sums(values * weights), sums(weights)
    valid = np.triu(np.ones((ranks, ranks), dtype=bool))
    means = np.where(valid, mass / np.where(valid, weight, 1.0), -np.inf)
    best = np.maximum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]  # over b >= r, by a and r
    best = np.where(valid, best, np.inf)
    return np.clip(best.min(axis=-2), values.min(-1, keepdims=True), values.max(-1, keepdims=True))
