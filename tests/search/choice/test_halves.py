"""What is chosen on one half of the texts is valued on the other half."""

import numpy as np
import pytest

from treespec.search.choice.trace_speed import SPLITS, Totals, on_other_half


def totals(emitted, seconds=None):
    emitted = np.array(emitted, dtype=float)
    return Totals(emitted, np.ones(len(emitted)) if seconds is None else np.array(seconds), [])


def test_of_two_texts_each_is_decoded_with_what_the_other_one_chooses():
    left, right = totals([3.0, 1.0]), totals([1.0, 2.0])
    held = on_other_half([left, right], 0)
    assert held.emitted.tolist() == [1.0, 1.0]
    assert held.rate == 1.0 < left.rate


def test_a_shape_that_is_fastest_on_every_text_keeps_its_own_value():
    fast, slow = totals([3.0, 4.0, 5.0], [1.0, 2.0, 1.5]), totals([2.0, 2.0, 2.0], [2.0, 2.0, 2.0])
    held = on_other_half([slow, fast], 0)
    assert held.emitted == pytest.approx(fast.emitted)
    assert held.seconds == pytest.approx(fast.seconds)
    assert held.mean_step is fast.mean_step


def test_the_order_of_texts_does_not_matter():
    rng = np.random.default_rng(0)
    emitted, order = 1 + rng.random((30, 11)), rng.permutation(11)
    one, other = (
        on_other_half([totals(row) for row in rows], 0) for rows in (emitted, emitted[:, order])
    )
    assert one.emitted[order] == pytest.approx(other.emitted)


@pytest.mark.parametrize("texts", [2, 5, 24])
def test_equally_good_shapes_look_no_better_than_they_are(texts):
    """The best of 200 on all texts looks better than 1; the value of choosing it does not."""
    rng, lucky, told = np.random.default_rng(1), [], []
    for _ in range(200):
        shapes = [totals(row) for row in 1 + 0.2 * rng.standard_normal((200, texts)) / 2]
        lucky.append(max(one.rate for one in shapes))
        told.append(on_other_half(shapes, 0).rate)
    assert np.mean(lucky) > 1.03
    assert abs(np.mean(told) - 1) < 0.01
    assert SPLITS >= 8
