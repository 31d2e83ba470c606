"""The pair that edits its source: what it learns from, and what is written."""

import json
import random

import pytest
import torch

from treespec import load_pair
from treespec.experiments.research.studies import editing_pair
from treespec.experiments.research.studies.editing_pair import (
    END,
    PROMPTS,
    build,
    edits,
    loss_of,
    main,
    shuffled,
    train,
)
from treespec.experiments.training.corpus import Corpus, SourceFile

FILES = [SourceFile("a.py", "def area(self, other):\n    return self.width * other.height\n" * 20)]


@pytest.fixture(scope="module")
def tokenizer():
    return load_pair("embedded").tokenizer


def test_an_answer_is_the_source_edited_and_ends(tokenizer):
    batch = edits(FILES, tokenizer, random.Random(0), batch=8)
    for source, answer in zip(batch.sources.tolist(), batch.answers.tolist(), strict=True):
        text = tokenizer.decode(source)
        assert text in FILES[0].text
        assert tokenizer.decode(answer[: answer.index(END)]) == text.replace("self", "this")


@pytest.mark.parametrize("phase", ["short", "repeated", "code"])
def test_steps_on_a_batch_lower_its_loss(phase, tokenizer):
    torch.manual_seed(0)
    model = build(1, 32, len(tokenizer))
    if phase == "code":
        batch = edits(FILES, tokenizer, random.Random(0), batch=4)
    else:
        batch = shuffled(0 if phase == "short" else 801, len(tokenizer), batch=4)
    before, _ = loss_of(model, batch)
    train(model, phase, lambda _: batch, 8, 2e-2, last=True)
    after, _ = loss_of(model, batch)
    assert after < 0.95 * before


def test_the_folder_is_a_pair_with_held_out_sources(tmp_path, monkeypatch):
    held_out = SourceFile(
        "b.py", "class Wheel:\n    def turn(self):\n        self.turns += 1\n" * 20
    )
    corpus = Corpus(training=tuple(FILES), held_out=(held_out,))
    monkeypatch.setattr(editing_pair, "read_corpus", lambda _: corpus)
    main(tmp_path, shuffles=1, codes=1)
    lines = (tmp_path / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == PROMPTS
    assert all(json.loads(line)["source"] in held_out.text for line in lines)
    pair = load_pair(tmp_path)
    assert pair.target.needs_source
    assert pair.draft.vocab_size == pair.target.vocab_size
