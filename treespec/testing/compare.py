"""Whether samples of decoding follow the law of plain decoding: a test with a stated false-alarm rate.

For models too large to enumerate. The joint law of the first tokens is the law of the first, times that of
the second given the first, and so on; each factor is tested by itself, so that a loss in the second token
is not diluted by the first. What precedes a token is a *stratum*: given how often it occurred, the tokens
after it are independent draws, and the statistic of a position is the sum over its strata of Pearson's
chi-square (W. G. Cochran, Some Methods for Strengthening the Common chi-square Tests, Biometrics 10, 1954).

p-values are not read off the chi-square distribution, whose far tail is wrong for small cells: the
statistic is drawn again under equality, and how often it comes out as large is counted. Such a p-value is
exact (`treespec.testing.strata`). The chi-square distribution only serves to say what would be noticed.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from treespec.errors import TreespecError
from treespec.testing.strata import (
    LEAST_EXPECTED,
    POOLED_IN_CELLS,
    Stratum,
    against_law,
    against_samples,
    detectable_variation,
    monte_carlo_p_value,
)

__all__ = ["Deviation", "LawComparison", "PositionTest", "Samples", "TooFewSamples", "compare_laws"]

Samples = Sequence[Sequence[int]] | Int[Tensor, "n t"]
"""One row of token ids for each sample, all of one length."""

ConditionalLaw = Callable[[tuple[int, ...]], Float[Tensor, "V"]]
"""The exact law of the next token after the first tokens of a row."""

MOST_PREFIXES_NAMED = 5
"""Prefixes that a message names at most."""

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


class TooFewSamples(TreespecError, ValueError):
    """Samples so few that no table has two cells: nothing could be noticed."""


@dataclass(frozen=True)
class PositionTest:
    """The test of one token, given those before it.

    Args:
        position: 0 for the first token that is tested.
        statistic: chi-square, summed over strata.
        degrees: its degrees of freedom; 0 where nothing could be tested.
        strata: contexts that had enough samples.
        samples: samples in them.
        p_value: exact, by redrawing.
        detectable: total variation between the cells, the same in every stratum, that is noticed with a
            probability of 90 % whatever its direction; 1 where nothing could be tested.
    """

    position: int
    statistic: float
    degrees: int
    strata: int
    samples: int
    p_value: float
    detectable: float

    def __str__(self) -> str:
        name = (
            ORDINALS[self.position] if self.position < len(ORDINALS) else f"{self.position + 1}th"
        )
        if not self.degrees:
            return f"{name} token: not tested"
        return (
            f"{name} token: chi-square {self.statistic:.1f} on {self.degrees} degrees, "
            f"p = {self.p_value:.2g}"
        )


@dataclass(frozen=True)
class Deviation:
    """The cell that deviates most.

    Args:
        prefix: what precedes the token.
        tokens: the token; several where small cells were pooled.
        observed: share of the samples with this prefix.
        expected: share expected.
        sigmas: deviation in standard deviations of that share.
    """

    prefix: tuple[int, ...]
    tokens: tuple[int, ...]
    observed: float
    expected: float
    sigmas: float

    def __str__(self) -> str:
        token = (
            str(self.tokens[0]) if len(self.tokens) == 1 else f"one of {len(self.tokens)} tokens"
        )
        return (
            f"{token} after {list(self.prefix)}: {self.observed:.4f} instead of {self.expected:.4f}, "
            f"{self.sigmas:+.1f} standard deviations"
        )


@dataclass(frozen=True)
class LawComparison:
    """What `compare_laws` found.

    Args:
        samples: rows that were tested.
        reference: rows of the reference; None if its law is known exactly.
        positions: one test for each token.
        false_alarm: probability that equal laws fail.
        largest: the cell that deviates most, None if there was no table.
    """

    samples: int
    reference: int | None
    positions: tuple[PositionTest, ...]
    false_alarm: float
    largest: Deviation | None

    @property
    def p_value(self) -> float:
        """Smallest of the positions', corrected for their number (Bonferroni)."""
        tested = [test.p_value for test in self.positions if test.degrees]
        return min(1.0, len(tested) * min(tested)) if tested else 1.0

    @property
    def passed(self) -> bool:
        """Whether the laws may be equal."""
        return self.p_value > self.false_alarm

    @property
    def statistic(self) -> float:
        """Chi-square of the joint law: the sum over positions."""
        return sum(test.statistic for test in self.positions)

    @property
    def degrees(self) -> int:
        """Its degrees of freedom."""
        return sum(test.degrees for test in self.positions)

    @property
    def detectable(self) -> float:
        """Total variation of the first token that is noticed with a probability of 90 %; 1: none is."""
        return self.positions[0].detectable

    def __str__(self) -> str:
        against = (
            "the exact law" if self.reference is None else f"{self.reference:,} reference samples"
        )
        verdict = "no difference" if self.passed else "the laws DIFFER"
        # No total variation exceeds 1, so a bound of 1 promises nothing.
        noticed = (
            f"; a total variation of {self.detectable:.3f} at the first token would be noticed in 90 % of "
            "cases"
            if self.detectable < 1
            else ""
        )
        worst = "" if self.passed or self.largest is None else f"; worst cell: {self.largest}"
        return (
            f"{verdict} between {self.samples:,} samples and {against}: p = {self.p_value:.2g} "
            f"(false-alarm rate {self.false_alarm:.2g}; {'; '.join(map(str, self.positions))})"
            f"{noticed}{worst}"
        )


def compare_laws(
    samples: Samples,
    reference: Samples | ConditionalLaw,
    *,
    given: int = 0,
    false_alarm: float = 1e-3,
    seed: int = 0,
) -> LawComparison:
    """Test whether samples follow the law of a reference, jointly in all their tokens.

    Stratified chi-square tests, one for each token given those before it; tests by Bonferroni. Tokens
    are made into cells by the reference's law, or by both samples together, so the choice cannot favour
    either side: each token that holds at least 1 % and 5 expected samples has its own cell, the others are
    pooled in the order of their probabilities. What differs only between pooled tokens is not seen.

    Args:
        samples: `[n, t]` token ids, rows independent and of one law.
        reference: the same from plain decoding, in any number; or, better, its exact law as a function
            that gives the row `[V]` of the next token after the first tokens of a row. Against a law that
            is known, half as many samples show the same.
        given: leading entries of the rows that are not random but name the context (which prompt). A
            reference of samples must have the same ones.
        false_alarm: probability that this returns "differ" for equal laws, all positions together.
        seed: of the redraws behind the p-values.

    Raises:
        TooFewSamples: if no position has a table of two cells, with the number that would be enough.
        ValueError: if rows are not integers, differ in length or hold no token to test; if one side lacks
            given entries of the other; if an exact law has no entry for a token that occurs; if `given` or
            `false_alarm` is out of range.

    Example:
        >>> fair = [[i % 2] for i in range(1000)]
        >>> biased = [[i % 5 % 2] for i in range(1000)]
        >>> compare_laws(fair, [[1], [0]] * 500).passed, compare_laws(biased, fair).passed
        (True, False)
    """
    if not 0 < false_alarm < 1:
        raise ValueError(f"false_alarm = {false_alarm}: must be between 0 and 1")
    rows = _table(samples, "samples")
    other = None if callable(reference) else _table(reference, "reference")
    _require_fitting(rows, other, given)
    width = rows.shape[1]
    rng = np.random.default_rng(seed)
    level = false_alarm / (width - given)
    tests, strata, enough = [], [], []
    for position in range(given, width):
        kept = []
        for prefix, counts, others in _contexts(rows, other, position):
            total = sum(counts.values())
            if total < 2 * LEAST_EXPECTED and position > given:
                continue
            if callable(reference):
                probs = reference(prefix).double().cpu().numpy()
                stratum = against_law(prefix, counts, probs)
            else:
                probs = np.array([*(counts + others).values()])
                stratum = against_samples(prefix, counts, others)
            if stratum is not None:
                kept.append(stratum)
            elif position == given:
                enough.append(_enough(probs) * len(rows) / total)
        strata += kept
        tests.append(_test(position - given, kept, level, rng))
    needed = int(np.ceil(min((n for n in enough if n < np.inf), default=2 * LEAST_EXPECTED)))
    if not strata and (min(enough) < np.inf or len(rows) < needed):
        raise TooFewSamples(
            f"{len(rows)} samples: no token and its alternatives are expected at least {LEAST_EXPECTED} "
            f"times each, so no difference could be noticed; take at least {needed:,}, better ten times as "
            "many"
        )
    largest = max((_largest(s) for s in strata), key=lambda d: abs(d.sigmas), default=None)
    return LawComparison(
        len(rows), None if other is None else len(other), tuple(tests), false_alarm, largest
    )


def _table(samples: Samples, name: str) -> NDArray[np.int64]:
    rows: Any = samples.tolist() if isinstance(samples, Tensor) else samples
    try:
        rows = [list(row) for row in rows]
    except TypeError:
        raise ValueError(
            f"{name}: a row of token ids is needed for each sample, [n, t]; a single token is a row of one"
        ) from None
    if len({len(row) for row in rows}) != 1:
        raise ValueError(f"{name}: rows of one length are needed, and at least one row")
    table = np.asarray(rows)
    if table.size and (table.ndim != 2 or table.dtype.kind not in "iu"):
        raise ValueError(f"{name}: token ids must be integers, in rows [n, t]; got {table.dtype}")
    return table.astype(np.int64)


def _require_fitting(rows: NDArray[np.int64], other: NDArray[np.int64] | None, given: int) -> None:
    if given < 0:
        raise ValueError(f"given = {given}: must be at least 0")
    width = rows.shape[1]
    if width <= given or (other is not None and other.shape[1] != width):
        shape = "" if other is None else f" and {other.shape[1]}"
        raise ValueError(
            f"rows of {width}{shape} entries, of which {given} are given: no token to test"
        )
    if other is None:
        return
    # Contexts of one side alone have no table: whatever follows them would pass unseen.
    here, there = ({tuple(row) for row in side[:, :given].tolist()} for side in (rows, other))
    for name, lacking in (("samples", there - here), ("reference", here - there)):
        if lacking:
            named = ", ".join(str(list(prefix)) for prefix in sorted(lacking)[:MOST_PREFIXES_NAMED])
            more = (
                f" and {len(lacking) - MOST_PREFIXES_NAMED} more"
                if len(lacking) > MOST_PREFIXES_NAMED
                else ""
            )
            raise ValueError(
                f"{name}: no row begins with {named}{more}, as rows of the other side do: "
                "nothing after it could be compared"
            )


def _contexts(
    rows: NDArray[np.int64], other: NDArray[np.int64] | None, position: int
) -> Iterator[tuple[tuple[int, ...], Counter[int], Counter[int]]]:
    """Each prefix of the samples with the counts of the next token, there and in the reference."""
    counts: tuple[defaultdict[tuple[int, ...], Counter[int]], ...] = (
        defaultdict(Counter),
        defaultdict(Counter),
    )
    for table, texts in zip(counts, (rows, other), strict=True):
        for row in () if texts is None else texts[:, : position + 1].tolist():
            table[tuple(row[:-1])][row[-1]] += 1
    for prefix in sorted(counts[0]):
        yield prefix, counts[0][prefix], counts[1][prefix]


def _enough(probs: NDArray[Any]) -> float:
    """Samples with which there are two cells, however tokens are pooled; infinite for one token."""
    share = float(probs.max() / probs.sum())
    if share <= 0.5:
        # Where no token has a cell of its own, a pool closes at most 1 least cell beyond what it must.
        return min(LEAST_EXPECTED / share, (POOLED_IN_CELLS + 2.0) * LEAST_EXPECTED)
    return LEAST_EXPECTED / (1 - share) if share < 1 else np.inf


def _test(
    position: int, strata: Sequence[Stratum], level: float, rng: np.random.Generator
) -> PositionTest:
    degrees = sum(len(s.observed) - 1 for s in strata)
    effective = sum(s.effective for s in strata)
    return PositionTest(
        position=position,
        statistic=float(sum(s.statistic for s in strata)),
        degrees=degrees,
        strata=len(strata),
        samples=sum(s.samples for s in strata),
        p_value=monte_carlo_p_value(strata, level, rng) if degrees else 1.0,
        detectable=detectable_variation(degrees, effective, level) if degrees else 1.0,
    )


def _largest(stratum: Stratum) -> Deviation:
    i = int(np.abs(stratum.sigmas).argmax())
    return Deviation(
        stratum.prefix,
        stratum.cells[i],
        float(stratum.observed[i] / stratum.samples),
        float(stratum.expected[i] / stratum.samples),
        float(stratum.sigmas[i]),
    )
