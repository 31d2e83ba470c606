"""The speed of shapes under one law, from rates and times and their resamples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int

from treespec.door import shown
from treespec.search.choice.pairs import different_pairs
from treespec.search.choice.rows import Speed
from treespec.search.errors import InvalidAcceptance, InvalidLimit
from treespec.search.latency.errors import InvalidLatency
from treespec.search.latency.interpolation import Curve, Term
from treespec.search.latency.latency import LatencyModel
from treespec.search.latency.step_parts import seconds_of
from treespec.search.optimum.expected import expected_tokens, tokens_of
from treespec.search.rates.acceptance import Acceptance, Rates, read_rates
from treespec.search.rates.counts import UNKNOWN
from treespec.search.rates.sampling_names import name_of
from treespec.search.rates.trace import Trace
from treespec.shape import TreeShape
from treespec.tree import Law
from treespec.verify import RULE_OF_LAW

__all__ = [
    "AnyAcceptance",
    "Estimated",
    "LawSpeed",
    "Times",
    "acceptance_by_law",
    "chains_as_run",
    "require_time",
]


@runtime_checkable
class Estimated(Protocol):
    """Measured acceptance, such as `AcceptanceEstimate`: an array of rates that can be resampled."""

    def resample(self, rng: np.random.Generator) -> Float[np.ndarray, "*levels ranks"]:
        """The rates of a repetition of the measurement."""
        ...


AnyAcceptance: TypeAlias = Acceptance | Estimated | Trace


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

    @cached_property
    def rounds(self) -> Float[np.ndarray, "draws rounds"] | None:
        """How often each round of measuring is drawn in each resample; None if rounds are not known."""
        rounds = self.latency.round_count
        if rounds < 2:
            return None
        rng = np.random.default_rng([self.seed, rounds])
        drawn = rng.multinomial(rounds, np.full(rounds, 1 / rounds), size=self.draws)
        return drawn.astype(np.float64)

    def seconds(self, terms: Sequence[Term]) -> tuple[float, Float[np.ndarray, "draws"]]:
        """The time of the first step of these terms, as measured and under every resample."""
        first_step = [(curve, weights[:1]) for curve, weights in terms]
        return float(seconds_of(terms)[0]), self.drawn(first_step)[:, 0]

    def drawn(
        self, terms: Sequence[Term], most: int | None = None
    ) -> Float[np.ndarray, "draws steps"]:
        """The times of all steps of these terms under every resample.

        Args:
            terms: the steps as weighted sums of measured times.
            most: number of resamples to use; None for all.
        """
        total = np.zeros((self.draws, 1))[:most]
        for curve, weights in terms:
            if curve not in self._drawn:
                self._drawn[curve] = curve.drawn(self.rng, self.draws, self.rounds)
            total = total + self._drawn[curve][:most] @ weights.T
        return total


class LawSpeed:
    """Rates and times of one law, and the speed of any shape.

    Estimates from equally many texts, of the same prompts as far as known, are resampled by the same draws
    of texts, so that differences between laws do not contain differences between texts.

    Args:
        law: name of the law.
        acceptance: rates, or an estimate of them.
        times: times for a prefix and batch, which are the same for all laws.

    Attributes:
        texts: number of texts that the rates are from, if it is known and more than one.

    Raises:
        InvalidAcceptance: if rates are invalid, or a resample differs from them in shape.
    """

    def __init__(self, law: str, acceptance: AnyAcceptance, times: Times) -> None:
        self.law, self.times = law, times
        self.warnings = tuple(getattr(acceptance, "warnings", ()))
        measured = isinstance(acceptance, Estimated)
        rates: Any = np.asarray(acceptance, dtype=float) if measured else acceptance
        self.rates: Rates = read_rates(rates)
        texts = getattr(acceptance, "texts", None) if measured else None
        self.texts: int | None = texts if isinstance(texts, int) and texts > 1 else None
        self._drawn = self.rates.table[None]
        if isinstance(acceptance, Estimated):
            rng = self._stream(acceptance)
            tables = [np.atleast_2d(acceptance.resample(rng)) for _ in range(times.draws)]
            if any(table.shape != self.rates.table.shape for table in tables):
                raise InvalidAcceptance(
                    f"acceptance of law {law!r}: a resample differs in shape from the rates, "
                    f"{list(self.rates.table.shape)}"
                )
            self._drawn = np.stack(tables)

    def _stream(self, acceptance: Any) -> np.random.Generator:
        """The generator that the estimate is resampled with."""
        if self.texts is None:
            return self.times.rng
        about = getattr(acceptance, "about", {})
        prompts = crc32(str(about.get("prompts_hash", "")).encode())
        return np.random.default_rng([self.times.seed, self.texts, prompts])

    @property
    def acceptance(self) -> Float[np.ndarray, "*levels ranks"]:
        """The rates by rank, or by depth and rank."""
        return self.rates.table if self.rates.by_depth else self.rates.table[0]

    def step_s(self, shape: TreeShape) -> float:
        """Seconds per step of a shape.

        Raises:
            InvalidLatency: if a step takes no time.
        """
        times = self.times
        seconds = times.latency.step_s(shape, times.prefix, law=self.law, batch=times.batch)
        require_time(self.law, seconds, shape.size)
        return seconds

    def floor_s(self, sizes: Int[np.ndarray, "asked"], depth: int) -> Float[np.ndarray, "asked"]:
        """A lower bound of the seconds per step for trees of these sizes and this depth.

        Raises:
            InvalidLatency: if a bound is 0.
        """
        times = self.times
        floors = times.latency.at(times.prefix, self.law, times.batch).floor_s(sizes, depth)
        require_time(self.law, floors.min(), int(sizes[floors.argmin()]))
        return floors

    def speed(self, shape: TreeShape) -> Speed:
        """Tokens and seconds of a step of this shape; the root alone is plain decoding.

        Raises:
            InvalidAcceptance, NotMeasured: if rates or times do not cover the shape.
            InvalidLatency: if a step takes no time.
        """
        times = self.times
        steps = times.latency.at(times.prefix, self.law, times.batch)
        tokens = expected_tokens(shape, self.acceptance)
        drawn = tokens_of(shape, self._drawn, self.rates.by_depth)
        seconds, seconds_drawn = times.seconds(
            steps.plain() if shape.size == 1 else steps.tree([shape])
        )
        require_time(self.law, min(seconds, float(seconds_drawn.min())), shape.size)
        return Speed(
            tokens, seconds, np.broadcast_to(drawn, times.draws), seconds_drawn, self.texts
        )


def require_time(law: str, seconds: float, size: int) -> None:
    """Refuse a step that takes no time.

    Raises:
        InvalidLatency: with the law and the size.
    """
    if not seconds > 0:
        raise InvalidLatency(
            f"law {law!r}: a step of {size} nodes takes no time, so its speed is infinite: "
            "give the times of whole passes"
        )


def acceptance_by_law(
    acceptance: Any, latency: LatencyModel, laws: Sequence[str] | None, batch: int
) -> dict[str, Any]:
    """The acceptance of each law to compare.

    Raises:
        InvalidAcceptance: if the law of the acceptance is not known, a law has none, or the acceptance and
            the times are of different models.
        InvalidLimit: if `laws` is empty or not a list of names; or if acceptance and times belong to
            different sampling settings, and no laws are named.
    """
    known = _by_law(acceptance, latency, laws, batch)
    settings = {}
    for law, measured in known.items():
        if (pairs := different_pairs(measured, latency)) is not None:
            raise InvalidAcceptance(
                f"acceptance of {law} is of {pairs[0]}, but the times are of {pairs[1]}: give times of "
                "that pair (`treespec profile`); or, if its passes take as long, remove `models` from the "
                "`about` of the times"
            )
        settings[f"acceptance of {law}"] = name_of(getattr(measured, "sampling", None))
        settings[f"times of {law}"] = latency.law_times(law, batch).sampling
    known_settings = {what: setting for what, setting in settings.items() if setting}
    if laws is None and len(set(known_settings.values())) > 1:
        raise InvalidLimit(
            "acceptance and times were measured under different sampling settings: "
            + ", ".join(f"{what} ({setting})" for what, setting in known_settings.items())
            + "; measure all under the same settings and rank each setting separately, or name the laws in "
            "laws=[...] (`--law`) to combine them anyway"
        )
    return known


def chains_as_run(acceptance: Any, latency: LatencyModel, batch: int) -> dict[str, Trace] | None:
    """The trace to rank chains by, if `treespec run` draws them under another law than trees.

    Above temperature 0 it draws children of trees without replacement, and those of chains independently. A
    single child is drawn and accepted alike under both laws, so a trace without replacement serves chains
    drawn independently, with the times of these.

    Returns:
        The trace under the law `iid`; None if the trace is of another law or rule, or the two laws were not
        timed under the same sampling settings, so that chains are drawn as in the trace.
    """
    drawn, single = Law.WITHOUT_REPLACEMENT, Law.IID
    if not isinstance(acceptance, Trace) or acceptance.law != str(drawn):
        return None
    laws = latency.times(batch)
    if acceptance.rule != str(RULE_OF_LAW[drawn]) or not {str(drawn), str(single)} <= laws.keys():
        return None
    alike = laws[str(drawn)].sampling == laws[str(single)].sampling
    return {str(single): acceptance} if alike else None


def _by_law(
    acceptance: Any, latency: LatencyModel, laws: Sequence[str] | None, batch: int
) -> dict[str, Any]:
    wanted = None if laws is None else _names(laws, latency, batch)
    if isinstance(acceptance, Mapping):
        known = {str(law): measured for law, measured in acceptance.items()}
        missing = [law for law in wanted or () if law not in known]
        if missing or not known:
            raise InvalidAcceptance(
                f"laws = {wanted}, but acceptance has rates for {', '.join(known) or 'no law'}: "
                "give {law: rates} for each"
            )
        return known if wanted is None else {law: known[law] for law in wanted}
    law_of_rates = str(getattr(acceptance, "law", UNKNOWN))
    if law_of_rates != UNKNOWN:
        if wanted is not None and wanted != [law_of_rates]:
            raise InvalidAcceptance(
                f"laws = {wanted}, but the acceptance is of law {law_of_rates!r}"
            )
        return {law_of_rates: acceptance}
    if wanted is not None:
        return {law: acceptance for law in wanted}  # noqa: C420  (names, not places)
    names = list(latency.times(batch))
    if len(names) > 1:
        raise InvalidAcceptance(
            f"the times are known by law ({', '.join(names)}), but the acceptance does not say which law "
            "it belongs to: give {law: rates}, or laws=[...]"
        )
    return {names[0]: acceptance}


def _names(laws: Any, latency: LatencyModel, batch: int) -> list[str]:
    """The names of the requested laws, at least one."""
    known = ", ".join(latency.times(batch))
    if isinstance(laws, str):
        raise InvalidLimit(
            f"laws = {shown(laws)}, but must be a list of names: give laws=[{laws!r}]"
        )
    try:
        names = [str(law) for law in laws]
    except TypeError:
        raise InvalidLimit(
            f"laws = {shown(laws)}, but must be a list of names; times are known for {known}"
        ) from None
    if not names:
        raise InvalidLimit(
            f"laws is empty, so there is nothing to rank: name at least one (times are known for {known}), "
            "or leave it out"
        )
    return names
