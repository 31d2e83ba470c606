"""Whether a sample supports the requested rates: warnings about small samples, refused settings."""

import warnings

import pytest

from treespec.search import InvalidLimit, InvalidTrace, SmallSample, estimate_acceptance

pytestmark = pytest.mark.filterwarnings("ignore::treespec.search.errors.SmallSample")


def test_a_sample_that_is_too_small_is_warned_of_with_numbers(make_trace):
    trace = make_trace(texts=2, positions=40, rates=(0.5, 0.2, 0.1))
    with pytest.warns(SmallSample, match=r"trials of child 1 at depth \d \(\d+\)") as caught:
        found = estimate_acceptance(trace, by="depth", depth=4, ranks=2)
    assert found.rates.shape == (4, 2)
    assert {str(w.message) for w in caught} == set(found.warnings)
    with pytest.warns(SmallSample, match=r"up to 0\.\d\d to each side .* child 1 \(\d+\)"):
        estimate_acceptance(trace)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimate_acceptance(make_trace(texts=40, positions=400), by="depth", depth=2, ranks=2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"by": "node"}, "by = 'node'"),
        ({"depth": 2}, "depth = 2 belongs to by='depth'"),
        ({"by": "depth", "depth": 0}, "depth = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"ranks": 4}, "the trace holds 3 children"),
        ({"by": "depth", "depth": 99}, "nothing was recorded for child 1 at depth"),
        ({"level": 1.0}, "level = 1.0"),
        ({"interval": "exact"}, "interval = 'exact'"),
        ({"shrinkage": 1.0}, "shrinkage = 1 shrinks"),
        ({"by": "depth", "shrinkage": -1.0}, "shrinkage = -1.0"),
    ],
)
def test_bad_settings_are_refused(make_trace, settings, words):
    with pytest.raises((InvalidLimit, InvalidTrace), match=words):
        estimate_acceptance(make_trace(), **settings)
