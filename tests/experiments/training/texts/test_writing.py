"""Both writers, and the batches that a chat model and a folder of texts make."""

import json
import random

import numpy as np
import pytest

from treespec.experiments.errors import PromptError
from treespec.experiments.training.texts.chat import Chat
from treespec.experiments.training.texts.given_texts import (
    PIECE,
    as_prompts,
    as_they_are,
    read_given,
)
from treespec.experiments.training.texts.prompts_asked import TemplatePrompts
from treespec.experiments.training.texts.text_batches import GivenBatches, WrittenBatches
from treespec.experiments.training.texts.words import Words
from treespec.experiments.training.texts.writing import Order, write_by_engine, write_by_generate
from treespec.models.load import load_pair
from treespec.models.outline import outline_pair


@pytest.fixture(scope="module")
def pair():
    return load_pair("embedded", "none")


def nothing(tokens):
    pass


def test_both_writers_write_the_same_and_texts_do_not_depend_on_their_neighbours(pair):
    prompts = ["import os\n", "def main(", "class Tree:\n    def", '"""A module'] * 2
    orders = [
        Order(tuple(pair.tokenizer.encode(prompt)), (0.0, 0.8)[i % 2 or i > 4], i, 12 + i)
        for i, prompt in enumerate(prompts)
    ]
    told = []
    by_engine = write_by_engine(pair, orders, told.append)
    assert sum(told) == sum(map(len, by_engine))
    assert write_by_generate(pair, orders, nothing) == by_engine
    assert write_by_engine(pair, orders[3:5], nothing) == by_engine[3:5]
    assert by_engine[1] != by_engine[5][: len(by_engine[1])]  # one prompt, two seeds
    assert by_engine[0] == by_engine[4][: len(by_engine[0])]  # greedy texts of one prompt


def test_a_text_ends_with_an_end_token(pair):
    row = write_by_engine(pair, [Order((5, 6), 0.0, 0, 9)], nothing)[0]
    ends = type(pair)(pair.target, pair.draft, pair.tokenizer, "embedded")
    ends.__dict__["end_tokens"] = frozenset({row[4]})
    cut = row[: row.index(row[4]) + 1]
    assert write_by_engine(ends, [Order((5, 6), 0.0, 0, 9)], nothing) == [cut]
    assert write_by_generate(ends, [Order((5, 6), 0.0, 0, 9)], nothing) == [cut]


# -- a chat model ---------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\x00{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def tokenizer():
    """The embedded pair's, with a chat template."""
    found = outline_pair("embedded", "none").tokenizer
    found.chat_template = TEMPLATE.replace("\x00", found.eos_token)
    return found


def test_prompts_are_asked_or_invented(tokenizer):
    end, asked = tokenizer.eos_token_id, []
    words = Words(("What is a {noun} for?",), {"noun": ("pen", "cup")}, "")
    prompts = TemplatePrompts(Chat(tokenizer), words, 0.5, frozenset({end}))

    def write(orders, told):
        asked.append([(tokenizer.decode(o.prompt), o.temperature) for o in orders])
        invent = not asked[-1][0][0].endswith("<assistant>")
        said = tokenizer.encode(" to do with it?" if invent else "It is for you to say, my friend.")
        unfinished = [random.Random(o.seed).random() < 0.3 for o in orders]
        return [said + [end] * (not (invent and cut)) for cut in unfinished]

    batches = WrittenBatches(prompts, write, 40, 50, 0.7, 0.5, 0, 200, 30)
    found = batches.batch(3, nothing)
    openings, questions = asked
    assert {text for text, _ in openings} <= {
        f"<user>{words}" for words in ("What is", "What is a", "What is a pen", "What is a cup")
    }
    assert {heat for _, heat in openings} == {0.7}
    assert {heat for _, heat in questions} == {0.0, 0.7}
    dropped = [one for one in found if one.fault == "prompt not ended"]
    kept = [one for one in found if one.fault is None]
    assert 0 < len(dropped) < len(openings) < 35
    assert len(kept) == len(questions) == 40 - len(dropped)
    for one, (question, heat) in zip(kept, questions, strict=True):
        assert tokenizer.decode(one.ids[: one.prompt]) == question
        assert question.startswith("<user>What is")
        assert question.endswith("<assistant>")
        assert ("to do with it?" in question) == one.invented
        assert (heat == 0) == one.greedy
        assert one.ids[-1] == end
    again = batches.batch(3, nothing)
    assert [one.ids.tolist() for one in again] == [one.ids.tolist() for one in found]
    assert batches.batch(4, nothing)[0].ids.tolist() != found[0].ids.tolist()


# -- a folder of texts ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("A page with words.\n" * 300)
    (tmp_path / "b.py").write_text("import os\n")
    (tmp_path / "c.bin").write_bytes(b"\xff")
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Good day to you"}]
    rows = [{"text": "One line."}, {"messages": talk}, {"turns": ["Who?", "I."]}]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_texts_as_they_are_and_as_prompts(folder, tokenizer):
    given, digest = read_given(folder)
    assert len(given) == 5
    assert len(digest) == 64
    texts = as_they_are(given, tokenizer)
    assert max(len(ids) for ids, _ in texts) == PIECE
    talks = {
        tokenizer.decode(ids[:prompt]): tokenizer.decode(ids) for ids, prompt in texts if prompt
    }
    assert set(talks) == {f"<user>{asked}<|endoftext|><assistant>" for asked in ("Hi", "Who?")}
    assert "<user>Hi<|endoftext|><assistant>Good day to you<|endoftext|>" in talks.values()
    prompts = [tokenizer.decode(ids) for ids in as_prompts(given, tokenizer)]
    assert "import os\n" in prompts
    assert "<user>Who?<|endoftext|><assistant>" in prompts
    batches = GivenBatches(texts, 3, 0)
    assert batches.order is batches.order  # shuffled once, not for each batch
    found = [one for n in range(9) for one in batches.batch(n, nothing) or []]
    assert sorted(one.ids.tolist() for one in found) == sorted(list(ids) for ids, _ in texts)
    assert [one.ids.tolist() for one in found] != [list(ids) for ids, _ in texts]
    assert batches.batch(9, nothing) is None
    assert isinstance(found[0].ids, np.ndarray)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", " \n", "no text in it"),
        ("a.bin", "words", "no text in it"),
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl", '{"text": 3}', "line 1: needs a field text"),
        ("a.jsonl", '{"turns": ["Only asked"]}', "no answer to learn from.*--continue"),
    ],
)
def test_bad_folders_are_told(tmp_path, tokenizer, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(PromptError, match=said):
        as_they_are(read_given(tmp_path)[0], tokenizer)


def test_a_conversation_needs_a_chat_template(folder):
    plain = outline_pair("embedded", "none").tokenizer
    with pytest.raises(PromptError, match=r"d.jsonl, line 2: .*no chat template"):
        as_they_are(read_given(folder)[0], plain)
