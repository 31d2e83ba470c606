"""Each moment of a batch counts once, for the stage of those who work."""

import pytest

from treespec.experiments.run import round_timer
from treespec.experiments.run.round_timer import RoundTimer


class Clock:
    time = 0.0

    def mark(self):
        return self.time

    def settle(self):
        pass

    def between(self, start, end):
        return end - start


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(round_timer, "clock_of", lambda device: clock)
    return clock


def test_time_counts_for_the_stage_of_those_who_work(clock):
    timer = RoundTimer()

    def spend(seconds):
        clock.time += seconds

    timer.begin()
    stages = [timer.of_text(i).stage("draft") for i in (0, 1)]
    for i, stage in enumerate(stages):
        with timer.text(i):
            spend(1)  # of no stage
            stage.__enter__()
            spend(10)
    spend(100)  # the driver's own
    with timer.joined((0, 1), True, 5):
        spend(1000)
    for i, stage in enumerate(stages):
        with timer.text(i):
            spend(10000)
            stage.__exit__(None, None, None)
            with timer.of_text(i).stage("prefill"):
                spend(3 + i)
    seconds = timer.end()
    assert seconds == {
        ("", ()): 100,
        ("", (0,)): 1,
        ("", (1,)): 1,
        ("draft", (0,)): 10010,
        ("draft", (1,)): 10010,
        ("draft", (0, 1)): 1000,
        ("prefill", (0,)): 3,
        ("prefill", (1,)): 4,
    }
    timer.begin()
    assert sum(timer.end().values()) == 0
