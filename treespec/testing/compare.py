"""Test whether samples of decoding follow the law of plain decoding, with a stated false-alarm rate.

For models too large to enumerate. The joint law of the first tokens is the law of the first token, times
that of the second given the first, and so on. Each factor is tested separately, so that a bias in the
second token is not diluted by the first. The tokens before a position form a *stratum*: given how often
they occurred, the next tokens are independent draws, and the statistic of a position is the sum over its
strata of Pearson's chi-square (W. G. Cochran, Some Methods for Strengthening the Common chi-square Tests,
Biometrics 10, 1954).

p-values are not taken from the chi-square distribution, whose far tail is wrong for small cells. Instead,
the statistic is redrawn under equality, and the redraws that are as large are counted. Such a p-value is
exact (`treespec.testing.strata`). The chi-square distribution is only used to state the detectable bias.
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

Samples = Sequence[Sequence[int]] | Int[Tensor, "n t"]
"""One row of token ids per sample, all of the same length."""

ConditionalLaw = Callable[[tuple[int, ...]], Float[Tensor, "V"]]
"""The exact law of the next token after the first tokens of a row."""

MOST_PREFIXES_NAMED = 5
"""Upper bound on the prefixes that a message names."""

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


class TooFewSamples(TreespecError, ValueError):
    """Too few samples: no table has two cells, so no difference could be detected."""


@dataclass(frozen=True)
class PositionTest:
    """The test of one token, given the tokens before it.

    Args:
        position: 0 for the first tested token.
        statistic: chi-square, summed over strata.
        degrees: its degrees of freedom; 0 if nothing could be tested.
        strata: number of contexts with enough samples.
        samples: number of samples in these contexts.
        p_value: exact p-value, by redrawing.
        detectable: total variation between the cells, equal in every stratum, that is detected with a
            probability of 90 % whatever its direction; 1 if nothing could be tested.
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
        prefix: the tokens before.
        tokens: the token; several tokens if small cells were pooled.
        observed: observed share of the samples with this prefix.
        expected: expected share.
        sigmas: deviation in standard deviations of the expected share.
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
    """Result of `compare_laws`.

    Args:
        samples: number of tested rows.
        reference: number of rows of the reference; None if its law is known exactly.
        positions: one test per token.
        false_alarm: probability that equal laws fail.
        largest: the cell that deviates most; None if there was no table.
    """

    samples: int
    reference: int | None
    positions: tuple[PositionTest, ...]
    false_alarm: float
    largest: Deviation | None

    @property
    def p_value(self) -> float:
        """Smallest p-value of the positions, corrected for their number (Bonferroni)."""
        tested = [test.p_value for test in self.positions if test.degrees]
        return min(1.0, len(tested) * min(tested)) if tested else 1.0

    @property
    def passed(self) -> bool:
        """Whether the test did not find the laws to differ."""
        return self.p_value > self.false_alarm

    @property
    def statistic(self) -> float:
        """Chi-square of the joint law: the sum over positions."""
        return sum(test.statistic for test in self.positions)

    @property
    def degrees(self) -> int:
        """Degrees of freedom of the joint statistic."""
        return sum(test.degrees for test in self.positions)

    @property
    def detectable(self) -> float:
        """Total variation of the first token that is detected with a probability of 90 %; 1 for none."""
        return self.positions[0].detectable

    def __str__(self) -> str:
        against = (
            "the exact law" if self.reference is None else f"{self.reference:,} reference samples"
        )
        verdict = "no difference" if self.passed else "the laws DIFFER"
        # No total variation exceeds 1, so a bound of 1 would be an empty promise.
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

    Runs one stratified chi-square test per token, given the tokens before it, with a Bonferroni correction.
    Tokens are grouped into cells by the reference's law, or by both samples together, so the grouping
    cannot favour either side. A token that holds at least 1 % and 5 expected samples has its own cell; the
    others are pooled in the order of their probabilities. Differences within a pool are not detected.

    Args:
        samples: `[n, t]` token ids; rows are independent and of the same law.
        reference: the same from plain decoding, in any number; or, better, its exact law as a function
            that returns the row `[V]` of the next token after the first tokens of a row. With an exact law,
            half as many samples have the same power.
        given: number of leading entries of the rows that are not random but identify the context (the
            prompt). Reference samples must have the same entries.
        false_alarm: probability that equal laws are found to differ, over all positions together.
        seed: seed of the redraws behind the p-values.

    Raises:
        TooFewSamples: if no position has a table with two cells; states how many samples are enough.
        ValueError: if rows are not integers, differ in length or have no token to test; if one side lacks
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
    reference_rows = None if callable(reference) else _table(reference, "reference")
    _require_fitting(rows, reference_rows, given)
    width = rows.shape[1]
    rng = np.random.default_rng(seed)
    level = false_alarm / (width - given)
    tests, strata, enough = [], [], []
    for position in range(given, width):
        strata_here = []
        for prefix, counts, reference_counts in _contexts(rows, reference_rows, position):
            total = sum(counts.values())
            if total < 2 * LEAST_EXPECTED and position > given:
                continue
            if callable(reference):
                probs = reference(prefix).double().cpu().numpy()
                stratum = against_law(prefix, counts, probs)
            else:
                probs = np.array([*(counts + reference_counts).values()])
                stratum = against_samples(prefix, counts, reference_counts)
            if stratum is not None:
                strata_here.append(stratum)
            elif position == given:
                enough.append(_enough(probs) * len(rows) / total)
        strata += strata_here
        tests.append(_test(position - given, strata_here, level, rng))
    needed = int(np.ceil(min((n for n in enough if n < np.inf), default=2 * LEAST_EXPECTED)))
    if not strata and (min(enough) < np.inf or len(rows) < needed):
        raise TooFewSamples(
            f"{len(rows)} samples: no token and its alternatives are expected at least {LEAST_EXPECTED} "
            f"times each, so no difference could be detected; take at least {needed:,}, better ten times "
            "as many"
        )
    largest = max((_largest(s) for s in strata), key=lambda d: abs(d.sigmas), default=None)
    return LawComparison(
        samples=len(rows),
        reference=None if reference_rows is None else len(reference_rows),
        positions=tuple(tests),
        false_alarm=false_alarm,
        largest=largest,
    )


def _table(samples: Samples, name: str) -> NDArray[np.int64]:
    rows: Any = samples.tolist() if isinstance(samples, Tensor) else samples
    try:
        rows = [list(row) for row in rows]
    except TypeError:
        raise ValueError(
            f"{name}: a row of token ids is needed for each sample, [n, t]; put single tokens into rows of "
            "one"
        ) from None
    if len({len(row) for row in rows}) != 1:
        raise ValueError(
            f"{name}: at least one row is needed, and all rows must have the same length"
        )
    table = np.asarray(rows)
    if table.size and (table.ndim != 2 or table.dtype.kind not in "iu"):
        raise ValueError(f"{name}: token ids must be integers, in rows [n, t]; got {table.dtype}")
    return table.astype(np.int64)


def _require_fitting(
    rows: NDArray[np.int64], reference: NDArray[np.int64] | None, given: int
) -> None:
    """Check that samples and reference have the same width and the same given entries."""
    if given < 0:
        raise ValueError(f"given = {given}: must be at least 0")
    width = rows.shape[1]
    if width <= given or (reference is not None and reference.shape[1] != width):
        reference_width = "" if reference is None else f" and {reference.shape[1]}"
        raise ValueError(
            f"rows of {width}{reference_width} entries, of which {given} are given: no token to test"
        )
    if reference is None:
        return
    # A context that one side lacks has no table: a bias after it would go undetected.
    contexts, reference_contexts = (
        {tuple(row) for row in table[:, :given].tolist()} for table in (rows, reference)
    )
    for name, lacking in (
        ("samples", reference_contexts - contexts),
        ("reference", contexts - reference_contexts),
    ):
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
    rows: NDArray[np.int64], reference: NDArray[np.int64] | None, position: int
) -> Iterator[tuple[tuple[int, ...], Counter[int], Counter[int]]]:
    """Each prefix of the samples, with the counts of the next token in samples and reference."""
    sample_counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    reference_counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for counts, table in ((sample_counts, rows), (reference_counts, reference)):
        for row in () if table is None else table[:, : position + 1].tolist():
            counts[tuple(row[:-1])][row[-1]] += 1
    for prefix in sorted(sample_counts):
        yield prefix, sample_counts[prefix], reference_counts[prefix]


def _enough(probs: NDArray[Any]) -> float:
    """Number of samples that give two cells however tokens are pooled; infinite for a single token."""
    share = float(probs.max() / probs.sum())
    if share <= 0.5:
        # If no token has a cell of its own, a pool exceeds its least size by at most 1 least cell.
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
    """The cell of a stratum that deviates most."""
    i = int(np.abs(stratum.sigmas).argmax())
    return Deviation(
        prefix=stratum.prefix,
        tokens=stratum.cells[i],
        observed=float(stratum.observed[i] / stratum.samples),
        expected=float(stratum.expected[i] / stratum.samples),
        sigmas=float(stratum.sigmas[i]),
    )
