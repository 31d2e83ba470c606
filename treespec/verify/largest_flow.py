"""The linear programme of the transport rules, and the repair of its solution in the rows' own numbers."""

from collections.abc import Sequence
from fractions import Fraction

Number = int | float | Fraction
"""A number of a row in plain arithmetic: a float, or a fraction if a rule runs exactly."""

DENOMINATOR = 10**9
"""Largest denominator of fractions that replace a solver's floats; makes small programmes exact."""
SCALE = 1e4
"""Factor on the masses passed to the solver, whose tolerances are absolute."""


def numbers_like(row: Sequence[Number], values: Sequence[float]) -> list[Number]:
    """A solver's floats, as numbers that can be mixed with those of a row without rounding the row's."""
    if any(isinstance(number, Fraction) for number in row):
        return [Fraction(value).limit_denominator(DENOMINATOR) for value in values]
    return [float(value) for value in values]


def largest_flow(
    supply: Sequence[Number], choices: Sequence[Sequence[int]], capacity: Sequence[Number]
) -> list[list[Number]]:
    """A largest flow from sources to sinks, each source restricted to its own choice of sinks.

    maximise sum m  subject to  sum_x m(s, x) <= supply(s),  sum_s m(s, x) <= capacity(x),  m >= 0, solved
    by HiGHS and then repaired: negative masses become 0, and sources and sinks above their bounds are
    scaled down. The constraints therefore hold in the given numbers (for floats, up to the rounding of a
    sum), and the solver's tolerance costs part of the optimum, never losslessness.

    Returns m: for each source, one mass for each of its choices.
    """
    ends = [(source, sink) for source, sinks in enumerate(choices) for sink in sinks]
    values = iter(numbers_like([*supply, *capacity], _solve(supply, ends, capacity)))
    masses = [[max(next(values), 0) for _ in sinks] for sinks in choices]
    for source, limit in enumerate(supply):
        sent = sum(masses[source])
        if sent > limit:
            masses[source] = [mass * limit / sent for mass in masses[source]]
    received: list[Number] = [0] * len(capacity)
    for source, sinks in enumerate(choices):
        for sink, mass in zip(sinks, masses[source], strict=True):
            received[sink] += mass
    for source, sinks in enumerate(choices):
        masses[source] = [
            mass * capacity[sink] / received[sink] if received[sink] > capacity[sink] else mass
            for sink, mass in zip(sinks, masses[source], strict=True)
        ]
    return masses


def _solve(
    supply: Sequence[Number], ends: Sequence[tuple[int, int]], capacity: Sequence[Number]
) -> list[float]:
    """HiGHS's solution, one mass for each pair of a source and a sink."""
    if not ends:
        return []
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    edges = np.arange(len(ends))
    sources, sinks = np.array(ends).T
    rows = np.concatenate([sources, len(supply) + sinks])
    shape = (len(supply) + len(capacity), len(ends))
    limits = np.array([*map(float, supply), *map(float, capacity)])
    solution = linprog(
        -np.ones(len(ends)),
        A_ub=csr_array((np.ones(2 * len(ends)), (rows, np.tile(edges, 2))), shape=shape),
        b_ub=SCALE * limits,
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solution.x is None:
        raise RuntimeError(f"HiGHS found no transport plan: {solution.message}")
    return (solution.x / SCALE).tolist()
