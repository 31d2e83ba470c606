"""The bias of a choice, compared with many repetitions of the measurement."""

import numpy as np
import pytest

from treespec.search.choice.optimism import flattery, optimism
from treespec.search.choice.rows import Speed

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
    """Bias found and true bias; each shape is slower than the one before by the share `apart`."""
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


@pytest.mark.parametrize(
    ("behind", "least", "most"),
    [((0, 0), 0.5, 0.9), ((0, 0, 0, 0), 0.6, 0.9), ((0, 0, 0, 9), 0.6, 0.9), ((0, 9), 0.0, 0.0)],
)
def test_most_of_what_a_choice_among_sources_flatters_is_found(behind, least, most):
    """Each entry is `behind` the one before, in units of the noise, half of which is in the tokens."""
    rng, noise, draws = np.random.default_rng(3), 0.03, 300
    flattered, found = np.zeros(2), np.zeros(2)
    for _ in range(300):
        truth = np.exp(-noise * np.array(behind))

        def noisy(*shape):
            return np.exp(noise / np.sqrt(2) * rng.standard_normal(shape))

        tokens, seconds = truth * noisy(len(behind)), noisy(len(behind))
        drawn = tokens * noisy(draws, len(behind)), seconds * noisy(draws, len(behind))
        speeds = [
            Speed(t, s, *of)
            for t, s, *of in zip(tokens, seconds, *(d.T for d in drawn), strict=True)
        ]
        first = (tokens / seconds).argmax()
        flattered += np.log([tokens[first] / truth[first], 1 / seconds[first]])
        found += np.log(flattery(speeds))
    if most == 0:
        assert found == pytest.approx(0, abs=1e-9)
    else:
        assert ((least * flattered < found) & (found < most * flattered)).all()
