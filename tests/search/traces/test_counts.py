"""Hits and trials of traces, by definition, and of recorded steps; inputs that cannot be counted."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from treespec import TreeShape
from treespec.search import InvalidTrace, Records, estimate_acceptance

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")
CHAIN = TreeShape.chain(1)


def by_hand(trace, levels, ranks):
    """Hits, trials and mass by definition: a walk from every start."""
    cells = [Counter(), Counter(), Counter()]
    for text in range(trace.texts):
        first = trace.offsets[text]
        last = first + trace.kept[text]
        for start in range(first, last):
            for depth in range(levels):
                at = start + depth
                if at >= last:
                    break
                for rank in range(ranks):
                    cells[0][depth, rank] += trace.ranks[at] == rank
                    cells[1][depth, rank] += 1
                    cells[2][depth, rank] += trace.accepted[at, rank]
                if trace.ranks[at] >= ranks:
                    break
    table = [[[c[d, r] for r in range(ranks)] for d in range(levels)] for c in cells]
    return [np.array(x) for x in table]


@pytest.mark.parametrize(("ranks", "beyond"), [(1, 8), (2, 8), (3, 8), (3, 0)])
def test_counts_of_a_trace_equal_the_definition(make_trace, ranks, beyond):
    trace = make_trace(texts=5, beyond=beyond)
    found = estimate_acceptance(trace, by="depth", depth=3, ranks=ranks)
    hits, trials, mass = by_hand(trace, 3, ranks)
    np.testing.assert_array_equal(found.hits, hits)
    np.testing.assert_array_equal(found.trials, trials)
    np.testing.assert_allclose(found.rates, mass / trials)
    pooled = estimate_acceptance(trace, ranks=ranks)
    np.testing.assert_array_equal(pooled.hits, hits[0])  # every kept position is a start once
    np.testing.assert_array_equal(pooled.trials, trace.kept.sum())
    np.testing.assert_allclose(pooled.rates, trace.accepted[trace.inside, :ranks].mean(axis=0))


def test_records_count_what_was_there_to_be_accepted():
    tree = TreeShape.expansion([3, 2])  # nodes 1..3, then 4..9, two below each
    texts = [[(tree, (0, 1, 5)), (tree, (0,))], [(tree, (0, 3)), (TreeShape.chain(1), (0, 1))]]
    found = estimate_acceptance(Records(texts, "iid", "rrs"), by="depth")
    assert found.hits.tolist() == [[2, 0, 1], [0, 1, 0]]
    assert found.trials.tolist() == [[4, 3, 3], [2, 2, 0]]
    np.testing.assert_allclose(found.rates, [[1 / 2, 0, 1 / 3], [0, 1 / 2, 0]])
    assert (found.low[1, 2], found.high[1, 2]) == (0, 1)
    assert any("no trial of child 3 at depth 2" in text for text in found.warnings)
    assert (found.law, found.rule, found.source) == ("iid", "rrs", "on-policy")
    pooled = estimate_acceptance(texts)
    assert pooled.hits.tolist() == [2, 1, 1]
    assert pooled.trials.tolist() == [6, 5, 3]
    assert found.counts.hits.sum(axis=(1, 2)).tolist() == [2, 2]


def test_steps_of_known_rates_give_them_back():
    """Narrow nodes are common, wide ones rare: ranks are not diluted by nodes that lack them."""
    rng, rates, texts = np.random.default_rng(1), [0.5, 0.2, 0.15], []
    trees = [TreeShape.kary(1, 2), TreeShape.kary(1, 2), TreeShape.kary(3, 2)]
    for _ in range(30):
        steps = []
        for _ in range(60):
            shape, path = trees[rng.integers(3)], [0]
            while children := shape.children[path[-1]]:
                rank = rng.choice(4, p=[*rates, 0.15])
                if rank >= len(children):
                    break
                path.append(children[rank])
            steps.append((shape, tuple(path)))
        texts.append(steps)
    found = estimate_acceptance(texts)
    assert (np.abs(found.rates - rates) < 4 * np.sqrt(0.25 / found.trials)).all()
    assert (found.low <= rates).all()
    assert (found.high >= rates).all()


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "nothing to count"),
        ([[]], "nothing to count"),
        ([[(TreeShape.chain(0), (0,))]], "nothing to count"),
        ([[(CHAIN, (0, 2))]], r"texts\[0\]\[0\]: \[0, 2\] is not a path"),
        ([[(CHAIN, (0,)), (CHAIN, (1,))]], r"texts\[0\]\[1\]: \[1\] is not a path"),
        ([[(CHAIN, ())]], "the path is empty"),
        ([[CHAIN]], r"texts\[0\] is not a list of steps"),
        ([7], r"texts\[0\] is not a list of steps"),
        (7, "int is neither a Trace nor Records"),
        (Path("t.npz"), r"t.npz' is a path.*Trace.load"),
        ("t.npz", r"t.npz' is a path.*Trace.load"),
    ],
)
def test_bad_records_are_refused(texts, words):
    with pytest.raises(InvalidTrace, match=words):
        estimate_acceptance(texts)


def test_records_that_do_not_reach_are_refused():
    steps = [[(TreeShape.kary(2, 2), (0, 1))] * 3]
    for settings, words in (
        ({"by": "depth", "depth": 3}, "depth = 3, but the recorded steps reach 2"),
        ({"ranks": 3}, "ranks = 3, but the recorded steps reach 2"),
    ):
        with pytest.raises(InvalidTrace, match=words):
            estimate_acceptance(steps, **settings)
