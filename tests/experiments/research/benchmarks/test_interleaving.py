"""The counts of the benchmark of interleaved runs."""

import time

from treespec import plugins
from treespec.experiments.config.build import build
from treespec.experiments.research.benchmarks.interleaving import (
    SPUN_SHARE,
    Dearer,
    Measurement,
    config_of,
    counted,
)
from treespec.search.intervals import Interval


def test_the_methods_differ_in_nothing_else():
    before = plugins.kept()
    try:
        methods = build(config_of(3, None)).methods
        assert [m.name for m in methods] == ["plain", "one", "other", "dearer"]
        assert len({m.shape for m in methods[1:]}) == 1
    finally:
        plugins.restore(before)


def test_runs_are_counted():
    exact, off = Interval(1.0, 0.99, 1.01), Interval(1.1, 1.05, 1.15)
    slower = Interval(0.95, 0.94, 0.96)
    runs = [Measurement(exact, slower, off, exact), Measurement(off, exact, exact, slower)]
    turns, totals = counted(runs).values()
    assert turns["holds_one"] == turns["found_slower"] == 1
    assert totals["holds_one"] == 1


class Waiting:
    """A drafter whose steps take 0.2 s."""

    max_depth, max_length = 4, None

    def prefill(self, tokens):
        pass

    def propose(self, coins):
        time.sleep(0.2)

    def commit(self, step):
        pass


def test_a_dearer_step_takes_longer_by_its_share():
    drafter, start = Dearer(Waiting()), time.perf_counter()
    drafter.propose(None)
    drafter.commit(None)
    assert time.perf_counter() - start >= 0.2 * (1 + SPUN_SHARE)
