"""The speed of shapes under one law, from rates and times and their resamples."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from treespec.search.choice.candidates import (
    Limits,
    Room,
    candidate_sizes,
    chains_within,
    fastest_of_frontier,
)
from treespec.search.choice.pairs import different_pairs
from treespec.search.choice.rows import Choice, Kind, Speed
from treespec.search.choice.times import Times, require_time
from treespec.search.errors import InvalidAcceptance, InvalidLimit
from treespec.search.latency.latency import LatencyModel
from treespec.search.traces.acceptance import Acceptance, Rates, read_rates
from treespec.search.traces.sampling_names import name_of
from treespec.search.traces.trace import Trace
from treespec.search.value.expected import expected_tokens, tokens_of
from treespec.search.value.frontier import optimal_frontier
from treespec.tree import Law
from treespec.tree.shape import TreeShape
from treespec.verify import RULE_OF_LAW


@runtime_checkable
class Estimated(Protocol):
    """Measured acceptance, such as `AcceptanceEstimate`: an array of rates that can be resampled."""

    def resample(self, rng: np.random.Generator) -> Float[np.ndarray, "*levels ranks"]:
        """The rates of a repetition of the measurement."""
        ...


AnyAcceptance: TypeAlias = Acceptance | Estimated | Trace


RATES_ALONE = (
    "tokens are predicted from rates alone, as if every level were independent of those before it: "
    "search a trace to have trees replayed instead (`treespec trace`)"
)


class LawSpeed:
    """Rates and times of one law, and the speed of any shape.

    Estimates from equally many texts are resampled by the same draws of texts, so that differences between
    laws do not contain differences between texts.

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
            seeded = np.random.default_rng([times.seed, self.texts or 0])
            rng = times.rng if self.texts is None else seeded
            tables = [np.atleast_2d(acceptance.resample(rng)) for _ in range(times.draws)]
            if any(table.shape != self.rates.table.shape for table in tables):
                raise InvalidAcceptance(
                    f"acceptance of law {law!r}: a resample differs in shape from the rates, "
                    f"{list(self.rates.table.shape)}"
                )
            self._drawn = np.stack(tables)

    @property
    def acceptance(self) -> Float[np.ndarray, "*levels ranks"]:
        """The rates by rank, or by depth and rank."""
        return self.rates.table if self.rates.by_depth else self.rates.table[0]

    def step_s(self, shape: TreeShape) -> float:
        """Seconds per step of a shape."""
        times = self.times
        seconds = times.latency.step_s(shape, times.prefix, law=self.law, batch=times.batch)
        require_time(self.law, seconds, shape.size)
        return seconds

    def floor_s(self, sizes: Int[np.ndarray, "asked"], depth: int) -> Float[np.ndarray, "asked"]:
        """A lower bound of the seconds per step for trees of these sizes and this depth."""
        times = self.times
        floors = times.latency.at(times.prefix, self.law, times.batch).floor_s(sizes, depth)
        require_time(self.law, floors.min(), int(sizes[floors.argmin()]))
        return floors

    def ranked(
        self, limits: Limits, room: Room, kinds: Sequence[Kind]
    ) -> tuple[list[Choice], list[str]]:
        """The fastest trees of the frontier and all chains, as far as wanted, and notes."""
        notes, shapes = [f"{self.law}: {warning}" for warning in self.warnings], []
        if "tree" in kinds and not room.wide:
            notes.append(f"{self.law}: chains only, since no wider level of the draft was measured")
        elif "tree" in kinds:
            sizes = limits.sizes or candidate_sizes(room.size)
            frontier = optimal_frontier(
                self.acceptance, room.size, depth=room.depth, branching=room.branching
            )
            sizes = sorted({size for size in sizes if size > 1})
            shapes, missing = fastest_of_frontier(
                frontier, sizes, self.floor_s, self.step_s, chains="chain" in kinds
            )
            if missing is not None:
                notes.append(f"{self.law}: trees were skipped: {missing}")
        if "chain" in kinds:
            shapes += chains_within(limits, room)
        if shapes:
            notes.append(RATES_ALONE)
        entries = [Choice(shape, self.law, self.speed(shape)) for shape in dict.fromkeys(shapes)]
        return sorted(entries, key=lambda entry: (-entry.speed.rate, entry.shape.size)), notes

    def speed(self, shape: TreeShape) -> Speed:
        """Tokens and seconds of a step of this shape; the root alone is plain decoding."""
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


def acceptance_by_law(
    acceptance: Any, latency: LatencyModel, laws: Sequence[str] | None, batch: int
) -> dict[str, Any]:
    """The acceptance of each law to compare."""
    known = _by_law(acceptance, latency, laws)
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
    names = str(drawn), str(single)
    if acceptance.rule != str(RULE_OF_LAW[drawn]) or not {*names} <= {*latency.laws}:
        return None
    of_tree, of_chain = (latency.law_times(name, batch).sampling for name in names)
    return {str(single): acceptance} if of_tree == of_chain else None


def _by_law(acceptance: Any, latency: LatencyModel, laws: Sequence[str] | None) -> dict[str, Any]:
    wanted = None if laws is None else [str(law) for law in laws]
    if isinstance(laws, str) or wanted == []:
        raise InvalidLimit(
            f"laws = {laws!r}, but must be a list of names, not empty: name at least one of "
            f"{', '.join(latency.laws)}, or leave it out"
        )
    if isinstance(acceptance, Mapping):
        known = {str(law): measured for law, measured in acceptance.items()}
        missing = [law for law in wanted or () if law not in known]
        if missing or not known:
            raise InvalidAcceptance(
                f"laws = {wanted}, but acceptance has rates for {', '.join(known) or 'no law'}: "
                "give {law: rates} for each"
            )
        return known if wanted is None else {law: known[law] for law in wanted}
    law_of_rates = getattr(acceptance, "law", None)
    if law_of_rates is not None:
        if wanted is not None and wanted != [law_of_rates]:
            raise InvalidAcceptance(
                f"laws = {wanted}, but the acceptance is of law {law_of_rates!r}"
            )
        return {law_of_rates: acceptance}
    if wanted is not None:
        return {law: acceptance for law in wanted}  # noqa: C420  (names, not places)
    names = list(latency.laws)
    if len(names) > 1:
        raise InvalidAcceptance(
            f"the times are known by law ({', '.join(names)}), but the acceptance does not say which law "
            "it belongs to: give {law: rates}, or laws=[...]"
        )
    return {names[0]: acceptance}
