"""The ranking compared with all trees; its rows, prefixes and batches; refusals."""

import json
from functools import cache

import numpy as np
import pytest

from treespec.search import (
    InvalidAcceptance,
    InvalidLatency,
    InvalidLimit,
    LatencyModel,
    NotMeasured,
    best_tree,
    expected_tokens,
)
from treespec.search.latency.step_parts import seconds_of
from treespec.testing import plane_trees

LARGEST = 7
GAP = 0.025
"""Loss of the frontier at seven nodes if wide levels cost more than narrow ones."""


def random_case(rng, spread):
    """Rates of seven ranks, and times; `spread` is how much more wide levels cost."""
    rates = rng.dirichlet(np.full(LARGEST + 1, 0.7))[:-1]
    if rng.random() < 0.5:
        rates = -np.sort(-rates)
    if rng.random() < 0.2:
        rates[1:] *= 0.02
    if rng.random() < 0.3:
        rates = np.stack([rates, rates[::-1], *[0.5 * rates] * 4])
    counts = range(1, LARGEST + 1)
    verify = dict(zip(counts, 1 + np.cumsum(rng.exponential(0.05, LARGEST)), strict=True))
    level, draft = rng.choice([0.02, 0.1, 0.3]), None
    if spread:
        growth = 1 + np.cumsum(rng.exponential(spread, LARGEST))
        draft = dict(zip(counts, level * growth, strict=True))
    return rates, LatencyModel.from_tables(
        verify=verify, draft=draft or level, accept={1: 0.01, LARGEST: 0.05}
    )


@cache
def all_trees():
    return [shape for size in range(2, LARGEST + 1) for shape in plane_trees(size)]


def fastest_of_all(rates, latency):
    """Tokens per second of the fastest of all trees, including chains and plain decoding."""
    trees = [shape for shape in all_trees() if rates.ndim == 1 or shape.depth <= len(rates)]
    seconds = seconds_of(latency.at().tree(trees))
    tokens = [expected_tokens(shape, rates) for shape in trees]
    return max(np.max(tokens / seconds), 1 / latency.plain_s())


def test_where_times_depend_on_size_and_depth_the_first_is_the_fastest_of_all_trees():
    rng, kinds = np.random.default_rng(1), set()
    for _ in range(40):
        rates, latency = random_case(rng, 0.0)
        best = best_tree(rates, latency, max_size=LARGEST, draws=40).best
        assert best.tokens_per_s.estimate == pytest.approx(fastest_of_all(rates, latency))
        kinds.add(best.kind)
    assert kinds == {"tree", "chain", "plain"}


def test_where_wide_levels_cost_more_little_is_lost():
    rng, gaps = np.random.default_rng(2), []
    for i in range(30):
        rates, latency = random_case(rng, (0.05, 0.2, 1.0)[i % 3])
        best = best_tree(rates, latency, max_size=LARGEST, draws=40).best
        gaps.append(1 - best.tokens_per_s.estimate / fastest_of_all(rates, latency))
    assert min(gaps) > -1e-9
    assert max(gaps) < GAP


def test_rows_say_what_they_predict(flat):
    rates = [0.6, 0.2, 0.1]
    ranking = best_tree(rates, flat)
    speeds = [row.tokens_per_s.estimate for row in ranking.rows]
    assert speeds == sorted(speeds, reverse=True)
    assert len({row.shape for row in ranking.rows}) == len(ranking.rows)
    for row in ranking.rows:
        assert row.tokens_per_step.estimate == pytest.approx(expected_tokens(row.shape, rates))
        assert row.step_s.estimate == pytest.approx(flat.step_s(row.shape))
        assert row.tokens_per_s.estimate == pytest.approx(
            expected_tokens(row.shape, rates) / flat.step_s(row.shape)
        )
        assert row.speedup.estimate == pytest.approx(row.tokens_per_s.estimate * 0.020)
        assert row.speedup.low == pytest.approx(row.speedup.high)  # nothing was measured twice
    assert {row.size for row in ranking.rows if row.kind == "chain"} == set(range(2, 65))
    assert ranking.plain.shape.size == 1
    assert f"the fastest is the tree of {ranking.best.size} nodes" in ranking.verdict
    assert ranking.verdict in str(ranking)
    data = json.loads(ranking.to_json())
    assert data["rows"][0]["parents"] == list(ranking.best.shape.parents)
    assert data["rows"][0]["step_ms"]["estimate"] == pytest.approx(
        1e3 * ranking.best.step_s.estimate
    )


def test_a_chain_or_plain_decoding_can_be_the_answer():
    steep = LatencyModel.from_tables(verify={1: 0.020, 8: 0.055}, draft=0.001)
    chain = best_tree([0.9, 0.01], steep)
    assert chain.best.kind == "chain"
    assert chain.best is chain.chain
    assert "the fastest is the chain of" in chain.verdict
    plain = best_tree([0.1], LatencyModel.from_tables(verify=0.02, draft=0.01), max_size=8)
    assert plain.best is plain.plain
    assert "plain decoding is the fastest" in plain.verdict
    assert plain.tree is None


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_size": 65}, NotMeasured, "up to 64 nodes"),
        ({"sizes": [8, 80]}, NotMeasured, "size 80"),
        ({"batch": 4}, NotMeasured, "batch = 4"),
        ({"level": 1.0}, InvalidLimit, "level = 1.0"),
    ],
)
def test_wrong_limits(flat, options, error, words):
    with pytest.raises(error, match=words):
        best_tree([0.6, 0.2], flat, **options)


def test_wrong_acceptance(flat):
    for rates in ([], [1.2], [float("nan")], [0.7, 0.6], {}):
        with pytest.raises(InvalidAcceptance):
            best_tree(rates, flat)
    with pytest.raises(InvalidLimit, match="no largest tree"):
        best_tree([0.6], LatencyModel.from_tables(verify=0.02, draft=0.01))


def test_steps_that_take_no_time_are_refused():
    nothing = LatencyModel.from_tables(verify=0, draft=0)
    with pytest.raises(InvalidLatency, match="takes no time"):
        best_tree([0.6], nothing, max_size=4)
    with pytest.raises(InvalidLatency, match="takes no time"):
        best_tree([0.6, 0.2], nothing, max_size=4)
    now_and_then = LatencyModel.from_tables(verify=[0.0, 0.0, 0.02, 0.02, 0.02], draft=0)
    with pytest.raises(InvalidLatency, match="takes no time"):
        best_tree([0.6], now_and_then, max_size=4)


def test_whole_numbers_of_numpy_are_numbers():
    one, two = np.int64(1), np.int64(2)
    latency = LatencyModel.from_tables(
        verify={64: {one: 0.02, np.int64(9): 0.025}}, draft={one: 1e-3, two: 2e-3}
    )
    ranking = best_tree(
        [0.6, 0.2], latency, sizes=np.arange(2, 6), depth=two, branching=two, batch=one,
        prefix=np.int64(64), draws=np.int64(50), seed=one,
    )  # fmt: skip
    assert json.loads(ranking.to_json())["prefix"] == 64
