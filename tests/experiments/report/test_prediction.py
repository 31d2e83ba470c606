"""The figure of predictions beside measurements."""

import random

import numpy as np
import pytest

from treespec.experiments.report.figure_style import drawing
from treespec.experiments.report.point_figures import prediction_figure
from treespec.experiments.report.prediction import Prediction
from treespec.search.intervals import Interval


def around(value):
    return Interval(value, 0.9 * value, 1.1 * value)


def predictions(count, settings=("T=0", "T=1")):
    """Trees of nearly the same speed, like real ones."""
    rng = random.Random(0)
    return [
        Prediction(
            f"tree {i}", sampling, 4, around(2 + rng.gauss(0, 0.1) + i / 20), around(2 + i / 20),
            around(1.2 + 0.3 * rng.random()), around(1.2 + 0.3 * rng.random()), 70.0,
        )
        for sampling in settings
        for i in range(count)
    ]  # fmt: skip


def drawn(rows):
    with drawing():
        figure = prediction_figure(rows, {row.method: "tree" for row in rows})
        figure.draw_without_rendering()
    return figure


def test_dots_stand_where_prediction_and_measurement_say():
    rows = predictions(3, ["T=0"])
    tokens, speedups = drawn(rows).axes
    for axes, pairs in (
        (tokens, [(r.tokens_measured.estimate, r.tokens.estimate) for r in rows]),
        (speedups, [(r.speedup_measured.estimate, r.speedup.estimate) for r in rows]),
    ):
        identity, *dots = axes.lines
        assert list(identity.get_xdata()) == list(identity.get_ydata()) == list(axes.get_xlim())
        assert axes.get_xlim() == axes.get_ylim()
        assert np.array([dot.get_xydata()[0] for dot in dots]) == pytest.approx(np.array(pairs))
    bars = [c.get_segments()[0] for c in speedups.collections]
    across, up = bars[0], bars[1]
    assert [x for x, _ in across] == pytest.approx(
        [rows[0].speedup_measured.low, rows[0].speedup_measured.high]
    )
    assert [y for _, y in up] == pytest.approx([rows[0].speedup.low, rows[0].speedup.high])


def test_every_dot_has_its_number_and_the_key_names_every_tree_once():
    figure = drawn(predictions(5))
    for axes in figure.axes:
        assert [text.get_text() for text in axes.texts] == ["1", "2", "3", "4", "5"]
    (key,) = figure.legends
    assert [text.get_text() for text in key.get_texts()] == [f"{i + 1}  tree {i}" for i in range(5)]


def test_one_text_has_no_interval_and_is_drawn():
    nan = float("nan")
    row = Prediction(
        "tree", "T=0", 4, Interval(2.0, nan, nan), Interval(2.1, nan, nan),
        Interval(1.4, nan, nan), Interval(1.3, nan, nan), 70.0,
    )  # fmt: skip
    assert len(drawn([row]).axes) == 2
    assert prediction_figure([], {}) is None
