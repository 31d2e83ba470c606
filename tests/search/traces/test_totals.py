"""Totals of many trees, compared with the replay of each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.search import InvalidTrace
from treespec.search.traces.replay import replay
from treespec.search.traces.totals import TextTotals

TREES = st.lists(st.lists(st.integers(0, 10**6), max_size=9), min_size=1, max_size=4)


def shape_of(numbers):
    return TreeShape((-1, *(x % (i + 1) for i, x in enumerate(numbers))))


@given(st.integers(0, 10**6), TREES)
def test_equals_the_replay_of_each(make_trace, seed, trees):
    shapes = [shape_of(numbers) for numbers in trees]
    trace = make_trace(seed, beyond=9, positions=20, rates=[0.3] + 9 * [0.07])
    emitted, steps = TextTotals(trace).of(shapes)
    for i, shape in enumerate(shapes):
        found = replay(trace, shape)
        assert emitted[i].tolist() == found.emitted.tolist()
        assert steps[i].tolist() == found.steps.tolist()


def test_many_texts_are_replayed_in_parts(make_trace, monkeypatch):
    trace, shapes = make_trace(texts=7), [TreeShape.chain(deep) for deep in range(6)]
    whole = TextTotals(trace).of(shapes)
    monkeypatch.setattr("treespec.search.traces.totals.MOST_WALKS", 15)
    parts = TextTotals(trace).of(shapes)
    assert all((a == b).all() for a, b in zip(whole, parts, strict=True))


def test_what_a_trace_does_not_hold_is_refused(make_trace):
    with pytest.raises(InvalidTrace, match="with 4 children, but the trace holds 3"):
        TextTotals(make_trace()).of([TreeShape.expansion([4])])
    with pytest.raises(InvalidTrace, match="has 9 positions, but a tree of depth 60"):
        TextTotals(make_trace(kept=[1, 1, 1], offsets=[0, 9, 18, 27], tokens=[0] * 27, ranks=[0] * 27,
                              probs=np.ones((27, 3)) / 3, accepted=np.ones((27, 3)) / 3)).of(
            [TreeShape.chain(60)]
        )  # fmt: skip
