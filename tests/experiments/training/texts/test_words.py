"""Templates and the words in them."""

import random
import re

import pytest

from treespec.experiments.training.texts.words import WORDNET, Words, read_words


@pytest.fixture(scope="module")
def words():
    return read_words(WORDNET / "missing")


def test_every_template_can_be_filled(words):
    assert len(words.templates) >= 200
    assert len(set(words.templates)) == len(words.templates)
    slots = {name for t in words.templates for name in re.findall(r"\{([a-z_]+)\d*\}", t)}
    assert slots <= set(words.slots)
    assert set(words.slots) - slots == set()
    prompts = [words.prompt(random.Random(seed)) for seed in range(600)]
    assert not any(re.search(r"\{[a-z]+\d*\}", prompt) for prompt in prompts)
    assert len(set(prompts)) > 590


def test_a_slot_is_one_word_and_two_slots_of_a_kind_are_two():
    words = Words(("{noun} {noun} {noun2}", "A {noun} is a {noun2}"), {"noun": ("egg", "owl")}, "")
    filled = {words.prompt(random.Random(seed)) for seed in range(40)}
    assert filled == {"egg egg owl", "owl owl egg", "An egg is an owl", "An owl is an egg"}


def test_nouns_of_wordnet(tmp_path):
    index = tmp_path / "index.noun"
    index.write_text(
        "  1 This software and database is being provided\n"
        "bank n 3 2 @ ~ 3 2 08420278 09213565 02787772  \n"
        "rare_bird n 1 2 @ ~ 1 1 13742358  \n"
        "dodecanol n 1 1 @ 1 0 14930670  \n"
        "river n 1 4 @ ~ #p %p 1 1 09411430  \n"
    )
    found = read_words(index)
    assert found.slots["noun"] == ("bank", "river")
    assert found.from_wordnet
    assert found.sha256 != read_words(tmp_path / "none").sha256
