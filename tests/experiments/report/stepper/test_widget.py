import sys

import pytest
import torch
from run_folders.folders import SyntheticMethod, write_run
from run_folders.trees import write_trees

from treespec.experiments.report.run import load_run
from treespec.experiments.report.stepper.replay import asset
from treespec.experiments.report.stepper.widget import MissingWidget, Stepper
from treespec.step import Scores, Step, Verdict
from treespec.tree import TokenTree, TreeShape


@pytest.fixture
def steps():
    tree = TokenTree(TreeShape.kary(2, 1), torch.tensor([5, 1, 2]), None, "deterministic")
    return [Step(tree, Verdict((0, 2), 9), Scores(torch.zeros(3, 10)), (2, 9))] * 3


@pytest.fixture
def outputs(monkeypatch):
    """The outputs of a cell: plain MIME bundles, and widgets."""
    found = []
    monkeypatch.setattr("IPython.display.display", lambda value, raw=False: found.append(value))
    return found


def test_without_anywidget_there_are_pictures(steps, monkeypatch, outputs):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    stepper = Stepper(steps)
    with pytest.raises(MissingWidget, match="pip install 'anywidget"):
        _ = stepper.widget
    stepper._ipython_display_()
    (bundle,) = outputs
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/html"].count("<svg") == 3
    assert "anywidget&gt;=0.9" in bundle["text/html"]


def test_the_widget_has_the_script_of_the_report(steps, outputs):
    pytest.importorskip("anywidget")
    stepper = Stepper(steps)
    widget = stepper.widget
    assert widget.data["trails"][0]["steps"][0][1:5] == [[0, 1, 2], [0, 2], 3, 2]
    assert str(widget._esm) == asset("stepper.js")
    assert str(widget._css) == asset("stepper.css")
    widget.index = 2
    stepper._ipython_display_()
    bundle, shown = outputs
    assert shown is widget
    assert "<svg" in bundle["text/html"]
    assert f'id="{widget.pictures}"' in bundle["text/html"]
    assert stepper.widget is widget


def test_a_run_that_kept_steps(tmp_path):
    methods = [SyntheticMethod("tree", "tree", TreeShape.kary(2, 2), (0.5, 0.2))]
    folder = write_run(tmp_path / "run", methods, prompts=2, temperatures=[0.0], new_tokens=8)
    with pytest.raises(ValueError, match="kept no steps"):
        Stepper(load_run(folder))
    write_trees(folder)
    assert repr(Stepper(load_run(folder))).startswith("Stepper(2 texts, ")


def test_nothing_to_show():
    with pytest.raises(ValueError, match="no steps to show"):
        Stepper([])
