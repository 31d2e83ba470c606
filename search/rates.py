"""From counts to rates: what is the same for an estimate and for each of its resamples."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from search.isotonic import non_increasing

__all__ = ["RateSettings"]


@dataclass(frozen=True)
class RateSettings:
    """What is done to rates.

    Args:
        monotone: isotonic regression over ranks, so that no child has a larger rate than an elder sibling.
        shrinkage: pseudo-trials that each depth's rate gets at the rate of the same rank at all depths.
    """

    monotone: bool
    shrinkage: float

    def rates(
        self,
        mass: Float[np.ndarray, "*B levels ranks"],
        trials: Float[np.ndarray, "*B levels ranks"],
    ) -> Float[np.ndarray, "*B levels ranks"]:
        """Rates from expected hits and trials.

        Shrinkage first, then isotonic regression weighted by trials, then rows that sum to more than 1
        (possible where ranks have different trials) are scaled to 1. Without any trial a rate is 0.
        """
        return self.finish(self.share(mass, trials, mass), trials)

    def share(
        self,
        hits: Float[np.ndarray, "*B levels ranks"],
        trials: Float[np.ndarray, "*B levels ranks"],
        mass: Float[np.ndarray, "*B levels ranks"],
    ) -> Float[np.ndarray, "*B levels ranks"]:
        """Hits over trials, shrunk towards the rate of all depths, which is taken from `mass`."""
        pooled = _over(mass.sum(axis=-2, keepdims=True), trials.sum(axis=-2, keepdims=True))
        return _over(hits + self.shrinkage * pooled, trials + self.shrinkage)

    def finish(
        self,
        rates: Float[np.ndarray, "*B levels ranks"],
        trials: Float[np.ndarray, "*B levels ranks"],
    ) -> Float[np.ndarray, "*B levels ranks"]:
        """Isotonic regression, if it is asked for, and no row above 1."""
        if self.monotone:
            rates = non_increasing(rates, trials)
        total = rates.sum(axis=-1, keepdims=True)
        return np.clip(rates / np.maximum(total, 1.0), 0.0, 1.0)


def _over(mass: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The quotient; 0 where there is no trial."""
    trials = np.asarray(trials, dtype=np.float64)
    return np.divide(mass, trials, out=np.zeros(np.broadcast_shapes(mass.shape, trials.shape)),
                     where=trials > 0)  # fmt: skip
