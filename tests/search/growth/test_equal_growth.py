from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.search.growth import EqualGrowth
from treespec.search.latency.latency import LatencyModel


def levels_of(draft, width, depth):
    """A beam: the best `width` of all children of the level above."""
    level, levels = [()], []
    for _ in range(depth):
        candidates = [child for path in level for child in draft.best_children(path, width)]
        level = sorted(candidates, key=lambda p: (-draft.value(p), candidates.index(p)))[:width]
        level.sort(key=candidates.index)
        levels.append(level)
    return levels


@settings(max_examples=30)
@given(st.integers(0, 500), st.integers(1, 4), st.integers(1, 4), st.integers(1, 16))
def test_is_a_beam_and_its_best_nodes(growing, seed, width, depth, size):
    draft = growing.Draft(seed)
    levels = levels_of(draft, width, depth)
    assert set(draft.paths(EqualGrowth(width, depth))) == {p for level in levels for p in level}
    assert draft.passes == [1, *[width] * (depth - 1)]
    pool = [path for level in levels for path in level]
    best = sorted(pool, key=lambda p: (-draft.value(p), len(p), pool.index(p)))[: size - 1]
    assert set(draft.paths(EqualGrowth(width, depth, size))) == set(best)


def test_with_times_the_number_kept_is_the_one_of_most_tokens_per_second(growing):
    sizes = set()
    for seed in range(10):
        draft = growing.Draft(seed)
        pool = draft.paths(EqualGrowth(3, 3))
        ranked = sorted(map(draft.value, pool), reverse=True)
        for slope in (0.0, 0.05, 0.2, 2.0):
            times = growing.Times(1.0, slope, draft=0.1, wide=0.02)
            rates = [
                (1 + sum(ranked[:n])) / (times.verify_s(1 + n) + 0.12 + 2 * 0.16)
                for n in range(len(pool) + 1)
            ]
            found = draft.paths(EqualGrowth(3, 3, latency=times))
            assert len(found) == rates.index(max(rates))
            sizes.add(len(found))
            at_most = draft.paths(EqualGrowth(3, 3, 4, latency=times))
            assert len(at_most) == min(3, len(found))
    assert {0, 9} < sizes


def test_times_of_a_latency_model(growing):
    draft = growing.Draft(1)
    free = LatencyModel.from_tables(verify=0.02, draft=0.001)
    assert len(draft.paths(EqualGrowth(3, 3, latency=free))) == 9
    dear = LatencyModel.from_tables(verify={1: 0.02, 10: 0.2}, draft=0.001)
    assert len(draft.paths(EqualGrowth(3, 3, latency=dear))) < 4
    accept = LatencyModel.from_tables(verify=0.02, draft=0.001, accept={1: 0.0, 10: 0.2})
    assert len(draft.paths(EqualGrowth(3, 3, latency=accept))) < 4
