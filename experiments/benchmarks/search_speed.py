"""How fast the best tree is found: best first and the exact programme, beside the recursion as plain loops.

    python -m treespec.experiments.benchmarks.search_speed [LARGEST]

Times are seconds of one core (process time), so that a busy machine changes them little; ratios are of one
run. Goals: at 128 nodes, 9 edges and 32 branches best first at least 200 times and the exact programme at
least 25 times as fast as the loops; the exact programme at 1024 nodes, 19 edges and 32 branches in 2 s and
1 GiB; best first to 1,000,000 nodes in 3 s. LARGEST (8192 by default) bounds the exact programme.
"""

import math
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from treespec import TreeShape
from treespec.experiments.benchmarks.results_file import save
from treespec.search import expected_tokens, optimal_tree
from treespec.search.optimum.optimal import Method

BRANCHES = 32
BEST_FIRST = (128, 1_000, 10_000, 100_000, 1_000_000)
EXACT = (128, 256, 512, 1024, 2048, 4096, 8192)


def rates(monotone: bool) -> list[float]:
    """A power law over ranks that sums to 0.97; not monotone: with the noise of an estimate."""
    ranked = np.arange(1, BRANCHES + 1) ** -2.0
    if not monotone:
        ranked = ranked * np.exp(0.3 * np.random.default_rng(0).standard_normal(BRANCHES))
    return (0.97 * ranked / ranked.sum()).tolist()


def loops(acceptance: list[float], size: int, depth: int) -> float:
    """Expected tokens of the best tree, by Sequoia's recursion (arXiv:2402.12374) as it is written."""
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


def timed(action: Callable[[], Any], repeats: int = 1) -> tuple[float, float, Any]:
    """Median process and wall time of an action in seconds, and its result."""
    process, wall, result = [], [], None
    for _ in range(repeats):
        start = time.process_time(), time.perf_counter()
        result = action()
        process.append(time.process_time() - start[0])
        wall.append(time.perf_counter() - start[1])
    return sorted(process)[repeats // 2], sorted(wall)[repeats // 2], result


def peak() -> float:
    """The most memory that this process has held so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def beside_loops(console: Console) -> dict[str, Any]:
    """The three at 128 nodes, 9 edges deep, 32 branches; values checked against each other."""
    size, depth, found = 128, 9, {}
    table = Table(
        "rates", "search", "seconds", "times as fast", title="128 nodes, 9 edges, 32 branches"
    )
    for kind, monotone in (("monotone", True), ("not monotone", False)):
        given = rates(monotone)
        slow, _, value = timed(partial(loops, given, size, depth))
        table.add_row(kind, "loops", f"{slow:.3f}", "1")
        exact: list[Method] = ["dynamic_programme"]
        methods: list[Method] = ["best_first", *exact] if monotone else exact
        for method in methods:
            seconds, _, shape = timed(
                partial(optimal_tree, given, size, depth=depth, method=method), repeats=21
            )
            if not math.isclose(expected_tokens(shape, given), value, rel_tol=1e-9):
                raise AssertionError(f"{method} gives another value than the loops")
            ratio = slow / seconds
            found[f"{kind}, {method}"] = {"loops_s": slow, "s": seconds, "times_as_fast": ratio}
            table.add_row(kind, method, f"{seconds:.5f}", f"{ratio:.0f}")
    console.print(table)
    return found


def growth(
    console: Console, title: str, sizes: list[int], search: Callable[[int], TreeShape]
) -> dict[str, Any]:
    """Time, memory and depth of the tree by size, and the exponent between neighbouring sizes."""
    table = Table("nodes", "seconds", "wall", "exponent", "peak MiB", "depth", title=title)
    found: dict[str, Any] = {}
    for size in sizes:
        seconds, wall, shape = timed(partial(search, size))
        found[str(size)] = {"s": seconds, "wall_s": wall, "peak_mib": peak(), "depth": shape.depth}
    exponents = [
        math.log(found[str(b)]["s"] / found[str(a)]["s"]) / math.log(b / a)
        for a, b in pairwise(sizes)
    ]
    for size, exponent in zip(sizes, [None, *exponents], strict=True):
        row = found[str(size)]
        row["exponent"] = exponent
        table.add_row(
            f"{size:,}", f"{row['s']:.4f}", f"{row['wall_s']:.4f}",
            "" if exponent is None else f"{exponent:.2f}", f"{row['peak_mib']:.0f}", str(row["depth"]),
        )  # fmt: skip
    console.print(table)
    return found


def main() -> None:
    """Measure, print, save."""
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else EXACT[-1]
    console = Console(width=120)
    monotone, noisy = rates(True), rates(False)
    optimal_tree(monotone, 9)
    sizes = [size for size in EXACT if size <= largest]
    figures = {
        "beside loops": beside_loops(console),
        "exact, 19 edges": growth(
            console, "exact, not monotone, 19 edges, 32 branches", sizes,
            lambda size: optimal_tree(noisy, size, depth=19),
        ),
        "exact, 6 edges": growth(
            console, "exact, not monotone, 6 edges, 32 branches: the depth binds", sizes,
            lambda size: optimal_tree(noisy, size, depth=6),
        ),
        "exact, any depth": growth(
            console, "exact, not monotone, any depth, 32 branches", sizes,
            lambda size: optimal_tree(noisy, size),
        ),
        "best first": growth(
            console, "best first, monotone, any depth, 32 branches", list(BEST_FIRST),
            lambda size: optimal_tree(monotone, size),
        ),
    }  # fmt: skip
    console.print(f"written: {save('search_speed', figures)}")


if __name__ == "__main__":
    main()
