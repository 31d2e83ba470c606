"""Held-out prompts in texts: what is a leak, what is none, and whose prompts are held out."""

import numpy as np
import pytest

from treespec.experiments.training.texts.chat import Chat
from treespec.experiments.training.texts.leaks import (
    LEAK,
    HeldOutPrompts,
    held_out_prompts,
    leaks,
)
from treespec.models.outline import outline_pair

TEMPLATE = [900, 901, 902, 903, 904, 905, 906, 907, 908, 909, 910, 911, 912, 913, 914]
"""Tokens that all texts share: more than make a leak."""


def held_out(*contents):
    return HeldOutPrompts(
        tuple(map(tuple, contents)), frozenset(tuple(TEMPLATE + list(c)) for c in contents)
    )


def test_thirteen_tokens_in_a_row_are_a_leak_anywhere_in_a_text():
    prompt, others = list(range(100, 140)), list(range(500, 530))
    texts = [
        others + prompt[7 : 7 + LEAK] + others,
        others + prompt[7 : 7 + LEAK - 1] + others,
        [*prompt[:6], 7, *prompt[6:13]],
        TEMPLATE + prompt[-LEAK:],
    ]
    found = leaks([np.array(text) for text in texts], [3] * 4, held_out(prompt, others[:5]))
    assert found == [0, 3]


def test_a_leak_across_template_tokens_is_none():
    prompt = list(range(100, 140))
    across = TEMPLATE + prompt[:9] + TEMPLATE + prompt[9:20]
    assert leaks([across, TEMPLATE * 3], [15, 15], held_out(prompt)) == []


def test_a_short_prompt_is_leaked_by_the_same_prompt_only():
    short = [100, 101, 102]
    same, within = TEMPLATE + short + [1, 2], [*TEMPLATE, 5, *short, 1, 2]
    assert leaks([same, within], [18, 19], held_out(short)) == [0]


@pytest.fixture(scope="module")
def tokenizer():
    return outline_pair("embedded", "none").tokenizer


def test_held_out_prompts_of_a_target_without_a_chat_template(tokenizer):
    found = held_out_prompts(tokenizer)
    assert len(found.contents) == 24 + 48
    assert leaks([found.contents[30][5:40], found.contents[2][:200]], [2, 2], found) == [0, 1]


def test_chat_prompts_are_held_out_without_their_template(tokenizer, monkeypatch):
    monkeypatch.setattr(
        tokenizer,
        "chat_template",
        "{% for m in messages %}<system of this model says a great many words to {{ m.role }} here>"
        "{{ m.content }}<end>{% endfor %}",
    )
    found, chat = held_out_prompts(tokenizer), Chat.of(tokenizer)
    assert len(found.contents) == 96 + 48
    mine = chat.prompt([("user", "a bag of flour")])
    theirs = chat.prompt([("user", "Why do ships made of steel float?")])
    assert len(chat.prompt([("user", "")])) > LEAK
    assert leaks([mine, theirs], [len(mine), len(theirs)], found) == [1]
