import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from treespec.experiments.measure.roofline import Peak
from treespec.experiments.report.figure_style import drawing, save
from treespec.experiments.teaching.batch_speedup import BatchSpeedup
from treespec.experiments.teaching.memory_wall import PassCost
from treespec.experiments.teaching.parallel_guessing import Guessing, PairLaw
from treespec.experiments.teaching.teaching_figures import (
    batch_figure,
    guessing_figure,
    pair_figure,
    wall_figure,
)
from treespec.experiments.teaching.timeline import Brought, Lane, Span
from treespec.experiments.teaching.timeline_figure import GUESSED, OWN, shown_text, timeline_figure


def words(figure):
    return {text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))}


@pytest.mark.parametrize(
    ("text", "letters", "shown"),
    [(" if", 5, "·if"), ("return", 4, "ret…"), ("\n\t", 4, "⏎⇥"), ("ab", 1, "…"), ("ab", 2, "ab")],
)
def test_tokens_are_cut_to_their_room(text, letters, shown):
    assert shown_text(text, letters) == shown


def test_the_timeline_shows_every_token_and_who_guessed_it():
    plain = Lane(
        "plain",
        (Span("draft", 0.0, 1e-5), Span("verify", 0.0, 0.02), Span("verify", 0.02, 0.02)),
        (Brought(0.0, 0.02, ("a",), 0), Brought(0.02, 0.04, ("b",), 0)),
    )
    tree = Lane(
        "tree",
        (Span("draft", 0.0, 0.01), Span("draft pass", 0.0, 0.008), Span("verify", 0.01, 0.02)),
        (Brought(0.0, 0.03, ("a", "b"), 1),),
    )
    figure = timeline_figure([plain, tree])
    found = words(figure)
    assert {"a", "b", "2 tokens in 30 ms, 1 passes of the target"} <= found
    assert "draft's pass" in found
    colours = [to_hex(patch.get_facecolor()) for patch in figure.axes[0].patches]
    assert (colours.count(GUESSED), colours.count(OWN)) == (1, 3)


def test_the_other_figures_are_drawn(tmp_path):
    law = PairLaw(torch.tensor([[0.5, 0.0], [0.1, 0.4]], dtype=torch.float64))
    swept = Guessing((2, 3), (0.0, 1.0), *(np.full((2, 2), value) for value in (0.5, 1e-16, 1.5)))
    lines = np.array([[1.0, 1.2], [1.1, 1.3]])
    cost = PassCost(
        (1, 2), lines, np.ones(2), np.array([0.1, 0.2]), Peak(1, 1, ""), 8, 1, "float32"
    )
    speedups = np.array([2.0, 0.9])
    batches = BatchSpeedup((1, 2), speedups, speedups, np.array([1.5, np.nan]), (8, 4))
    figures = {
        "pair": (pair_figure(law, ["x", "y"]), 3, {"+0.20", "0.50", "guesses − target"}),
        "guessing": (guessing_figure(swept), 2, {"the same guesses, verified: at most 1e-16"}),
        "wall": (wall_figure(cost), 2, {"measured", "floor: arithmetic"}),
        "batch": (batch_figure({"here": batches}, "my tree"), 1, {"here", "my tree", "8", "4"}),
    }
    for name, (figure, panels, labels) in figures.items():
        assert len(figure.axes) == panels
        assert labels <= words(figure)
        with drawing():
            assert save(figure, tmp_path, name).stat().st_size > 1000
