import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.text import Text
from run_folders.folders import SyntheticMethod, demo_methods, write_run

from treespec.experiments.records.folder import FIGURES
from treespec.experiments.report.figure_style import drawing, inline_svg
from treespec.experiments.report.figures import (
    DRAWINGS,
    accepted_figure,
    draw_figures,
    size_figure,
    speedup_figure,
    stages_figure,
)
from treespec.experiments.report.point_figures import prediction_figure, prompts_figure
from treespec.experiments.report.prediction import Prediction
from treespec.experiments.report.run import load_run
from treespec.tree import TreeShape


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    run = load_run(write_run(folder / "run", spread=0.12, jitter=0.03))
    return run, draw_figures(run, folder / "figures")


def texts(path):
    return [
        "".join(e.itertext()).strip()
        for e in ElementTree.parse(path).iter()
        if e.tag.endswith("}text")
    ]


def test_all_figures_are_written_twice(demo):
    _, figures = demo
    assert list(figures) == ["speedup", "prompts", "size", "stages", "accepted", "scaling"]
    for path in figures.values():
        assert path.stat().st_size > 5_000
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_letters_are_text_and_every_method_is_named(demo):
    _, figures = demo
    for name in ("speedup", "stages"):
        assert {m.name for m in demo_methods()} <= set(texts(figures[name]))
    drafted = {m.name for m in demo_methods() if m.kind == "tree"}
    assert drafted <= set(texts(figures["accepted"]))
    assert {"T=0", "T=1"} <= set(texts(figures["stages"]))


def test_an_inlined_figure_follows_the_page(demo):
    _, figures = demo
    text = inline_svg(figures["speedup"])
    root = ElementTree.fromstring(text)
    assert root.get("viewBox")
    assert root.get("width") is None
    assert "var(--ink)" in text
    assert "#0072b2" not in text
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert ids
    assert all(i.startswith("speedup-") for i in ids)
    links = [v[1:] for e in root.iter() for k, v in e.attrib.items() if k.endswith("href")]
    assert set(links) <= set(ids)


@pytest.fixture(scope="module")
def long_names(tmp_path_factory):
    """A run whose methods have names of sixty characters, one of them without a place to break."""
    long = [replace(m, name=f"{m.name} {'as one names a method' * 3}"[:60]) for m in demo_methods()]
    long[4] = replace(long[4], name="W" * 60)
    return load_run(write_run(tmp_path_factory.mktemp("long") / "run", long, jitter=0.03))


@pytest.mark.parametrize("size", [(), (3.4, 7.5)], ids=["page", "column"])
def test_long_names_are_written_in_full_inside_the_figure(long_names, size):
    run, summaries = long_names, long_names.summaries
    trees = [r for s in summaries for r in s.rows if r.method.kind == "tree"]
    rows = [
        Prediction(
            r.method.name, "T=0", 4, r.tokens_per_step, r.tokens_per_step, r.speedup, r.speedup, 70.0,
        )
        for r in trees[: len(trees) // 2]
    ]  # fmt: skip
    with drawing(*size):
        for figure in (
            size_figure(run),
            speedup_figure(summaries),
            stages_figure(summaries),
            accepted_figure(summaries, run.accepted_shares),
            prompts_figure(run.measurements),
            prediction_figure(rows, {m.name: m.group for m in run.methods}),
        ):
            figure.draw_without_rendering()
            width, height = figure.bbox.width, figure.bbox.height
            written = [  # ticks past the ends of an axis are not drawn
                text for text in figure.findobj(Text) if re.search("[a-zA-Z]", text.get_text())
            ]
            for text in written:
                box = text.get_window_extent()
                assert box.x0 >= -1, text.get_text()
                assert box.x1 <= width + 1, text.get_text()
                assert box.y0 >= -1, text.get_text()
                assert box.y1 <= height + 1, text.get_text()
            told = "".join(re.sub("\n *", "", text.get_text()) for text in written)
            assert "W" * 60 in told or "verify, ms per step" in told
            for axes in figure.axes:  # names do not run into each other, or push the plot out
                boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
                boxes = sorted((box.y0, box.y1) for box in boxes)
                assert all(a[1] <= b[0] + 1 for a, b in pairwise(boxes))
                assert axes.get_window_extent().width > 0.1 * width


def test_a_tree_that_varies_stands_at_its_mean_and_what_is_left_out_is_named(tmp_path):
    run = load_run(write_run(tmp_path / "run", prompts=4, temperatures=[0.0]))
    fixed = size_figure(run)
    grown = load_run(run.folder)
    (varies,) = (m for m in grown.manifest["methods"] if m["name"] == "expansion 3-2-1-1-1")
    varies |= {"parents": None, "growth": {"kind": "eagle2"}}
    for figure in (fixed, size_figure(grown)):
        points = [
            line.get_xdata()[0] for line in figure.axes[0].lines if len(line.get_xdata()) == 1
        ]
        assert 27 in points  # nodes below the root
        label = figure.axes[1].get_xlabel().replace("\n", " ")
        assert label.endswith("drafts not recorded: assisted")
        assert ("mean where it varies" in label) == (figure is not fixed)


def test_a_run_of_baselines_draws_what_it_can(tmp_path):
    methods = [SyntheticMethod("generate", "generate")]
    run = load_run(write_run(tmp_path / "run", methods, prompts=1, temperatures=[0.0]))
    assert list(draw_figures(run, tmp_path / "figures")) == ["speedup", "stages"]


def test_three_settings_get_a_panel_each(tmp_path):
    methods = [SyntheticMethod("tree", "tree", TreeShape.kary(2, 2), (0.5, 0.2))]
    run = load_run(write_run(tmp_path / "run", methods, prompts=4, temperatures=[0.0, 0.6, 1.0]))
    found = run.summaries
    assert speedup_figure(found) is None  # there is nothing to be faster than
    shares = {s.sampling: run.accepted_shares[s.sampling] for s in found}
    for figure in (stages_figure(found), accepted_figure(found, shares)):
        titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
        assert titles[:3] == ["T=0", "T=0.6", "T=1"]


def test_a_run_folder_knows_all_figures_and_no_other():
    """Files with these names that are not ours are refused before a run, not after it."""
    assert sorted(FIGURES) == sorted(DRAWINGS)
    assert all(drawing.caption.endswith(".") for drawing in DRAWINGS.values())
