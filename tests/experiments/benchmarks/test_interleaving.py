"""The counts of the benchmark of interleaved runs."""

import polars as pl
import pytest

from treespec import plugins
from treespec.experiments.benchmarks.interleaving import (
    Measurement,
    config_of,
    counted,
    slowed_in,
)
from treespec.experiments.config.build import build
from treespec.search.intervals import Interval


def test_the_methods_differ_in_nothing_else():
    before = plugins.kept()
    try:
        methods = build(config_of(3, None, None)).methods
        assert [m.name for m in methods] == ["plain", "one", "other", "dearer"]
        assert len({m.shape for m in methods[1:]}) == 1
    finally:
        plugins.restore(before)


def test_runs_are_counted():
    exact, off = Interval(1.0, 0.99, 1.01), Interval(1.1, 1.05, 1.15)
    slower = Interval(0.95, 0.94, 0.96)
    runs = [
        Measurement(exact, slower, off, exact, True, {}, 1.0),
        Measurement(off, exact, exact, slower, False, {}, 1.3),
    ]
    turns, totals = counted(runs, []).values()
    assert turns["holds_one"] == turns["found_slower"] == 1
    assert (turns["adjusted"], totals["adjusted"]) == (1, 0)
    assert totals["holds_one"] == 1
    assert list(counted(runs, runs)) == ["in turns", "totals", "by prompts"]


def test_how_much_slower_the_machine_became_is_read_off_equal_methods():
    rows = [
        {"method": name, "at_s": float(at), "step_s": slow * (1 + 0.3 * at / 99)}
        for at in reversed(range(100))
        for name, slow in (("one", 0.01), ("other", 0.01), ("plain", 9.0))
    ]
    assert slowed_in(pl.DataFrame(rows)) == pytest.approx(1.26 / 1.037, rel=0.01)
