"""Texts of tiny models of real architectures, decoded together: each is what it is alone."""

from functools import cache
from pathlib import Path

import pytest
from every_source import COLD, drafters
from many_texts import LENGTHS, prompts, require_equal
from tiny_models import VOCAB, build, perturbed

from treespec import TorchCoins, verify
from treespec.batch import Text
from treespec.models.routes import OwnMask
from treespec.models.transformers_model import TransformersModel
from treespec.stopping import stop_at_tokens
from treespec.target import ModelTarget

ARCHITECTURES = ("llama", "qwen3", "gpt_neox", "gemma2", "stablelm")
SOURCES = ("model", "early_exit", "layer_skip", "lookup", "documents", "suffix_tree", "suffix_automaton",
           "retrieval", "token_recycling", "lookahead", "jacobi", "cascade", "merge")  # fmt: skip


@cache
def pair(name: str) -> tuple[TransformersModel, TransformersModel]:
    """Target and draft in float64, where no two logits are so near that a joined pass could swap them."""
    target = build(name).double()
    return TransformersModel(target), TransformersModel(perturbed(target, 0.15).double())


def test_all_sources_are_here(tmp_path: Path) -> None:
    assert tuple(drafters(*pair("llama"), [1, 2, 3], tmp_path)) == SOURCES


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_texts_of_every_source_are_what_they_are_alone(name: str, tmp_path: Path) -> None:
    """Each source twice, prompts of 1 to 120 tokens, ends at different steps, eight at a time."""
    target, draft = pair(name)
    assert isinstance(target.finding.route, OwnMask) == (name == "stablelm")
    given = prompts(VOCAB, LENGTHS * 3)[: len(SOURCES) * 2 - 3]

    def make(i: int) -> Text:
        parts = drafters(target, draft, given[0].tolist() * 2, tmp_path)
        return Text(
            ModelTarget(target), parts[SOURCES[i % len(SOURCES)]], verify.greedy, given[i], COLD,
            TorchCoins(i), max_new_tokens=5 + 7 * i % 12, stop=stop_at_tokens(range(6)),
        )  # fmt: skip

    told = require_equal(make, len(given), places=8)
    assert len({len(one.tokens) for one in told}) > 3
