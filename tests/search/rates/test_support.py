"""Whether a sample supports the requested rates: warnings about small samples, refused settings."""

import warnings

import pytest

from treespec import TreeShape
from treespec.search import InvalidLimit, InvalidTrace, SmallSample, estimate_acceptance

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")


def test_a_sample_too_small_for_a_tree_is_warned_of_with_numbers(make_trace):
    trace, tree = make_trace(texts=2, positions=40, rates=(0.5, 0.2, 0.1)), TreeShape.kary(2, 4)
    with pytest.warns(
        SmallSample, match=r"fewer than 30 trials of child 1 at depth \d \(\d+\)"
    ) as caught:
        found = estimate_acceptance(trace, by="depth", tree=tree)
    assert found.rates.shape == (4, 2)
    assert {str(w.message) for w in caught} == set(found.warnings)
    with pytest.warns(
        SmallSample, match=r"intervals of up to 0\.\d\d to each side .* child 1 \(\d+\)"
    ):
        estimate_acceptance(trace, tree=TreeShape.kary(2, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate_acceptance(
            make_trace(texts=40, positions=400), by="depth", tree=TreeShape.kary(2, 2)
        )


def test_rare_children_that_the_tree_has_are_warned_of(make_trace):
    """All ranks of a trace have the same trials, and intervals of small rates are narrow."""
    rates = [0.5, 0.2] + [0.004] * 30
    trace = make_trace(texts=5, positions=80, rates=rates, kept=None)
    wide = TreeShape.expansion([32])
    with pytest.warns(
        SmallSample, match=r"fewer than 5 expected hits of child 3 \(\d\.\d+\).* more"
    ):
        estimate_acceptance(trace, tree=wide)
    for tree in (TreeShape.expansion([2]), None):
        found = estimate_acceptance(trace, tree=tree)
        assert not any("expected hits" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"by": "node"}, "by = 'node'"),
        ({"depth": 2}, "depth = 2 belongs to by='depth'"),
        ({"by": "depth", "depth": 0}, "depth = 0"),
        ({"by": "depth", "depth": True}, "depth = True"),
        ({"ranks": 1.5}, "ranks = 1.5"),
        ({"seed": -1}, "seed = -1"),
        ({"shrinkage": "much"}, "shrinkage = 'much'"),
        ({"starts": TreeShape.expansion([4])}, "a node with 4 children"),
        ({"ranks": 4}, "the trace holds 3 children"),
        ({"tree": TreeShape.expansion([4])}, "ranks = 4, but the trace holds 3"),
        ({"by": "depth", "depth": 99}, "nothing was recorded for child 1 at depth"),
        ({"by": "depth", "tree": TreeShape.chain(99)}, "nothing was recorded for child 1 at depth"),
        ({"by": "depth", "depth": 1, "tree": TreeShape.chain(2)}, "the tree needs 2"),
        ({"ranks": 1, "tree": TreeShape.kary(2, 2)}, "the tree needs 2"),
        ({"level": 1.0}, "level = 1.0"),
        ({"interval": "exact"}, "interval = 'exact'"),
        ({"shrinkage": 1.0}, "shrinkage = 1 shrinks"),
        ({"by": "depth", "shrinkage": -1.0}, "shrinkage = -1.0"),
        ({"by": "depth", "shrinkage": float("nan")}, "shrinkage = nan"),
    ],
)
def test_bad_settings_are_refused(make_trace, settings, words):
    with pytest.raises((InvalidLimit, InvalidTrace), match=words):
        estimate_acceptance(make_trace(), **settings)
