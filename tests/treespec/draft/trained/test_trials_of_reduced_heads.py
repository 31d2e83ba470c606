"""Trials at load compare rows of a head with a vocabulary of its own over the tokens of that vocabulary.

Beside them stands the lowest number of the dtype, next to which no error shows.
"""

import pytest
from head_formats import head_of

from treespec.errors import UnsupportedModel
from treespec.models import probe
from treespec.models.passes.choosing_passes import _require_same
from treespec.models.runner import TreeRunner
from treespec.step import Scores


def spoilt(nodes):
    """Runs ordinary passes; trees of so many nodes have wrong logits of the first of the head's tokens."""

    class Spoilt(TreeRunner):
        def run(self, tokens, parents, first=0, states=None):
            scores = super().run(tokens, parents, first, states)
            logits = scores.logits.clone()
            if len(parents) == nodes:
                logits[:, self.model.kept[0]] += 10.0
            return Scores(logits, scores.features)

    return Spoilt


@pytest.fixture
def head(tmp_path):
    made = head_of("eagle3", tmp_path)
    assert len(made.net.kept) < made.vocab_size
    return made


@pytest.mark.parametrize("nodes", [1, 3, 8, 64])
def test_wrong_rows_of_another_kind_of_pass(head, nodes):
    """Of the root, a level, the last level, and a large tree behind a text."""
    _require_same(head, head.fresh())
    with pytest.raises(UnsupportedModel, match="logits of a compiled pass differ"):
        _require_same(head, head.fresh(runner=spoilt(nodes)))


def test_a_head_that_ignores_the_tree(head, monkeypatch, tmp_path):
    class Chain(TreeRunner):
        def run(self, tokens, parents, first=0, states=None):
            return super().run(tokens, tuple(range(-1, len(parents) - 1)), first, states)

    monkeypatch.setattr(probe, "usual_runner", lambda model: Chain)
    with pytest.raises(UnsupportedModel, match="differ from sequential decoding by"):
        head_of("eagle3", tmp_path / "again")
