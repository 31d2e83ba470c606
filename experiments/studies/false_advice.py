"""Simulate searches in which nothing is faster, and count how often a shape is advised all the same.

- `two_equals`: a tree and a chain have the same true speed, and times are exact.
- `many_equals`: the best shape of every size is exactly as fast as plain decoding (chains at small sizes,
  trees at large ones), and times are measured in rounds, with noise. Among many shapes, the search picks
  one with lucky texts and times that came out short.
- `equal_sources`: several drafts have the same true speed, each with coins and a profile of its own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.progress import track

from treespec.search import (
    LatencyModel,
    Ranking,
    Trace,
    best_tree,
    best_tree_among,
    expected_tokens,
)
from treespec.search.choice.ranking import Choice
from treespec.search.optimum.frontier import optimal_frontier

__all__ = ["drawn", "equal_sources", "even_times", "independent", "many_equals", "two_equals"]

RATES = (0.65, 0.17, 0.08)
"""With these rates chains are best up to five nodes, and trees beyond."""
LARGEST_SIZE = 10
FIRST, LEVEL = 0.05, 0.04
"""Costs of the first draft pass and of each further one, as shares of a step of plain decoding."""
MOST_CHILDREN = 4


def drawn(
    rng: np.random.Generator,
    accepted: Float[np.ndarray, "positions ranks"],
    texts: int,
    positions: int,
    sampling: Mapping[str, Any],
) -> Trace:
    """A trace whose accepted ranks are drawn with these rates.

    Args:
        rng: draws the ranks.
        accepted: acceptance rates by rank at every position of all texts, which are equally long.
        texts: number of texts.
        positions: kept positions of each text; the rest of it lies beyond its end.
        sampling: the sampling settings that the trace names.
    """
    length, width = len(accepted) // texts, accepted.shape[1]
    ranks = (rng.random((texts * length, 1)) >= accepted.cumsum(axis=1)).sum(axis=1)
    return Trace(
        offsets=np.arange(texts + 1) * length, tokens=np.zeros_like(ranks), ranks=ranks, probs=accepted,
        accepted=accepted, law="iid", rule="rrs", sampling=sampling, width=width,
        kept=np.full(texts, positions),
    )  # fmt: skip


def independent(
    rng: np.random.Generator, rates: Sequence[float], texts: int, positions: int, beyond: int
) -> Trace:
    """A trace in which acceptance at every position is independent of everything else."""
    return drawn(rng, np.tile(rates, (texts * (positions + beyond), 1)), texts, positions, {})


def _advised(
    searches: int,
    title: str,
    search: Callable[[], Ranking],
    kinds: Sequence[str] = ("tree", "chain", "plain"),
    true_speedup: Callable[[Choice], float] = lambda row: 1.0,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Search many times, and count the advice.

    Args:
        searches: number of searches.
        title: title of the progress bar.
        search: makes up texts and times, and searches.
        kinds: the kinds of shapes that may be advised.
        true_speedup: the true speed of a shape over plain decoding.

    Returns:
        How often each kind was advised (`told`), and the `share` of searches that advised any; and the
        errors of the predicted speed over plain decoding of the first tree and of the first chain, as
        logarithms.
    """
    told = dict.fromkeys(kinds, 0)
    errors: dict[str, list[float]] = {"tree": [], "chain": []}
    for _ in track(range(searches), description=title):
        ranking = search()
        if ranking.advice.use is not None:
            told[ranking.advice.use.kind] += 1
        for row in (ranking.tree, ranking.chain):
            if row is not None:
                errors[row.kind].append(float(np.log(row.speedup.estimate / true_speedup(row))))
    return {"told": told, "share": sum(told.values()) / searches}, errors


def two_equals(searches: int, texts: int = 24, positions: int = 40) -> dict[str, Any]:
    """Count how often a tree or a chain is advised if the best tree and the best chain are equally fast.

    Trees have at most three nodes, and acceptance is independent. A chain of two draft tokens keeps 1.96
    tokens per step, two children keep 1.8: they are equally fast if the second draft level takes 1.96 / 1.8
    - 1 of the rest of the step.
    """
    rng, rates = np.random.default_rng(3), (0.6, 0.2)
    latency = LatencyModel.from_tables(
        verify={1: 0.75, 2: 0.97, 3: 0.97}, first=0.03, draft=1.96 / 1.8 - 1
    )
    counts, _ = _advised(
        searches,
        "two equals",
        lambda: best_tree(independent(rng, rates, texts, positions, 4), latency),
        ("tree", "chain"),
    )
    return {"searches": searches, **counts}


def even_times() -> dict[int, float]:
    """Seconds of a target pass by nodes that make the best shape of every size as fast as plain decoding.

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
    """Times as a profile of the machine of `even_times` would measure them.

    Args:
        rng: draws the noise.
        rounds: number of rounds; each measures everything once, and plain steps four times.
        drift: standard deviation of the logarithm of the slowdown of a whole round.
        noise: standard deviation of the logarithm of each sample.
    """
    slowdown = np.exp(drift * rng.standard_normal(rounds))

    def samples(seconds: float, each: int = 1) -> list[list[float]]:
        noisy = np.exp(noise * rng.standard_normal((rounds, each)))
        return (1e3 * seconds * slowdown[:, None] * noisy).tolist()

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
    """Count how often anything is advised if the best shape of every size is as fast as plain decoding.

    Returns:
        The counts of advice, and `flattered`: how much faster than they are the best tree and the best
        chain looked, as the mean of the logarithm.
    """
    rng = np.random.default_rng(5)
    counts, errors = _advised(
        searches,
        "many equals",
        lambda: best_tree(  # its arguments are drawn in this order
            independent(rng, RATES, texts, positions, LARGEST_SIZE),
            measured(rng, rounds, drift, noise),
            seed=int(rng.integers(2**31)),
        ),
    )
    setting = {"rounds": rounds, "drift": drift, "noise": noise, "texts": texts}
    flattered = {kind: mean(values) for kind, values in errors.items() if values}
    return setting | {"searches": searches, **counts, "flattered": flattered}


def equal_sources(
    searches: int,
    sources: int,
    *,
    rates: Sequence[float] = RATES,
    branching: int | None = None,
    one_profile: bool = False,
    draws: int = 1000,
) -> dict[str, Any]:
    """Count how often anything is advised if several drafts are equally fast.

    Args:
        searches: number of searches.
        sources: number of drafts that are ranked together.
        rates: acceptance rates of every draft. With `RATES` the best shape of every size is as fast as
            plain decoding; with higher rates it is faster, so that with chains alone only the choice of the
            draft is open.
        branching: maximum number of children of a node; 1 for chains.
        one_profile: whether all drafts share one profile instead of having one each.
        draws: number of resamples.

    Returns:
        The counts of advice; `flattered`, the mean error of the predicted speed over plain decoding of the
        first shape of each kind, as a logarithm; and `deviation`, the standard deviation of that error.
    """
    rng, verify = np.random.default_rng(7), even_times()

    def search() -> Ranking:
        traces = [independent(rng, rates, 24, 60, LARGEST_SIZE) for _ in range(sources)]
        times = [measured(rng, 9, 0.03, 0.1) for _ in range(1 if one_profile else sources)]
        times *= sources // len(times)
        drafts = {str(i): draft for i, draft in enumerate(zip(traces, times, strict=True))}
        return best_tree_among(
            drafts, branching=branching, draws=draws, seed=int(rng.integers(2**31))
        )

    def true_speedup(row: Choice) -> float:
        seconds = verify[row.size] + FIRST + (row.depth - 1) * LEVEL
        return expected_tokens(row.shape, list(rates)) / seconds

    counts, errors = _advised(searches, "equal sources", search, true_speedup=true_speedup)
    return {
        "searches": searches,
        "sources": sources,
        "one profile": one_profile,
        **counts,
        "flattered": {kind: mean(values) for kind, values in errors.items() if values},
        "deviation": {kind: float(np.std(values)) for kind, values in errors.items() if values},
    }
