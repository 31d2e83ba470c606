"""Choose the fastest of many shapes on one half of the texts, and value it on the other half."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from treespec.search.latency.interpolation import Term

SPLITS = 16
"""Random splits of the texts into halves that the value is averaged over."""


@dataclass(frozen=True, eq=False)
class Totals:
    """The replayed steps of a shape: emitted tokens and seconds of each text, and its mean step's time."""

    emitted: Float[np.ndarray, "texts"]
    seconds: Float[np.ndarray, "texts"]
    mean_step: Sequence[Term]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return float(self.emitted.sum() / self.seconds.sum())


def on_other_half(candidates: Sequence[Totals], seed: int) -> Totals:
    """The totals that choosing the fastest gives: on each half, those of the shape chosen on the other one.

    The best of many shapes on few texts looks better on them than it is. Each text is in the other half
    once in every split, so its totals are means over the splits. They do not depend on the order of texts,
    which are first sorted by what the shapes emit on them.
    """
    emitted = np.stack([totals.emitted for totals in candidates])
    seconds = np.stack([totals.seconds for totals in candidates])
    order = np.lexsort(np.concatenate([seconds, emitted]))
    rng, texts = np.random.default_rng(seed), len(order)
    halves = np.zeros((SPLITS, texts), dtype=bool)
    for half in halves:
        half[order[rng.permutation(texts)[: texts // 2]]] = True
    chosen_on = np.concatenate([halves, ~halves])
    rates = (emitted @ chosen_on.T) / (seconds @ chosen_on.T)
    chosen = rates.argmax(axis=0)
    best = max(candidates, key=lambda totals: totals.rate)
    return Totals(
        (emitted[chosen] * ~chosen_on).sum(axis=0) / SPLITS,
        (seconds[chosen] * ~chosen_on).sum(axis=0) / SPLITS,
        best.mean_step,
    )
