"""Tables of counts for `compare_laws`: cells, statistic, redraws under equality, and power.

A p-value is (1 + redraws at least as large) / (1 + redraws), sequentially: the redraws end when 100 of them
were as large (J. Besag, P. Clifford, Sequential Monte Carlo p-values, Biometrika 78, 1991). It is exact
for any table: under equality it is at most a with a probability of at most a.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LEAST_EXPECTED",
    "POOLED_IN_CELLS",
    "Stratum",
    "against_law",
    "against_samples",
    "detectable_variation",
    "monte_carlo_p_value",
]

LEAST_EXPECTED = 5
"""Samples that a cell must be expected to hold."""

LEAST_SHARE = 1 / 100
"""Share that a token must have for a cell of its own: more cells notice less, since the noise of the
statistic grows with the root of their number."""

POOLED_IN_CELLS = 4
"""A pooled cell holds at least so many times what a cell of its own must hold."""

POWER = 0.9
ENOUGH_EXCEEDANCES, BATCH, EXCEEDANCES_AT_LEVEL = 100, 512, 5
"""Redraws end at so many exceedances, or after EXCEEDANCES_AT_LEVEL / level of them: then the verdict is
certain enough."""

_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Stratum:
    """The table of one context: how often each cell was met, and what equality makes of it.

    Args:
        prefix: the context.
        cells: the tokens of each cell.
        observed: `[cells]` counts of the samples.
        expected: `[cells]` expected counts of the samples, by the law or by the pooled counts.
        pooled: `[cells]` counts of samples and reference together; None against an exact law.
    """

    prefix: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...]
    observed: NDArray[np.int64]
    expected: NDArray[np.float64]
    pooled: NDArray[np.int64] | None

    @property
    def samples(self) -> int:
        """Samples in the table."""
        return int(self.observed.sum())

    @property
    def spread(self) -> float:
        """Variance of a cell's count over that against an exact law: m / (n + m) for m in reference."""
        return 1.0 if self.pooled is None else 1 - self.samples / int(self.pooled.sum())

    @property
    def effective(self) -> float:
        """Samples against an exact law that would notice as much."""
        return self.samples * self.spread

    @property
    def statistic(self) -> float:
        """Pearson's chi-square, infinite if something impossible was observed."""
        return float(self.statistics(self.observed[None])[0])

    @property
    def sigmas(self) -> NDArray[np.float64]:
        """Deviation of each cell in standard deviations."""
        variance = self.expected * (1 - self.expected / self.samples) * self.spread
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num((self.observed - self.expected) / np.sqrt(variance), posinf=np.inf)

    def statistics(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Pearson's chi-square of each row of counts `[draws, cells]`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = (counts - self.expected) ** 2 / (self.expected * self.spread)
        return np.nan_to_num(terms, posinf=np.inf).sum(-1)

    def redraw(self, draws: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """The statistic of as many samples drawn under equality."""
        if self.pooled is None:
            shares = self.expected / self.expected.sum()
            return self.statistics(rng.multinomial(self.samples, shares, size=draws))
        return self.statistics(
            rng.multivariate_hypergeometric(
                self.pooled, self.samples, size=draws, method="marginals"
            )
        )


def against_law(
    prefix: tuple[int, ...], counts: Counter[int], law: NDArray[np.float64]
) -> Stratum | None:
    """The table against a known law `[V]`; None if there are no two cells.

    Tokens of probability 0 have a cell of their own once one of them is observed: then equality is
    refuted, whatever else.

    Raises:
        ValueError: if a token that occurs has no entry in the law.
    """
    _require_entries(prefix, counts, law)
    total = sum(counts.values())
    expected = law / law.sum() * total
    order = np.argsort(-expected, kind="stable")
    possible = [int(token) for token in order if expected[token] > 0]
    cells = _cells(possible, expected[possible], total)
    impossible = tuple(token for token in counts if not expected[token] > 0)
    if impossible:
        cells.append(impossible)
    if len(cells) < 2:
        return None
    observed = np.array([sum(counts[token] for token in cell) for cell in cells])
    return Stratum(
        prefix,
        tuple(cells),
        observed,
        np.array([expected[list(cell)].sum() for cell in cells]),
        None,
    )


def against_samples(
    prefix: tuple[int, ...], counts: Counter[int], others: Counter[int]
) -> Stratum | None:
    """The table of two samples; None if there are no two cells. Cells are made of both together."""
    pooled = counts + others
    order = sorted(pooled, key=lambda token: (-pooled[token], token))
    together, total = np.array([pooled[token] for token in order]), sum(counts.values())
    fewer = min(total, sum(others.values()))
    cells = _cells(order, together * (fewer / together.sum()), fewer)
    if len(cells) < 2:
        return None
    sums = np.array([sum(pooled[token] for token in cell) for cell in cells])
    observed = np.array([sum(counts[token] for token in cell) for cell in cells])
    return Stratum(prefix, tuple(cells), observed, sums * (total / sums.sum()), sums)


def monte_carlo_p_value(strata: Sequence[Stratum], level: float, rng: np.random.Generator) -> float:
    """Probability, under equality, of a sum of statistics as large as the observed one.

    Args:
        strata: the tables; their sizes are kept.
        level: at which it will be compared; p-values far below it are not resolved.
        rng: of the redraws.
    """
    limit = sum(s.statistic for s in strata) * (1 - _SLACK) - _SLACK
    if limit == np.inf:
        return 0.0
    most = int(np.ceil(max(EXCEEDANCES_AT_LEVEL / level, 10 * ENOUGH_EXCEEDANCES)))
    exceeded = drawn = 0
    while drawn < most:
        draws = np.sum([s.redraw(BATCH, rng) for s in strata], axis=0)[: most - drawn]
        running = exceeded + np.cumsum(draws >= limit)
        if running[-1] >= ENOUGH_EXCEEDANCES:
            return ENOUGH_EXCEEDANCES / (
                drawn + int(np.searchsorted(running, ENOUGH_EXCEEDANCES)) + 1
            )
        exceeded, drawn = int(running[-1]), drawn + len(draws)
    return (exceeded + 1) / (drawn + 1)


def detectable_variation(degrees: int, effective: float, level: float) -> float:
    """Total variation d between the cells that is noticed with a probability of 90 %, at least.

    Of all ways to move a mass d the chi-square divergence is at least 4 d^2 (Cauchy-Schwarz), so the
    noncentrality is at least 4 d^2 n, and more for most biases.

    Args:
        degrees: of freedom.
        effective: n.
        level: of the test.

    Example:
        >>> round(detectable_variation(40, 10_000.0, 1e-3), 3)
        0.037
    """
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    limit = chi2.isf(level, degrees)

    def missing(noncentrality: float) -> float:
        return float(ncx2.sf(limit, degrees, noncentrality)) - POWER

    noncentrality = float(brentq(missing, 1e-9, 10 * limit + 100))  # pyrefly: ignore[bad-argument-type]
    return min(1.0, (noncentrality / (4 * effective)) ** 0.5)


def _require_entries(
    prefix: tuple[int, ...], counts: Counter[int], law: NDArray[np.float64]
) -> None:
    """A negative id would be read from the end of the row."""
    for token in counts:
        if not 0 <= token < len(law):
            raise ValueError(
                f"token {token} occurs after {list(prefix)}, where the exact law is a row of {len(law)} "
                "entries"
            )


def _cells(
    tokens: Sequence[int], expected: NDArray[np.float64], samples: int
) -> list[tuple[int, ...]]:
    """Tokens in the order of their probabilities made into cells: large ones alone, others pooled."""
    least = max(LEAST_EXPECTED, LEAST_SHARE * samples)
    cells: list[tuple[int, ...]] = [
        (token,) for token, e in zip(tokens, expected, strict=True) if e >= least
    ]
    pool: list[int] = []
    held = 0.0
    for token, e in zip(tokens[len(cells) :], expected[len(cells) :], strict=True):
        pool.append(token)
        held += float(e)
        if held >= POOLED_IN_CELLS * least:
            cells.append(tuple(pool))
            pool, held = [], 0.0
    if pool and (held >= LEAST_EXPECTED or not cells):
        cells.append(tuple(pool))
    elif pool:
        cells[-1] += tuple(pool)
    return cells
