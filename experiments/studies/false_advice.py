"""Simulated searches where nothing is faster than anything else: how often one is advised all the same.

- `two_equals`: a tree and a chain of the same true speed, and exact times.
- `many_equals`: the best shape of every size exactly as fast as plain decoding, chains at small sizes and
  trees at large ones, and times that were measured in rounds with noise: of many shapes the one is chosen
  whose texts were lucky and whose times came out short.
- `equal_sources`: several drafts of the same true speed, each with coins and a profile of its own.
"""

import json
from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
from rich.progress import track

from treespec.search import LatencyModel, Trace, best_tree, best_tree_among, expected_tokens
from treespec.search.optimum.frontier import optimal_frontier

__all__ = ["equal_sources", "even_times", "independent", "many_equals", "two_equals"]

RATES = (0.65, 0.17, 0.08)
"""Chains are best up to five nodes, trees beyond."""
LARGEST_SIZE = 10
FIRST, LEVEL = 0.05, 0.04
"""Of a step of plain decoding: the first draft pass, and each further one."""
MOST_CHILDREN = 4


def independent(
    rng: np.random.Generator, rates: Sequence[float], texts: int, positions: int, beyond: int
) -> Trace:
    """A trace in which nothing depends on anything."""
    length = positions + beyond
    accepted = np.tile(rates, (texts * length, 1))
    ranks = (rng.random((texts * length, 1)) >= accepted.cumsum(axis=1)).sum(axis=1)
    return Trace(
        offsets=np.arange(texts + 1) * length, tokens=np.zeros_like(ranks), ranks=ranks, probs=accepted,
        accepted=accepted, law="iid", rule="rrs", sampling={}, width=len(rates),
        kept=np.full(texts, positions),
    )  # fmt: skip


def two_equals(searches: int, texts: int = 24, positions: int = 40) -> dict[str, Any]:
    """How often a tree or a chain is advised, where the best tree and the best chain are equally fast.

    Three nodes at most, and independent acceptance: a chain of two keeps 1.96 tokens and two children 1.8,
    so that they are equally fast where the second draft level takes 1.96 / 1.8 - 1 of the rest.
    """
    rng, rates = np.random.default_rng(3), (0.6, 0.2)
    latency = LatencyModel.from_tables(
        verify={1: 0.75, 2: 0.97, 3: 0.97}, first=0.03, draft=1.96 / 1.8 - 1
    )
    told = {"tree": 0, "chain": 0}
    for _ in track(range(searches), description="two equals"):
        trace = independent(rng, rates, texts, positions, 4)
        use = best_tree(trace, latency).advice.use
        if use is not None:
            told[use.kind] += 1
    return {"searches": searches, "told": told, "share": sum(told.values()) / searches}


def even_times() -> dict[int, float]:
    """Seconds of the target's pass, by nodes, that make the best shape of every size as fast as no draft.

    A step of plain decoding takes one second.
    """
    tokens = optimal_frontier(
        list(RATES), LARGEST_SIZE, depth=LARGEST_SIZE - 1
    ).values  # by depth and size
    return {1: 1.0} | {
        size: max(row[size] - FIRST - (deep - 1) * LEVEL for deep, row in enumerate(tokens) if deep)
        for size in range(2, LARGEST_SIZE + 1)
    }


def measured(rng: np.random.Generator, rounds: int, drift: float, noise: float) -> LatencyModel:
    """Times as a profile of such a machine has them.

    Args:
        rng: of the noise.
        rounds: in each of which everything is measured once, plain steps four times.
        drift: of whole rounds, as the deviation of a logarithm.
        noise: of each sample, likewise.
    """
    slow = np.exp(drift * rng.standard_normal(rounds))

    def samples(seconds: float, each: int = 1) -> list[list[float]]:
        noisy = np.exp(noise * rng.standard_normal((rounds, each)))
        return (1e3 * seconds * slow[:, None] * noisy).tolist()

    law = {
        "level_ms": {str(width): samples(LEVEL) for width in range(1, MOST_CHILDREN + 1)},
        "first_ms": samples(FIRST),
        "plain_ms": samples(1.0, 4),
    }
    verify = {str(size): samples(seconds) for size, seconds in even_times().items()}
    batch = {"verify_ms": verify, "laws": {"iid": law}}
    return LatencyModel.from_json(json.dumps({"version": 1, "batches": {"1": batch}}))


def many_equals(
    searches: int,
    *,
    rounds: int = 9,
    drift: float = 0.03,
    noise: float = 0.1,
    texts: int = 24,
    positions: int = 60,
) -> dict[str, Any]:
    """How often anything is advised where the best of every size is as fast as plain decoding.

    Returns:
        What was advised, and by how much the best tree and the best chain looked faster than they are, in
        the mean of the logarithm.
    """
    rng = np.random.default_rng(5)
    told = {"tree": 0, "chain": 0, "plain": 0}
    flattered: dict[str, list[float]] = {"tree": [], "chain": []}
    for _ in track(range(searches), description="many equals"):
        trace = independent(rng, RATES, texts, positions, LARGEST_SIZE)
        times = measured(rng, rounds, drift, noise)
        ranking = best_tree(trace, times, seed=int(rng.integers(2**31)))
        if ranking.advice.use is not None:
            told[ranking.advice.use.kind] += 1
        for row in (ranking.tree, ranking.chain):
            if row is not None:
                flattered[row.kind].append(float(np.log(row.speedup.estimate)))
    setting = {"rounds": rounds, "drift": drift, "noise": noise, "texts": texts}
    return setting | {
        "searches": searches,
        "told": told,
        "share": sum(told.values()) / searches,
        "flattered": {kind: mean(values) for kind, values in flattered.items() if values},
    }


def equal_sources(
    searches: int,
    sources: int,
    *,
    rates: Sequence[float] = RATES,
    branching: int | None = None,
    one_profile: bool = False,
    draws: int = 1000,
) -> dict[str, Any]:
    """How often anything is advised where several drafts are equally fast.

    Args:
        searches: how many.
        sources: that are ranked together.
        rates: of each of them. By those of `RATES` the best of every size is as fast as plain decoding; by
            higher ones it is faster, so that only which source to take is open, if there are chains alone.
        branching: the most children of a node; 1 for chains.
        one_profile: whether all have the same times, instead of a profile each.
        draws: resamples.

    Returns:
        What was advised; the mean error of the speed that was said of the first shape of each kind over
        plain decoding, as a logarithm; and the deviation of that error.
    """
    rng, verify = np.random.default_rng(7), even_times()
    told = {"tree": 0, "chain": 0, "plain": 0}
    off: dict[str, list[float]] = {"tree": [], "chain": []}
    for _ in track(range(searches), description="equal sources"):
        traces = [independent(rng, rates, 24, 60, LARGEST_SIZE) for _ in range(sources)]
        times = [measured(rng, 9, 0.03, 0.1) for _ in range(1 if one_profile else sources)]
        times *= sources // len(times)
        known = {str(i): given for i, given in enumerate(zip(traces, times, strict=True))}
        ranking = best_tree_among(
            known, branching=branching, draws=draws, seed=int(rng.integers(2**31))
        )
        if ranking.advice.use is not None:
            told[ranking.advice.use.kind] += 1
        for row in (ranking.tree, ranking.chain):
            if row is not None:
                seconds = verify[row.size] + FIRST + (row.depth - 1) * LEVEL
                true = expected_tokens(row.shape, list(rates)) / seconds
                off[row.kind].append(float(np.log(row.speedup.estimate / true)))
    return {
        "searches": searches,
        "sources": sources,
        "one profile": one_profile,
        "told": told,
        "share": sum(told.values()) / searches,
        "flattered": {kind: mean(values) for kind, values in off.items() if values},
        "deviation": {kind: float(np.std(values)) for kind, values in off.items() if values},
    }
