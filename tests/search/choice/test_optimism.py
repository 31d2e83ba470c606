"""What a choice flatters, against many repetitions of measuring."""

import numpy as np
import pytest

from treespec.search.choice.optimism import optimism

SLOW = np.array([1.0, 1.0, 1.0, 1.6, 1.0])
"""A median of resampled rounds, of which one was slow, is above the median of the rounds in the mean."""


@pytest.mark.parametrize(
    ("seconds", "drawn"),
    [
        ([1.0, 5.0], [[1.0, 4.9], [1.5, 5.1], [1.0, 5.0]]),
        ([1.0], SLOW[:, None]),
        ([1.0, 1.1, 1.05], SLOW[:, None] * [1.0, 1.1, 1.05]),
    ],
)
def test_nothing_is_taken_off_where_the_choice_is_beyond_doubt(seconds, drawn):
    ones = np.ones(len(seconds))
    assert optimism(ones, np.array(seconds), np.array(drawn)) == pytest.approx(1.0)


def test_tokens_count():
    drawn = np.array([[1.0, 1.9], [1.0, 2.1]])
    assert optimism(np.array([1.0, 2.0]), np.array([1.0, 2.0]), drawn) == pytest.approx(1 / 0.975)


@pytest.mark.parametrize(
    ("shapes", "apart"), [(2, 0.0), (12, 0.0), (12, 0.02), (12, 0.05), (12, 0.2)]
)
def test_most_of_what_a_choice_flatters_is_found(shapes, apart):
    """`apart`: how much slower each shape is than the one before."""
    rng, noise, truth = np.random.default_rng(1), 0.03, 1 + apart * np.arange(shapes)
    flattered, found = [], []
    for _ in range(400):
        seconds = truth * np.exp(noise * rng.standard_normal(shapes))
        drawn = seconds * np.exp(noise * rng.standard_normal((200, shapes)))
        chosen = seconds.argmin()
        flattered.append(truth[chosen] / seconds[chosen])
        found.append(optimism(np.ones(shapes), seconds, drawn))
    assert np.mean(found) == pytest.approx(np.mean(flattered), abs=0.5 * noise)
    if not apart:
        assert np.mean(found) - 1 > 0.6 * (np.mean(flattered) - 1)
