"""Time the search for the best tree: best first and exact programme, compared with plain loops.

    python -m treespec.experiments.research.benchmarks.search_speed [LARGEST]

Times are seconds of one core (process time), so a busy machine changes them little; ratios come from one
run. Goals: at 128 nodes, 9 edges and 32 branches, best first is at least 200 times and the exact programme
at least 25 times as fast as the recursion in plain loops; the exact programme takes at most 2 s and 1 GiB
at 1024 nodes, 19 edges and 32 branches; best first takes at most 3 s for 1,000,000 nodes. LARGEST (8192 by
default) bounds the exact programme.
"""

import math
import resource
import statistics
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import typer

from treespec import TreeShape
from treespec.experiments.measure.timing import timed
from treespec.experiments.report.table import Table, keyed
from treespec.experiments.research.benchmarks.results_file import print_and_save, print_parts
from treespec.search import expected_tokens, optimal_tree
from treespec.search.value.optimal import Method

BRANCHES = 32
WIDTH = 120
BEST_FIRST = (128, 1_000, 10_000, 100_000, 1_000_000)
EXACT = (128, 256, 512, 1024, 2048, 4096, 8192)

COLUMNS_BESIDE_LOOPS = (
    keyed("rates", "rates", left=True),
    keyed("search", "search", left=True),
    keyed("seconds", "s", ".5f"),
    keyed("times as fast", "times_as_fast", ".0f"),
)
GROWTH_COLUMNS = (
    keyed("nodes", "size", ","),
    keyed("seconds", "s", ".4f"),
    keyed("wall", "wall_s", ".4f"),
    keyed("exponent", "exponent", ".2f"),
    keyed("peak MiB", "peak_mib", ".0f"),
    keyed("depth", "depth"),
)


def rates(monotone: bool) -> list[float]:
    """Acceptance rates: a power law over ranks that sums to 0.97, with estimation noise if not monotone."""
    ranked = np.arange(1, BRANCHES + 1) ** -2.0
    if not monotone:
        ranked = ranked * np.exp(0.3 * np.random.default_rng(0).standard_normal(BRANCHES))
    return (0.97 * ranked / ranked.sum()).tolist()


def loops(acceptance: list[float], size: int, depth: int) -> float:
    """Expected tokens of the best tree, by Sequoia's recursion (arXiv:2402.12374) written as loops."""
    infeasible, ranks = -math.inf, len(acceptance)
    best = [infeasible, 1.0] + [infeasible] * (size - 1)
    for _ in range(depth):
        table = [[infeasible] * (ranks + 1) for _ in range(size + 1)]
        table[1][0] = 1.0
        for n in range(2, size + 1):
            for b in range(1, ranks + 1):
                rate, most = acceptance[b - 1], infeasible
                for y in range(1, n):
                    value = table[y][b - 1] + rate * best[n - y]
                    if value > most:
                        most = value
                table[n][b] = most
        best = [max(row) for row in table]
    return best[size]


def beside_loops() -> dict[str, Any]:
    """Compare all searches at 128 nodes, 9 edges and 32 branches; check that their values agree."""
    size, depth = 128, 9
    figures: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    methods: dict[str, list[Method]] = {
        "monotone": ["best_first", "dynamic_programme"],
        "not monotone": ["dynamic_programme"],
    }
    for kind, searches in methods.items():
        acceptance = rates(kind == "monotone")
        loops_s, _, value = timed(partial(loops, acceptance, size, depth))
        rows.append({"rates": kind, "search": "loops", "s": loops_s, "times_as_fast": 1})
        for method in searches:
            search = partial(optimal_tree, acceptance, size, depth=depth, method=method)
            if not math.isclose(expected_tokens(search(), acceptance), value, rel_tol=1e-9):
                raise AssertionError(f"{method} and the loops find different values")
            seconds = statistics.median(timed(search)[0] for _ in range(21))
            figure = {"loops_s": loops_s, "s": seconds, "times_as_fast": loops_s / seconds}
            figures[f"{kind}, {method}"] = figure
            rows.append({"rates": kind, "search": method, **figure})
    title = f"{size} nodes, {depth} edges, {BRANCHES} branches"
    print_parts(Table(title, COLUMNS_BESIDE_LOOPS, rows), width=WIDTH)
    return figures


def growth(title: str, sizes: Iterable[int], search: Callable[[int], TreeShape]) -> dict[str, Any]:
    """Time, memory and depth of the tree by size, and the exponent of growth between adjacent sizes.

    Memory is the peak of this process so far.
    """
    rows: list[dict[str, Any]] = []
    for size in sizes:
        seconds, wall, shape = timed(partial(search, size))
        rows.append(
            {
                "size": size,
                "s": seconds,
                "wall_s": wall,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "depth": shape.depth,
                "exponent": None,
            }
        )
    for small, large in pairwise(rows):
        large["exponent"] = math.log(large["s"] / small["s"], large["size"] / small["size"])
    print_parts(Table(title, GROWTH_COLUMNS, rows), width=WIDTH)
    return {str(row.pop("size")): row for row in rows}


def main(
    largest: Annotated[int, typer.Argument(help="Maximum nodes for the exact programme.")] = EXACT[
        -1
    ],
) -> None:
    """Measure how fast the best tree is found; print and save it."""
    monotone, noisy = rates(True), rates(False)
    optimal_tree(monotone, 9)
    sizes = [size for size in EXACT if size <= largest]
    exact, deepest = f"exact, not monotone, {BRANCHES} branches", {"19 edges": 19, "6 edges": 6}
    figures = {"beside loops": beside_loops()}
    for name, depth in {**deepest, "any depth": None}.items():
        search = partial(optimal_tree, noisy, depth=depth)
        figures[f"exact, {name}"] = growth(f"{exact}, {name}", sizes, search)
    title = f"best first, monotone, {BRANCHES} branches, any depth"
    figures["best first"] = growth(title, BEST_FIRST, partial(optimal_tree, monotone))
    print_and_save("search_speed", figures, width=WIDTH)


if __name__ == "__main__":
    typer.run(main)
