"""Tables of counts for `compare_laws`: cells, statistic, redraws under equality, and power.

A p-value is (1 + number of redraws at least as large) / (1 + number of redraws). Redrawing stops once 100
redraws were as large (J. Besag, P. Clifford, Sequential Monte Carlo p-values, Biometrika 78, 1991). The
p-value is exact for any table: under equality it is at most a with a probability of at most a.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_EXPECTED = 5
"""Least number of expected samples per cell."""

LEAST_SHARE = 1 / 100
"""Least share of a token with a cell of its own: more cells reduce the power, since the noise of the
statistic grows with the root of their number."""

POOLED_IN_CELLS = 4
"""Least size of a pooled cell, in multiples of the least size of a token's own cell."""

POWER = 0.9
ENOUGH_EXCEEDANCES, BATCH, EXCEEDANCES_AT_LEVEL = 100, 512, 5
"""Redrawing stops after ENOUGH_EXCEEDANCES exceedances, or after EXCEEDANCES_AT_LEVEL / level redraws:
then the verdict is certain enough."""

_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class Stratum:
    """The table of one context: observed counts of each cell, and expected counts under equality.

    Args:
        prefix: the context.
        cells: the tokens of each cell.
        observed: `[cells]` counts of the samples.
        expected: `[cells]` expected counts of the samples, by the exact law or by the pooled counts.
        pooled: `[cells]` counts of samples and reference together; None against an exact law.
    """

    prefix: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...]
    observed: NDArray[np.int64]
    expected: NDArray[np.float64]
    pooled: NDArray[np.int64] | None

    @property
    def samples(self) -> int:
        """Number of samples in the table."""
        return int(self.observed.sum())

    @property
    def spread(self) -> float:
        """Variance of a cell's count relative to an exact law's: m / (n + m) for m reference samples."""
        return 1.0 if self.pooled is None else 1 - self.samples / int(self.pooled.sum())

    @property
    def effective(self) -> float:
        """Number of samples that would have the same power against an exact law."""
        return self.samples * self.spread

    @property
    def statistic(self) -> float:
        """Pearson's chi-square; infinite if a token of probability 0 was observed."""
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
        """The statistics of `draws` tables of as many samples, drawn under equality."""
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
    """The table of samples against a known law `[V]`; None if there are fewer than two cells.

    Tokens of probability 0 that were observed form a cell of their own, which refutes equality.
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
    """The table of two samples; None if there are fewer than two cells. Both samples define the cells."""
    pooled = counts + others
    order = sorted(pooled, key=lambda token: (-pooled[token], token))
    token_counts, total = np.array([pooled[token] for token in order]), sum(counts.values())
    fewer = min(total, sum(others.values()))
    cells = _cells(order, token_counts * (fewer / token_counts.sum()), fewer)
    if len(cells) < 2:
        return None
    cell_counts = np.array([sum(pooled[token] for token in cell) for cell in cells])
    observed = np.array([sum(counts[token] for token in cell) for cell in cells])
    expected = cell_counts * (total / cell_counts.sum())
    return Stratum(prefix, tuple(cells), observed, expected, cell_counts)


def monte_carlo_p_value(strata: Sequence[Stratum], level: float, rng: np.random.Generator) -> float:
    """Probability, under equality, that the sum of statistics is at least the observed one.

    `strata`: the tables; redraws have the same sizes. `level`: level of the test; p-values far below it are
    not resolved.
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
    """Total variation d between the cells that is detected with a probability of at least 90 %.

    For every way to move a mass d, the chi-square divergence is at least 4 d^2 (Cauchy-Schwarz), so the
    noncentrality is at least 4 d^2 n, and more for most biases.

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
    """Check that the law has an entry for each token; a negative id would index from the end."""
    for token in counts:
        if not 0 <= token < len(law):
            raise ValueError(
                f"token {token} occurs after {list(prefix)}, where the exact law is a row of {len(law)} "
                "entries"
            )


def _cells(
    tokens: Sequence[int], expected: NDArray[np.float64], samples: int
) -> list[tuple[int, ...]]:
    """Group tokens, ordered by probability, into cells: large ones alone, the others pooled."""
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
