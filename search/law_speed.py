"""The speed of shapes under one law: acceptance and times of the same draws, with their resamples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float

from search.acceptance import Acceptance, Rates, read_rates
from search.errors import InvalidAcceptance, InvalidLimit
from search.expected import expected_tokens
from search.interpolation import Curve, Term
from search.latency import LatencyModel
from search.ranking import Speed
from treespec.shape import TreeShape

__all__ = ["AnyAcceptance", "Estimated", "LawSpeed", "Times", "acceptance_by_law", "tokens_of"]


@runtime_checkable
class Estimated(Protocol):
    """Measured acceptance, such as `AcceptanceEstimate`: an array of rates that can be resampled."""

    def resample(self, rng: np.random.Generator) -> np.ndarray:
        """The rates of a repetition of the measurement."""
        ...


AnyAcceptance: TypeAlias = Acceptance | Estimated


@dataclass(frozen=True, eq=False)
class Times:
    """Times behind one prefix for one batch size, and resamples of them: the same for all shapes."""

    latency: LatencyModel
    prefix: int | None
    batch: int
    rng: np.random.Generator
    draws: int
    _drawn: dict[Curve, Float[np.ndarray, "draws sizes"]] = field(default_factory=dict)

    def seconds(self, terms: Sequence[Term]) -> tuple[float, Float[np.ndarray, "draws"]]:
        """The time of the first step of these terms, and under every resample."""
        total = np.zeros(self.draws)
        for curve, weights in terms:
            if curve not in self._drawn:
                self._drawn[curve] = curve.drawn(self.rng, self.draws)
            total += self._drawn[curve] @ weights[0]
        return float(LatencyModel.evaluate(terms)[0]), total


class LawSpeed:
    """One law: its rates, its times, and the speed of any shape.

    Args:
        law: name of the law.
        acceptance: rates, or an estimate of them.
        times: prefix and batch are the same for all laws.

    Raises:
        InvalidAcceptance: if rates are invalid, or resamples of another shape.
    """

    def __init__(self, law: str, acceptance: AnyAcceptance, times: Times) -> None:
        self.law, self.times = law, times
        self.warnings = tuple(getattr(acceptance, "warnings", ()))
        measured = isinstance(acceptance, Estimated)
        given: Any = np.asarray(acceptance, dtype=float) if measured else acceptance
        self.rates: Rates = read_rates(given)
        self._drawn = self.rates.table[None]
        if isinstance(acceptance, Estimated):
            tables = [np.atleast_2d(acceptance.resample(times.rng)) for _ in range(times.draws)]
            if any(table.shape != self.rates.table.shape for table in tables):
                raise InvalidAcceptance(
                    f"acceptance of law {law!r}: a resample has another shape than the rates, "
                    f"{list(self.rates.table.shape)}"
                )
            self._drawn = np.stack(tables)

    @property
    def acceptance(self) -> Float[np.ndarray, "*levels ranks"]:
        """The rates, as searches take them."""
        return self.rates.table if self.rates.by_depth else self.rates.table[0]

    def step_s(self, shape: TreeShape) -> float:
        """Seconds of a step."""
        times = self.times
        return times.latency.step_s(shape, times.prefix, law=self.law, batch=times.batch)

    def floor_s(self, sizes: np.ndarray, depth: int) -> Float[np.ndarray, "asked"]:
        """A lower bound of the seconds of a step, by size and depth."""
        times = self.times
        return times.latency.floor_s(sizes, depth, times.prefix, law=self.law, batch=times.batch)

    def speed(self, shape: TreeShape) -> Speed:
        """Tokens and seconds of a step of this shape; of the root alone, of plain decoding."""
        times, latency = self.times, self.times.latency
        drawn = tokens_of(shape, self._drawn, self.rates.by_depth)
        if shape.size == 1:
            terms = latency.plain_terms(times.prefix, self.law, times.batch)
        else:
            terms = latency.step_terms([shape], times.prefix, self.law, times.batch)
        seconds, seconds_drawn = times.seconds(terms)
        tokens = expected_tokens(shape, self.acceptance)
        return Speed(tokens, seconds, np.broadcast_to(drawn, times.draws), seconds_drawn)


def acceptance_by_law(
    acceptance: Any, latency: LatencyModel, laws: Sequence[str] | None, batch: int
) -> dict[str, Any]:
    """The acceptance of each law that is compared.

    Raises:
        InvalidAcceptance: if it is not said which law the acceptance belongs to, or a law has none.
        InvalidLimit: if the laws' times belong to different sampling settings and nobody named the laws.
    """
    known = _by_law(acceptance, latency, laws, batch)
    samplings = {law: latency.law_times(law, batch).sampling for law in known}
    if laws is None and len({name for name in samplings.values() if name}) > 1:
        said = ", ".join(f"{law} ({name})" for law, name in samplings.items())
        raise InvalidLimit(
            f"the times of these laws were measured under different sampling settings: {said}; rank them "
            "apart, or name them in laws=[...] to compare them all the same"
        )
    return known


def _by_law(
    acceptance: Any, latency: LatencyModel, laws: Sequence[str] | None, batch: int
) -> dict[str, Any]:
    wanted = None if laws is None else list(map(str, laws))
    if isinstance(acceptance, Mapping):
        known = {str(law): one for law, one in acceptance.items()}
        missing = [law for law in wanted or () if law not in known]
        if missing or not known:
            raise InvalidAcceptance(
                f"laws = {wanted}, but acceptance has rates for {', '.join(known) or 'no law'}: "
                "give {law: rates} for each"
            )
        return known if wanted is None else {law: known[law] for law in wanted}
    own = getattr(acceptance, "law", None)
    if own is not None:
        if wanted is not None and wanted != [str(own)]:
            raise InvalidAcceptance(f"laws = {wanted}, but the acceptance is of law {str(own)!r}")
        return {str(own): acceptance}
    if wanted is not None:
        return {law: acceptance for law in wanted}  # noqa: C420  (names, not places)
    names = list(latency.times(batch).laws)
    if len(names) > 1:
        raise InvalidAcceptance(
            f"the times are known by law ({', '.join(names)}), but the acceptance does not say which law "
            "it belongs to: give {law: rates}, or laws=[...]"
        )
    return {names[0]: acceptance}


def tokens_of(
    shape: TreeShape, rates: Float[np.ndarray, "draws levels ranks"], by_depth: bool
) -> Float[np.ndarray, "draws"]:
    """Expected tokens of one tree under many tables of rates; `expected_tokens` for each of them.

    Args:
        shape: the tree.
        rates: tables that cover the tree.
        by_depth: whether row d belongs to the children of nodes at depth d; otherwise there is one row.
    """
    parents = np.array(shape.parents)
    parents[0] = 0
    depths = np.maximum(np.array(shape.depths) - 1, 0) if by_depth else np.zeros_like(parents)
    product = rates[:, depths, np.array(shape.ranks)]
    product[:, 0] = 1.0
    while parents.any():
        product = product * product[:, parents]
        parents = parents[parents]
    return product.sum(axis=1)
