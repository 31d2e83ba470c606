import numpy as np
import pytest
from run_folders.folders import SyntheticMethod, write_run

from treespec.experiments.report.figure_style import drawing
from treespec.experiments.report.point_figures import prompt_speedups, prompts_figure
from treespec.experiments.report.run import load_run
from treespec.tree import TreeShape

PLAIN = SyntheticMethod("plain", "plain")
CHAIN = SyntheticMethod("chain 3", "tree", TreeShape.chain(3), (0.7,))
SLOW = SyntheticMethod("chain 1", "tree", TreeShape.chain(1), (0.1,))
TREE = SyntheticMethod("kary", "tree", TreeShape.kary(2, 3), (0.6, 0.2))
LOSSY = SyntheticMethod("lossy", "tree", TreeShape.kary(2, 3), (1.0,), lossless=False)


def measured(folder, methods, **settings):
    run = load_run(write_run(folder, methods, **{"spread": 0.2, "temperatures": [0.0]} | settings))
    return run.prompts, run.measurements


def test_each_prompt_has_the_speedups_of_the_best_chain_and_the_best_tree(tmp_path):
    prompts, found = measured(tmp_path / "run", [PLAIN, SLOW, CHAIN, TREE, LOSSY])
    shown = prompt_speedups(found["T=0"])
    assert list(shown) == ["chain 3", "kary"]
    rows = {(r["method"], r["prompt"]): r for r in prompts.iter_rows(named=True)}

    def speed(method, prompt):
        return rows[method, prompt]["new_tokens"] / rows[method, prompt]["decode_s"]

    for method, ratios in shown.items():
        expected = [speed(method, p) / speed("plain", p) for p in range(12)]
        assert sorted(ratios) == pytest.approx(sorted(expected))
    gains = shown["kary"] / shown["chain 3"]
    assert (np.diff(gains) >= 0).all()
    assert 0 < (gains > 1).sum() < 12


@pytest.mark.parametrize("prompts", [1, 100])
def test_every_prompt_has_two_dots_that_can_be_told_apart(tmp_path, prompts):
    _, found = measured(tmp_path / "run", [PLAIN, CHAIN, TREE], prompts=prompts, new_tokens=16)
    with drawing():
        figure = prompts_figure(found)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    chain, tree = prompt_speedups(found["T=0"]).values()
    ahead = (tree > chain).sum()
    assert axes.get_title(loc="left") == f"T=0: the tree is faster on {ahead} of {prompts} prompts"
    _, *dots = axes.get_lines()
    assert [len(line.get_xdata()) for line in dots] == [prompts, prompts]
    column = axes.get_window_extent().width * 72 / figure.dpi / prompts
    assert all(2 < line.get_markersize() <= column for line in dots)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["plain", "chain 3", "kary"]


def test_one_family_alone_is_shown_by_its_speedup(tmp_path):
    _, found = measured(tmp_path / "run", [PLAIN, CHAIN])
    assert (np.diff(prompt_speedups(found["T=0"])["chain 3"]) >= 0).all()
    with drawing():
        (axes,) = prompts_figure(found).axes
    assert axes.get_xlabel() == "prompts, by speedup of chain 3"


def test_without_a_baseline_there_is_nothing_to_show(tmp_path):
    for i, methods in enumerate(([CHAIN, TREE], [PLAIN])):
        assert prompts_figure(measured(tmp_path / f"run{i}", methods)[1]) is None
