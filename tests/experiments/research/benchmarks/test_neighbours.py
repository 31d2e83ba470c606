import os
import time

import numpy as np
import pytest

from treespec.experiments.research.benchmarks.neighbours import Neighbour, beside, busy_at


def test_how_much_of_a_core_each_neighbour_takes():
    seconds = np.linspace(0, 60, 60_001)[:-1]
    shares = {
        kind: np.array([busy_at(kind, second, 60) for second in seconds]) for kind in Neighbour
    }
    assert shares[Neighbour.STEADY].all()
    assert shares[Neighbour.BURSTS].mean() == pytest.approx(0.35, abs=0.01)
    first, last = shares[Neighbour.DRIFT].reshape(2, -1).mean(1)
    assert (first, last) == (pytest.approx(0.25, abs=0.05), pytest.approx(0.75, abs=0.05))


def test_a_neighbour_works_beside_the_block_and_is_gone_after_it():
    before = os.times()
    with beside(Neighbour.BURSTS, 20):
        time.sleep(3)
    after = os.times()
    assert (
        after.children_user + after.children_system > before.children_user + before.children_system
    )
    assert after.elapsed - before.elapsed < 15


def test_a_block_that_outlasts_its_neighbour_is_no_measurement_beside_it():
    said = r"steady\) stayed for 0 s, but the measurement beside it took"
    with pytest.raises(RuntimeError, match=said), beside(Neighbour.STEADY, 0.2):
        time.sleep(0.7)
