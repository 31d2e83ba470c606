"""Measured times for one prefix and batch size, and their resamples."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from treespec.search.errors import InvalidLatency
from treespec.search.intervals import draws
from treespec.search.latency.interpolation import Curve, Term
from treespec.search.latency.latency import LatencyModel
from treespec.search.latency.step_parts import seconds_of


@dataclass(frozen=True, eq=False)
class Times:
    """Times for one prefix and batch size, and their resamples, which all shapes share.

    Args:
        latency: the measured times.
        prefix: committed tokens before the root; None only if times hold for every prefix.
        batch: number of texts decoded at once.
        draws: number of resamples.
        seed: seed of the resamples.
        rng: generator for unrelated measurements, which are resampled independently.
    """

    latency: LatencyModel
    prefix: int | None
    batch: int
    draws: int
    seed: int
    rng: np.random.Generator
    _drawn: dict[Curve, Float[np.ndarray, "draws sizes"]] = field(default_factory=dict)

    def seconds(self, terms: Sequence[Term]) -> tuple[float, Float[np.ndarray, "draws"]]:
        """The time of the first step of these terms, as measured and under every resample.

        A machine is slightly faster in some rounds of measuring than in others, for all parts alike, so
        rounds are resampled where they are known.
        """
        total = np.zeros(self.draws)
        rounds = self.latency.round_count
        drawn_rounds = draws(rounds, self.draws, self.seed + 1) if rounds > 1 else None
        for curve, weights in terms:
            if curve not in self._drawn:
                self._drawn[curve] = curve.drawn(self.rng, self.draws, drawn_rounds)
            total = total + self._drawn[curve] @ weights[0]
        return float(seconds_of(terms)[0]), total


def require_time(law: str, seconds: float, size: int) -> None:
    """Refuse a step that takes no time."""
    if not seconds > 0:
        raise InvalidLatency(
            f"law {law!r}: a step of {size} nodes takes no time, so its speed is infinite: "
            "give the times of whole passes"
        )
