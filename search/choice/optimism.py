"""The bias of choosing the fastest shape: how much faster it looks than it is (winner's curse)."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from treespec.search.choice.rows import Speed

__all__ = ["OPTIMISM_DRAWS", "flattery", "optimism"]

OPTIMISM_DRAWS = 1000
"""Resamples that the bias is averaged over. More would need much memory: each holds thousands of shapes."""


def optimism(
    tokens: Float[np.ndarray, "shapes"],
    seconds: Float[np.ndarray, "shapes"],
    drawn: Float[np.ndarray, "draws shapes"],
) -> float:
    """The factor by which choosing the fastest shape by measured times underestimates its time.

    Among many equally fast shapes, the one that looks fastest is the one whose times came out short. The
    bias is estimated by repeating the choice under resampled times: these favour the shape that they
    choose; the measured times, which are the truth of the bootstrap world, do not (Efron, JASA 78, 1983,
    "optimism" of a prediction rule, here of a choice). The factor is the mean measured time per token of
    the chosen shapes over their mean resampled one. Every choice uses all measurements, as the actual
    choice does. Medians of few rounds do not lie in the middle of their resamples, so the resampled times
    are scaled such that each shape's mean is its measured time; then the factor is never below 1.

    Measured on twelve shapes with 3 % noise in their times: where all are equal it finds 3.5 of 4.9 %,
    since the resampled choice prefers the shapes that were already lucky; where each is 2 % slower than the
    one before, 2.2 of 2.2 %; at 5 %, 1.1 where 0.7 % is right. With two or three rounds it finds less,
    since their resamples vary less than repeated measurements would.

    Args:
        tokens: tokens per step that each shape promises.
        seconds: measured seconds per step, finite.
        drawn: seconds per step under each resample.

    Returns:
        A factor of at least 1; 1 if every resample chooses the same shape.

    Example:
        >>> drawn = np.array([[0.9, 1.1], [1.1, 0.9]])
        >>> round(optimism(np.ones(2), np.ones(2), drawn), 3)
        1.111
    """
    cost, redrawn = seconds / tokens, drawn / tokens
    redrawn *= cost / redrawn.mean(axis=0)
    chosen = redrawn.argmin(axis=1)
    return float(cost[chosen].mean() / redrawn[np.arange(len(redrawn)), chosen].mean())


def flattery(speeds: Sequence[Speed]) -> tuple[float, float]:
    """The factors by which the tokens of the fastest entry are overestimated, and its time underestimated.

    Like `optimism`, but for choices where both tokens and times may be lucky: the fastest of several
    drafts, laws or profiles. For two equally fast entries whose speeds have noise s it finds 0.39 of 0.57
    s, for four 0.72 of 1.03 s. Shrinking all towards their mean would find more there, and almost nothing
    where one is far behind.

    Args:
        speeds: speeds that were resampled together.

    Returns:
        The factor to divide its tokens by, and the factor to multiply its time by; their product is at
        least 1. Both are 1 if all resamples choose the same entry.

    Example:
        >>> first = Speed(2.0, 1.0, np.array([2.2, 1.8]), np.ones(2))
        >>> other = Speed(2.0, 1.0, np.array([1.8, 2.2]), np.ones(2))
        >>> tokens, seconds = flattery([first, other])
        >>> round(tokens, 3), seconds
        (1.106, 1.0)
    """
    tokens = np.log(np.stack([speed.tokens_drawn for speed in speeds], axis=1))
    seconds = np.log(np.stack([speed.seconds_drawn for speed in speeds], axis=1))
    tokens, seconds = tokens - tokens.mean(axis=0), seconds - seconds.mean(axis=0)
    rates = np.log([speed.rate for speed in speeds])
    chosen = (rates + tokens - seconds).argmax(axis=1)
    if (chosen == rates.argmax()).all():
        return 1.0, 1.0
    draws = np.arange(len(chosen))
    token_bias, time_bias = tokens[draws, chosen].mean(), -seconds[draws, chosen].mean()
    return float(np.exp(token_bias)), float(np.exp(time_bias))
