"""Hits and trials of traces, by definition."""

from collections import Counter

import numpy as np
import pytest

from treespec.search import estimate_acceptance

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")


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
