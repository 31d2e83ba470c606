"""The target class that a model gets."""

import logging
import subprocess
import sys

import pytest
import torch

from treespec.errors import UnsupportedModel
from treespec.models.pass_kinds import Passes
from treespec.models.tabular import TabularModel
from treespec.target import ModelTarget, graph, make_target
from treespec.testing import random_table


def test_the_cpu_path_does_not_know_of_graphs():
    code = (
        "import sys, treespec; from treespec.target import ModelTarget, make_target;"
        "pair = treespec.load_pair('embedded');"
        "assert type(make_target(pair.target)) is ModelTarget;"
        "treespec.generate(pair, 'def ', max_new_tokens=4);"
        "print([name for name in sys.modules if 'graph' in name and 'treespec' in name],"
        "      [name for name in sys.modules if 'treespec.models.static' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


def test_a_model_without_a_device():
    model = TabularModel(random_table(4, 0), 4)
    assert type(make_target(model)) is ModelTarget


@pytest.fixture
def on_cuda(make_model, monkeypatch):
    """A model that claims to be on CUDA."""
    model = make_model()
    monkeypatch.setattr(type(model), "device", torch.device("cuda"))
    return model


def test_on_cuda(on_cuda, monkeypatch):
    class Stub(ModelTarget):
        pass

    monkeypatch.setattr(graph, "GraphTarget", Stub)
    assert type(make_target(on_cuda)) is Stub


def test_what_was_asked_for(on_cuda, monkeypatch):
    class Stub(ModelTarget):
        pass

    monkeypatch.setattr(graph, "GraphTarget", Stub)
    for asked, kind, target in (
        ("eager", "eager", ModelTarget),
        ("auto", "eager", ModelTarget),
        ("captured", "captured", Stub),
        ("auto", "captured", Stub),
    ):
        on_cuda.passes = Passes(kind, asked)
        assert type(make_target(on_cuda)) is target


def test_a_pass_that_cannot_be_captured_is_told_to_the_log(on_cuda, monkeypatch, caplog):
    def refuse(model):
        raise UnsupportedModel("it reads values back")

    monkeypatch.setattr(graph, "GraphTarget", refuse)
    with caplog.at_level(logging.WARNING, logger="treespec"):
        assert type(make_target(on_cuda)) is ModelTarget
    assert "not captured: it reads values back" in caplog.text
