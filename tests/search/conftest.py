"""References for the searches, and synthetic traces, rates and times that tests share."""

import json
from collections import deque
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from treespec.search import AcceptanceEstimate, LatencyModel, Trace


@cache
def all_trees(size):
    """Every ordered tree with `size` nodes, as parent arrays numbered breadth first."""

    def extend(parents, oldest):
        if len(parents) == size:
            yield tuple(parents)
            return
        for parent in range(oldest, len(parents)):  # breadth first: parents never decrease
            yield from extend([*parents, parent], parent)

    return list(extend([-1], 0))


@cache
def features(size):
    """Parents, ranks and depths of the nodes of all trees, `[trees, size]`."""
    parents = np.array(all_trees(size))
    ranks, depths = np.zeros_like(parents), np.zeros_like(parents)
    for row, tree in enumerate(parents):
        for node in range(1, size):
            ranks[row, node] = (tree[:node] == tree[node]).sum()
            depths[row, node] = depths[row, tree[node]] + 1
    return parents, ranks, depths


def values_of_all(size, table, by_depth):
    """Expected tokens, depth and branching of all trees; rates beyond the table are NaN."""
    parents, ranks, depths = features(size)
    padded = np.full((size, size), np.nan)
    rows = table if by_depth else np.repeat(table, size, axis=0)
    padded[: len(rows), : table.shape[1]] = rows[:size, :size]
    product = np.ones(parents.shape)
    for node in range(1, size):
        above = product[np.arange(len(parents)), parents[:, node]]
        product[:, node] = above * padded[depths[:, node] - 1, ranks[:, node]]
    return product.sum(axis=1), depths.max(axis=1), ranks.max(axis=1) + (size > 1)


def plain_loops(table, by_depth, size, depth, number=float):
    """Value and parents by the recursion, in the arithmetic of `number`; None if infeasible."""
    branching = table.shape[1]
    rates = [[number(float(rate)) for rate in row] for row in table]
    best, counts, splits = {}, {}, {}
    for edges in range(depth + 1):  # by what a subtree may be deep
        row = rates[depth - edges if by_depth and edges else 0]
        value = {(1, 0): number(1)}
        for n in range(2, size + 1):
            for b in range(1, min(branching, n - 1) + 1):
                for y in range(1, n):
                    if (y, b - 1) in value and (edges - 1, n - y) in best:
                        found = value[y, b - 1] + row[b - 1] * best[edges - 1, n - y]
                        if (n, b) not in value or found > value[n, b]:
                            value[n, b], splits[edges, n, b] = found, y
        for n in range(1, size + 1):
            for b in range(branching + 1):
                if (n, b) in value and ((edges, n) not in best or value[n, b] > best[edges, n]):
                    best[edges, n], counts[edges, n] = value[n, b], b
    if (depth, size) not in best:
        return None
    parents, queue, node = [-1], deque([(depth, size)]), 0
    while queue:
        edges, n = queue.popleft()
        parts = []
        for b in range(counts[edges, n], 0, -1):
            y = splits[edges, n, b]
            parts.append(n - y)
            n = y
        parents += [node] * len(parts)
        queue.extend((edges - 1, part) for part in reversed(parts))
        node += 1
    return best[depth, size], tuple(parents)


def random_table(rng, *, by_depth, monotone, levels=8, zeros=False, ties=False):
    """Rates of siblings that sum to at most 1, in every kind of table that the searches distinguish."""
    ranks = int(rng.integers(1, 7))
    table = rng.dirichlet(np.full(ranks + 1, 0.7), levels if by_depth else 1)[:, :-1]
    if ties:
        table = np.floor(table * 8) / 8
    if zeros:
        table[rng.random(table.shape) < 0.3] = 0.0
    if monotone:
        table = -np.sort(-table, axis=1)
    return np.ascontiguousarray(table)


@pytest.fixture(scope="session")
def oracle():
    return SimpleNamespace(
        all_trees=all_trees,
        values_of_all=values_of_all,
        plain_loops=plain_loops,
        random_table=random_table,
    )


def synthetic_trace(
    seed=0, *, texts=3, positions=40, beyond=8, rates=(0.5, 0.2, 0.1), spread=0.4, **more
):
    """A synthetic trace: texts of up to `positions`, with independent acceptance."""
    rng = np.random.default_rng(seed)
    kept = rng.integers(1, positions + 1, texts)
    kept[0] = positions
    offsets = np.concatenate([[0], np.cumsum(kept + beyond)])
    total = int(offsets[-1])
    accepted = np.array(rates) * rng.uniform(1 - spread / 2, 1 + spread / 2, (total, 1))
    accepted /= np.maximum(accepted.sum(axis=1, keepdims=True), 1)
    ranks = (rng.random((total, 1)) >= accepted.cumsum(axis=1)).sum(axis=1)
    given = {
        "offsets": offsets, "tokens": rng.integers(0, 50, total), "ranks": ranks,
        "probs": np.clip(accepted * 1.2, 0, 1), "accepted": accepted, "law": "iid", "rule": "rrs",
        "sampling": {"temperature": 1.0}, "width": len(rates), "about": {"seed": seed}, "kept": kept,
    }  # fmt: skip
    return Trace(**(given | more))


def drawn_trace(rng, accepted, texts, positions, sampling):
    """Texts of equally many positions whose children are accepted with these probabilities."""
    ranks = (rng.random((len(accepted), 1)) >= accepted.cumsum(axis=1)).sum(axis=1)
    return Trace(
        offsets=np.arange(texts + 1) * (len(accepted) // texts),
        tokens=rng.integers(0, 50, len(accepted)), ranks=ranks, probs=accepted, accepted=accepted,
        law="iid", rule="rrs", sampling=sampling, width=accepted.shape[1], kept=np.full(texts, positions),
    )  # fmt: skip


def trace_of_stretches(rng, texts, positions, stay=0.9, beyond=16):
    """Easy and hard stretches, as in real texts; each ends at a position with probability `1 - stay`."""
    change = rng.random((texts, positions + beyond)) >= stay
    change[:, 0] = rng.random(texts) < 0.5
    hard = change.cumsum(axis=1) % 2 == 1
    accepted = np.where(hard[..., None], (0.15, 0.12, 0.1), (0.97, 0.01, 0.005)).reshape(-1, 3)
    return drawn_trace(rng, accepted, texts, positions, {"temperature": 1.0})


def trace_of_rates(rng, rates, texts, positions, beyond):
    """A trace in which acceptance at every position is independent of everything else."""
    accepted = np.tile(np.asarray(rates), (texts * (positions + beyond), 1))
    return drawn_trace(rng, accepted, texts, positions, {})


@pytest.fixture(scope="session")
def stretches():
    return trace_of_stretches


@pytest.fixture(scope="session")
def independent():
    return trace_of_rates


@pytest.fixture(scope="session")
def make_trace():
    return synthetic_trace


class Measured:
    """An estimate as `best_tree` takes it: binomial counts."""

    def __init__(self, rates, trials=400, law="any", warnings=()):
        self.rates, self.trials, self.law, self.warnings = np.array(rates), trials, law, warnings

    def __array__(self, dtype=None, copy=None):
        return self.rates.astype(dtype or float)

    def resample(self, rng):
        rates = np.atleast_2d(self.rates)
        drawn = [rng.multinomial(self.trials, [*row, 1 - row.sum()])[:-1] for row in rates]
        return np.reshape(drawn, self.rates.shape) / self.trials


@pytest.fixture(scope="session")
def measured():
    return Measured


@pytest.fixture(scope="session")
def flat():
    """Times with which trees pay: a pass over 64 nodes takes a third longer than one over one."""
    return LatencyModel.from_tables(verify={1: 0.020, 64: 0.026}, draft=0.0005)


def times_of_two_laws(sampling="T=1"):
    """Cheap independent draws and expensive draws without replacement, in one file."""
    own = {"level_ms": 0.5, "accept_ms": 0.1, "sampling": "T=1"}
    laws = {"iid": own, "without_replacement": own | {"draw_ms": 0.2, "sampling": sampling}}
    batch = {"verify_ms": {"1": 20, "32": 26}, "laws": laws}
    return LatencyModel.from_json(json.dumps({"version": 1, "batches": {"1": batch}}))


@pytest.fixture(scope="session")
def two_laws():
    return times_of_two_laws


def estimate_of_counts(hits, trials, mass=None, **more):
    """An estimate with these counts, `[texts][levels][ranks]`, and its settings."""
    data = {
        "kind": "acceptance", "version": 1, "by": "rank" if len(hits[0]) == 1 else "depth", "law": "iid",
        "rule": "rrs", "source": "on-policy", "interval": "wilson", "level": 0.95, "monotone": False,
        "shrinkage": 0.0, "seed": 0, "warnings": [],
        "texts": {"hits": hits, "trials": trials, "mass": mass or hits},
    }  # fmt: skip
    return AcceptanceEstimate.from_json(json.dumps(data | more))


@pytest.fixture(scope="session")
def counted():
    return estimate_of_counts


@pytest.fixture(scope="session")
def two_rows():
    """An estimate of two ranks from two texts of 100 positions."""
    hits = [[[60, 20]], [[50, 25]]]
    return lambda **more: estimate_of_counts(hits, [[[100, 100]]] * 2, **more)
