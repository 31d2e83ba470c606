"""The study of coverage: its truths are what many runs give, and a broken interval shows."""

import numpy as np
import pytest

from treespec.experiments.report import statistics
from treespec.experiments.research.studies.coverage import (
    Cell,
    cells,
    counted,
    one_halving,
    recorded,
    truth,
)


@pytest.mark.parametrize("noise", ["5 %", "skewed", "recorded"])
@pytest.mark.parametrize("world", ["equal", "near ties", "one faster"])
def test_speeds_are_those_of_the_world(noise, world):
    cell, rng = Cell(48, 4, 2, noise, world), np.random.default_rng(0)
    sums = [np.concatenate(cell.run(rng)).sum(-1) for _ in range(400)]
    tokens, seconds = np.moveaxis(np.array(sums).sum(0), 1, 0)
    speeds = np.log(tokens / seconds)
    effects = np.concatenate(cell.effects)
    assert speeds - speeds.mean() == pytest.approx(effects - effects.mean(), abs=0.02)


def test_the_truth_is_between_equal_and_the_faster_one():
    cell, rng = Cell(12, 4, 1, "15 %", "one faster"), np.random.default_rng(0)
    found = np.mean([truth(cell, *cell.run(rng), rng) for _ in range(500)])
    assert 0.02 < found < np.log(1.08)


def test_one_halving_depends_on_the_order():
    left, right = Cell(12, 4, 4, "15 %", "equal").run(np.random.default_rng(0))
    order = np.random.default_rng(1).permutation(12)
    assert one_halving(left, right) != one_halving(left[..., order], right[..., order])


def test_an_interval_that_is_too_narrow_is_seen(monkeypatch):
    cell = Cell(12, 2, 2, "5 %", "equal")
    right = counted(cell, 150)
    real = statistics.student
    monkeypatch.setattr(statistics, "student", lambda boundary, n: 0.4 * real(boundary, n))
    assert right["verdict false"] <= 0.07 < counted(cell, 150)["verdict false"]


def test_every_world_is_there():
    assert len({cell.world for cell in cells()}) == 3
    assert recorded()
