"""The speed of shapes under one law, from rates and times and their resamples."""

from collections.abc import Sequence
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
from treespec.search.choice.rows import Choice, Kind, Speed
from treespec.search.errors import InvalidAcceptance
from treespec.search.latency.latency import Times
from treespec.search.latency.step_parts import require_time
from treespec.search.traces.acceptance import Acceptance, Rates, read_rates
from treespec.search.traces.trace import Trace
from treespec.search.value.expected import expected_tokens, tokens_of
from treespec.search.value.frontier import optimal_frontier
from treespec.tree.shape import TreeShape


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
        parts: the measured times that steps are sums of.
        texts: number of texts that the rates are from, if it is known and more than one.
        estimated: whether the rates have been measured, so that they have intervals.

    Raises:
        InvalidAcceptance: if rates are invalid, or a resample differs from them in shape.
    """

    def __init__(self, law: str, acceptance: AnyAcceptance, times: Times) -> None:
        self.law, self.times, self.parts = law, times, times.of(law)
        self.warnings = tuple(getattr(acceptance, "warnings", ()))
        self.estimated = measured = isinstance(acceptance, Estimated)
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
        seconds = self.parts.step_s(shape)
        require_time(self.law, seconds, shape.size)
        return seconds

    def floor_s(self, sizes: Int[np.ndarray, "asked"], depth: int) -> Float[np.ndarray, "asked"]:
        """A lower bound of the seconds per step for trees of these sizes and this depth."""
        floors = self.parts.floor_s(sizes, depth)
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
        tokens = expected_tokens(shape, self.acceptance)
        drawn = tokens_of(shape, self._drawn, self.rates.by_depth)
        step = self.parts.step(shape)
        seconds, seconds_drawn = self.times.seconds(step, self.law, shape.size)
        drawn = np.broadcast_to(drawn, self.times.draws)
        return Speed(tokens, seconds, drawn, seconds_drawn, self.texts)
