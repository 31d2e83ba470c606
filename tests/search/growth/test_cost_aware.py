from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.search.errors import InvalidGrowth, NotMeasured
from treespec.search.growth import CostAware
from treespec.search.latency.latency import LatencyModel


def sizes_of(growing, times, count=6, **settings):
    policy = CostAware(times, **({"size": 16, "depth": 4, "branching": 3} | settings))
    return [growing.Draft(seed).tree(policy).shape for seed in range(count)]


def test_where_verification_and_drafting_are_free_nothing_is_cut(growing):
    for shape in sizes_of(growing, growing.Times(1.0), size=1000, depth=3):
        assert shape == TreeShape.kary(3, 3)
    for shape in sizes_of(growing, growing.Times(1.0)):
        assert shape.size == 16


def test_where_verification_is_very_dear_the_root_stands_alone(growing):
    """Two nodes take twice the time of one, so even a certain child gains nothing."""
    for times in (growing.Times(0.0, 1.0, draft=0.001), growing.Times(1.0, 0.0, draft=10.0)):
        policy = CostAware(times, 16, 4, 3)
        draft = growing.Draft(0)
        assert draft.tree(policy).shape == TreeShape.chain(0)
        assert draft.passes == []


def test_where_one_more_node_is_dear_it_is_a_chain(growing):
    """A certain draft gives a chain to the full depth, a likely one a short chain."""
    sure = growing.Draft(0, row=lambda context: torch.tensor([0, 4.0, 0, 1, 0]).double())
    chain = sure.tree(CostAware(growing.Times(1.0, 0.2, draft=0.01), 16, 4, 3)).shape
    assert chain == TreeShape.chain(4)
    likely = growing.Draft(0, row=lambda context: torch.tensor([0, 1.8, 0, 0, 0]).double())
    short = likely.tree(CostAware(growing.Times(1.0, 0.7, draft=0.01), 16, 4, 3)).shape
    assert short == TreeShape.chain(1)


def test_dearer_draft_passes_make_shallower_trees(growing):
    depths = [
        sum(shape.depth for shape in sizes_of(growing, growing.Times(1.0, 0.02, draft=draft)))
        for draft in (0.0, 0.1, 0.2, 0.5, 2.0)
    ]
    assert depths == sorted(depths, reverse=True)
    assert depths[0] > depths[2] > depths[-1] == 0


def test_runs_no_more_nodes_than_pay(growing):
    """If passes cost time per node, fewer nodes are run; a limit has the same effect."""
    narrow = growing.Draft(1)
    narrow.tree(CostAware(growing.Times(1.0, 0.0, draft=0.01, wide=0.05), 40, 3, 3))
    wide = growing.Draft(1)
    wide.tree(CostAware(growing.Times(1.0, 0.0, draft=0.01), 40, 3, 3))
    assert sum(narrow.passes) < sum(wide.passes) == 1 + 3 + 9
    sure = growing.Draft(0, row=lambda context: torch.tensor([0, 4.0, 0, 1, 0]).double())
    sure.tree(CostAware(growing.Times(1.0, 0.0, draft=0.01), 4, 3, 3))
    assert sure.passes == [1, 1, 1]
    limited = growing.Draft(1)
    limited.tree(CostAware(growing.Times(1.0), 40, 3, 3, width=2))
    assert limited.passes == [1, 2, 2]


def test_looks_past_a_step_of_the_times(growing):
    """The first additional node costs as much as thirty: one level is not worth it, four are."""
    step = LatencyModel.from_tables(verify={1: 1.0, 2: 2.5, 16: 2.5}, draft=0.01)
    sure = growing.Draft(0, row=lambda context: torch.tensor([0, 6.0, 0, 1, 0]).double())
    assert sure.tree(CostAware(step, 16, 4, 2)).shape.depth == 4
    assert sure.tree(CostAware(step, 16, 1, 2)).shape.size == 1
    doubtful = growing.Draft(0, row=lambda context: torch.zeros(5).double())
    assert doubtful.tree(CostAware(step, 16, 4, 2)).shape.size == 1


@st.composite
def drafted(draw):
    """A shape that was drafted level by level with two children a node, and its probabilities."""
    parents, level = [-1], [0]
    for _ in range(draw(st.integers(1, 2))):
        level = [n for n in level if draw(st.booleans())] or level[:1]
        start = len(parents)
        parents += [node for node in level for _ in range(2)]
        level = list(range(start, len(parents)))
    probs = [1.0, *(draw(st.floats(0.01, 0.5)) for _ in parents[1:])]
    return TreeShape(tuple(parents)), torch.tensor(probs, dtype=torch.float64)


@settings(max_examples=60)
@given(drafted(), st.floats(0, 1), st.floats(0, 1), st.sampled_from([None, 0.3, 1.0]))
def test_the_cut_is_the_best_of_all_trees(growing, tree, slope, draft, rate):
    shape, probs = tree
    times = growing.Times(1.0, slope, draft=draft, wide=0.01)
    policy = CostAware(times, 12, 3, 2, rate=rate)
    levels = {d: sum(shape.depths[n] == d for n in shape.internal) for d in range(shape.depth)}
    passes = sum(times.draft_level_s(w) for w in levels.values())
    value = [1.0]
    for node in range(1, shape.size):
        value.append(value[shape.parents[node]] * float(probs[node]))

    def score(nodes):
        tokens, seconds = sum(value[n] for n in nodes), times.verify_s(len(nodes)) + passes
        return tokens / seconds if rate is None else tokens - rate * seconds

    trees = (
        {0, *chosen}
        for n in range(shape.size)
        for chosen in combinations(range(1, shape.size), n)
        if all(shape.parents[node] in (0, *chosen) for node in chosen)
    )
    kept = policy.keep(shape, lambda: probs)
    assert score(kept) == pytest.approx(max(map(score, trees)))
    assert all(shape.parents[node] in kept for node in kept if node)


@settings(max_examples=40)
@given(drafted(), st.floats(0, 1), st.floats(0, 1))
def test_a_dearer_node_never_keeps_more(growing, tree, one, other):
    shape, probs = tree
    kept = [
        len(CostAware(growing.Times(1.0, slope), 12, 3, 2).keep(shape, lambda: probs))
        for slope in sorted((one, other))
    ]
    assert kept[0] >= kept[1]


def test_a_calibration_that_knows_better_stops_sooner(growing):
    times = growing.Times(1.0, 0.05, draft=0.05)
    trusting = sum(s.size for s in sizes_of(growing, times))
    warned = sum(s.size for s in sizes_of(growing, times, calibration=lambda p: 0.3 * p))
    assert 6 <= warned < trusting


def test_a_rate_is_what_a_second_is_worth_elsewhere(growing):
    times = growing.Times(1.0, 0.05, draft=0.05)
    sizes = [
        sum(s.size for s in sizes_of(growing, times, rate=rate)) for rate in (0.01, 0.5, 2.0, 50.0)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] == 6


def test_a_poor_prior_does_not_draft_at_all(growing):
    times = growing.Times(1.0, 0.05, draft=0.1)
    assert all(s.size == 1 for s in sizes_of(growing, times, prior=0.1))
    assert any(s.size > 1 for s in sizes_of(growing, times, prior=0.9))


def test_times_of_a_latency_model(growing):
    """Accepting, committing, the loop, the first pass and further draws are counted, too."""
    free = {"verify": 0.02, "draft": {1: 0.001, 8: 0.001}}
    policy = CostAware(LatencyModel.from_tables(**free), 16, 3, 3)
    assert policy._width == 8
    assert growing.Draft(0).tree(policy).shape.size == 16
    for more in (
        {"accept": {1: 0.0, 16: 0.3}},
        {"commit": {1: 0.0, 16: 0.3}},
        {"rest": {1: 0.0, 16: 0.3}},
        {"first": 0.1},
        {"draw": 0.05},
        {"assemble": 0.1},
        {"assemble": {1: 0.0, 16: 0.3}},
    ):
        dear = CostAware(LatencyModel.from_tables(**free, **more), 16, 3, 3)
        assert growing.Draft(0).tree(dear).shape.size < 10, more
    narrow = LatencyModel.from_tables(**free, draw={1: 0.0, 4: 0.0})
    assert CostAware(narrow, 16, 3, 3)._width == 4


def test_times_that_do_not_reach_are_refused():
    model = LatencyModel.from_tables(verify={1: 0.02, 8: 0.03}, draft=0.001)
    with pytest.raises(NotMeasured, match="9"):
        CostAware(model, 16, 3, 3)
    other = LatencyModel.from_tables(verify=0.02, draft=0.001, law="iid")
    with pytest.raises(NotMeasured, match="law = 'deterministic'"):
        CostAware(other, 16, 3, 3)
    narrow = LatencyModel.from_tables(verify=0.02, draft={1: 0.001, 4: 0.002})
    with pytest.raises(NotMeasured, match="width 5, but times are known"):
        CostAware(narrow, 16, 3, 3, width=8)


def test_times_that_are_none_are_named(growing):
    with pytest.raises(InvalidGrowth, match="a tree of 1 nodes takes no time to verify"):
        CostAware(growing.Times(0.0), 8, 3, 2)
