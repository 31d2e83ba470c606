import os
import time

import numpy as np
import pytest
import torch

from treespec.experiments.benchmarks.neighbours import Neighbour, beside, busy_at
from treespec.experiments.benchmarks.slowdown_traces import record, with_stalls
from treespec.experiments.studies.interleaved_estimator import recorded


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


def test_a_recorded_machine_is_as_slow_as_its_trace(tmp_path):
    at, seconds = record(torch.ones(2, 8), torch.ones(8, 8), repeats=50)
    assert (np.diff(at) > 0).all()
    assert (seconds > 0).all()
    at, seconds = 0.003 * np.arange(1000), np.where(np.arange(1000) < 500, 0.003, 0.006)
    np.savez(tmp_path / "half.npz", at=at, seconds=seconds)
    slowdown = recorded(tmp_path / "half.npz")(np.random.default_rng(0), 30_000)
    assert slowdown.mean() == pytest.approx(1.5, abs=0.01)
    assert (slowdown.min(), slowdown.max()) == (1, 2)


def test_stalls_are_added_to_a_trace():
    at, seconds = 0.003 * np.arange(10_000), np.full(10_000, 0.003)
    later, longer = with_stalls(at, seconds)
    assert (longer > 0.01).sum() == pytest.approx(15, abs=10)
    assert later[-1] == pytest.approx(longer.sum() - longer[-1] / 2)
