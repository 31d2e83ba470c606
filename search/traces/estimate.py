"""Estimate acceptance rates, with their uncertainty, from traces."""

import json
import warnings as python_warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, FailFast, Field

from treespec.checks import integer
from treespec.errors import Unreadable
from treespec.reading_models import FirstVersion, read_model
from treespec.search.errors import InvalidLimit, InvalidTrace, SmallSample
from treespec.search.intervals import require_level
from treespec.search.traces.counts import Counts, count_drafts, count_trace
from treespec.search.traces.rates import (
    bounds_over_texts,
    rates_of,
    redrawn,
    stood_in,
    wilson_bounds,
)
from treespec.search.traces.rule_notes import note_on
from treespec.search.traces.support import complaints, cut, require_limits
from treespec.search.traces.trace import Trace

VERSION = 1
_SETTINGS = (
    "by", "law", "rule", "source", "interval", "level", "shrinkage", "seed",
)  # fmt: skip
_ORIGIN = ("sampling", "about")
_COUNTS = ("hits", "trials", "mass")
_SHOWN = ("rates", "low", "high", "hits", "trials")
_DIGITS = 6
MOST_TRIALS = 2**53
"""Up to this number floats represent every integer."""


By = Literal["rank", "depth"]
IntervalKind = Literal["wilson", "bootstrap"]


class _File(BaseModel):
    """An estimate as JSON; numbers that can be recomputed from its counts are ignored."""

    model_config = ConfigDict(strict=True)

    kind: Literal["acceptance"]
    version: FirstVersion
    by: By
    law: str
    rule: str
    source: str
    interval: IntervalKind
    level: float
    monotone: Literal[False] = False
    shrinkage: float
    seed: int
    sampling: dict[str, Any] = Field(default_factory=dict)
    about: dict[str, Any] = Field(default_factory=dict)
    warnings: Annotated[list[str], FailFast()]
    texts: Any = None


@dataclass(frozen=True, eq=False)
class AcceptanceEstimate:
    """Measured positional acceptance: how often the k-th child of an accepted node is the accepted one.

    `expected_tokens`, `optimal_tree` and similar functions accept it directly: as an array it is `rates`.

    Args:
        rates: `[ranks]`, or `[levels, ranks]` (row d belongs to the children of nodes at depth d).
        low: lower bounds of the rates' intervals, of the same shape.
        high: upper bounds; those of siblings may sum to more than 1.
        hits: how often each child was accepted, over all texts.
        trials: how often an accepted node had such a child.
        by: "rank" or "depth".
        law: how children were drawn.
        rule: how they were accepted.
        source: "on-policy" (decoded) or "teacher-forced" (from given texts).
        interval: "wilson" or "bootstrap".
        level: confidence level of the intervals.
        shrinkage: pseudo-trials that shrank each depth's rates towards those of all depths.
        warnings: conclusions that the sample does not support.
        counts: hits, trials and expected hits by text.
        seed: seed of the bootstrap.
        sampling: sampling settings of target and draft; empty if not known.
        about: origin of the texts: models, prompts, seeds, hardware.
    """

    rates: Float[np.ndarray, "*levels ranks"]
    low: Float[np.ndarray, "*levels ranks"]
    high: Float[np.ndarray, "*levels ranks"]
    hits: Int[np.ndarray, "*levels ranks"]
    trials: Int[np.ndarray, "*levels ranks"]
    by: By
    law: str
    rule: str
    source: str
    interval: IntervalKind
    level: float
    shrinkage: float
    warnings: tuple[str, ...]
    counts: Counts = field(repr=False)
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The rates."""
        return np.array(self.rates, dtype=dtype)

    @property
    def texts(self) -> int:
        """Number of texts."""
        return len(self.counts.hits)

    def resample(self, rng: np.random.Generator) -> Float[np.ndarray, "*levels ranks"]:
        """Bootstrap the rates: draw texts with replacement and process their counts in the same way.

        Estimates from the same texts are resampled by the same draws if their generators have the same
        seed. Where no drawn text has a trial, the estimate's own counts are used and its rate is unchanged,
        since no rate of 0 was observed. With a single text, hits are drawn from the rates instead, as if
        positions were independent.
        """
        trials = self.counts.trials
        if self.texts > 1:
            drawn = rng.multinomial(self.texts, np.full(self.texts, 1 / self.texts))
            mass_drawn = np.tensordot(drawn, self.counts.mass, axes=1)
            trials_drawn = np.tensordot(drawn, trials, axes=1).astype(np.float64)
            rates = rates_of(*stood_in(self.counts, mass_drawn, trials_drawn), self.shrinkage)
        else:
            raw_rates = rates_of(self.counts.mass[0], trials[0], 0.0)
            rates = rates_of(redrawn(raw_rates, trials[0], rng), trials[0], self.shrinkage)
        return rates.reshape(self.rates.shape)

    def to_json(self) -> str:
        """Readable JSON: settings, rates with bounds and counts, and the counts by text.

        Rates and bounds are for human readers: `from_json` recomputes them from the counts.

        Raises:
            InvalidTrace: if `sampling` or `about` is not plain data.
        """
        return _written(self)

    @classmethod
    def from_json(cls, text: str) -> "AcceptanceEstimate":
        """Read JSON that `to_json` wrote.

        Raises:
            InvalidTrace, InvalidLimit: if the text is not a valid estimate.
        """
        return _estimate(**_read_json(text))


def estimate_acceptance(
    trace: Trace,
    *,
    by: By = "rank",
    depth: int | None = None,
    ranks: int | None = None,
    interval: IntervalKind = "wilson",
    level: float = 0.95,
    shrinkage: float = 0.0,
    seed: int = 0,
) -> AcceptanceEstimate:
    """Estimate positional acceptance rates (Sequoia, arXiv:2402.12374, section 3.2) from traces.

    In a trace, every kept position counts once for the rates by rank. By depth, position s + d counts at
    depth d for every start s from which decoding reaches it along children of the ranks in question. Starts
    overlap, so a position serves several depths, and only resampling whole texts (`interval="bootstrap"`,
    and `resample`) accounts for this and for the similarity of neighbouring positions. Rates are means of
    the exact probabilities of acceptance given the drafted children (Rao-Blackwell); hits are the random
    outcomes. For given texts, acceptance at earlier positions is presupposed although the text may have
    continued differently.

    Steps of real decoding do not begin at every position, but after bonus tokens, which occur where the
    draft failed. So where good and bad stretches alternate, rates of all positions are not those of steps:
    in a text in which one position is missed and the next four are the draft's first child, over and over,
    every step of a chain of 4 emits 5 tokens, while rates by rank promise 3.36 and rates by depth 3.0. A
    replay of the tree says what it keeps (`treespec.search.replay`).

    Rates from the steps of one's own decoding: `treespec.draft.acceptance_rates`.

    Ours adds intervals, by text; counts are kept; shrinkage is optional.

    Args:
        trace: a trace of decoding, or of given texts.
        by: "rank", one rate for all depths, or "depth", a row for each depth.
        depth: with `by="depth"`, levels to estimate; by default all with enough trials.
        ranks: children to estimate; by default all recorded ones.
        interval: "wilson", from the counts as if positions were independent; or "bootstrap", over texts.
        level: confidence level of the intervals.
        shrinkage: with `by="depth"`, pseudo-trials added to each rate at the rate of that rank over all
            depths.
        seed: seed of the bootstrap.

    Raises:
        InvalidTrace: if the trace does not reach the requested depth or ranks.
        InvalidLimit: if a setting is out of range, or two settings contradict each other.

    Example:
        >>> trace = Trace(
        ...     offsets=[0, 5], tokens=[7] * 5, ranks=[0, 1, 2, 0, 0], probs=np.full((5, 2), 0.5),
        ...     accepted=np.eye(3)[[0, 1, 2, 0, 0], :2], law="iid", rule="rrs", sampling={}, width=2,
        ... )  # fmt: skip
        >>> with python_warnings.catch_warnings():
        ...     python_warnings.simplefilter("ignore")  # of so few positions
        ...     estimate = estimate_acceptance(trace)
        >>> estimate.rates.tolist(), estimate.hits.tolist(), estimate.trials.tolist()
        ([0.6, 0.2], [3, 1], [5, 5])
    """
    require_limits(by, depth, shrinkage)
    estimate = _estimate(
        counts=_counted(trace, by, depth, ranks), by=by, law=trace.law, rule=trace.rule,
        source="teacher-forced" if trace.forced else "on-policy", interval=interval, level=level,
        shrinkage=shrinkage, seed=seed, sampling=dict(trace.sampling), about=dict(trace.about),
        explicit=depth is not None,
    )  # fmt: skip
    for text in estimate.warnings:
        python_warnings.warn(text, SmallSample, stacklevel=2)
    return estimate


def _counted(trace: Trace, by: By, depth: int | None, ranks: int | None) -> Counts:
    if ranks is not None and ranks > trace.width:
        raise InvalidTrace(
            f"ranks = {ranks}, but the trace holds {trace.width} children at each position: record "
            f"it again with width {ranks}, or ask for fewer"
        )
    if trace.text_drafts is not None:
        counts = count_drafts(trace, ranks or trace.width)
        return counts.pooled() if by == "rank" else cut(counts, depth, ranks)
    return count_trace(trace, 1 if by == "rank" else depth, ranks or trace.width)


def _estimate(
    *,
    counts: Counts,
    by: By,
    law: str,
    rule: str,
    source: str,
    interval: IntervalKind,
    level: float,
    shrinkage: float,
    seed: int = 0,
    sampling: Mapping[str, Any],
    about: Mapping[str, Any],
    explicit: bool = False,
    warnings: tuple[str, ...] | None = None,
) -> AcceptanceEstimate:
    """Rates and intervals from counts; warnings are computed unless given."""
    require_level(level)
    seed = integer("seed", seed, 0, InvalidLimit)
    if interval not in get_args(IntervalKind):
        raise InvalidLimit(f"interval = {interval!r}, but must be 'wilson' or 'bootstrap'")
    hits, trials, mass = (x.sum(axis=0) for x in (counts.hits, counts.trials, counts.mass))
    rates = rates_of(mass, trials.astype(np.float64), shrinkage)
    if interval == "wilson":
        low, high = wilson_bounds(mass, trials.astype(np.float64), shrinkage, level)
    else:
        low, high = bounds_over_texts(counts, shrinkage, level, seed)
    low, high = np.minimum(low, rates), np.maximum(high, rates)
    low, high = np.where(trials > 0, low, 0.0), np.where(trials > 0, high, 1.0)
    if warnings is None:
        complained = complaints(low, high, counts, by, shrinkage, explicit)
        warnings = (*complained, *note_on(rule))
    flat = slice(None) if by == "depth" else 0
    return AcceptanceEstimate(
        rates[flat], low[flat], high[flat], hits[flat], trials[flat], by, law, rule, source, interval,
        level, float(shrinkage), warnings, counts, seed, sampling, about,
    )  # fmt: skip


def _written(estimate: AcceptanceEstimate) -> str:
    """The estimate as JSON, with each row of numbers on a line."""
    shown = {name: np.round(getattr(estimate, name), _DIGITS).tolist() for name in _SHOWN}
    data: dict[str, Any] = {
        "kind": "acceptance",
        "version": VERSION,
        **{name: getattr(estimate, name) for name in _SETTINGS},
        **{name: dict(getattr(estimate, name)) for name in _ORIGIN},
        "warnings": list(estimate.warnings),
        **shown,
        "texts": {name: getattr(estimate.counts, name).tolist() for name in _COUNTS},
    }
    try:
        lines = [
            f'  "{name}": {json.dumps(value, allow_nan=False)}' for name, value in data.items()
        ]
    except (TypeError, ValueError) as error:
        raise InvalidTrace(f"sampling and about must be plain data: {error}") from None
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _read_json(text: str) -> dict[str, Any]:
    """The settings and counts in a JSON text."""
    try:
        file = read_model(_File, text)
    except Unreadable as error:
        raise InvalidTrace(str(error)) from None
    require_limits(file.by, None, file.shrinkage)
    counts = _counts(file.texts)
    levels = counts.hits.shape[1]
    if file.by == "rank" and levels != 1:
        raise InvalidTrace(f'"by" is "rank", so "texts" must hold one level, but it has {levels}')
    settings = file.model_dump(exclude={"kind", "version", "texts", "monotone"})
    return settings | {"counts": counts, "warnings": tuple(file.warnings)}


def _counts(texts: Any) -> Counts:
    try:
        hits, trials, mass = (np.array(texts[name], dtype=np.float64) for name in _COUNTS)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise InvalidTrace('"texts" must hold numbers "hits", "trials" and "mass"') from None
    shapes = {array.shape for array in (hits, trials, mass)}
    if len(shapes) > 1 or hits.ndim != 3 or not hits.size:
        raise InvalidTrace(
            '"hits", "trials" and "mass" must be [texts][levels][ranks] of one shape'
        )
    whole = not (hits % 1).any() and not (trials % 1).any()
    if not whole or not ((hits >= 0) & (hits <= trials) & (trials <= MOST_TRIALS)).all():
        raise InvalidTrace('"hits" in "texts" must be whole numbers from 0 to "trials"')
    if not ((mass >= 0) & (mass <= trials + 1e-6)).all():
        raise InvalidTrace('"mass" in "texts" must be numbers from 0 to "trials"')
    return Counts(hits.astype(np.int64), trials.astype(np.int64), mass)
