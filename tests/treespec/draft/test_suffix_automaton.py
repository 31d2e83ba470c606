"""The longest suffix that occurred earlier, and its first place, in amortised constant time."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treespec import TorchCoins
from treespec.draft import SuffixAutomaton
from treespec.draft.suffix_automaton import Automaton
from treespec.errors import InvalidArgument


def by_definition(text):
    for length in range(len(text) - 1, 0, -1):
        for begin in range(len(text) - length):
            if text[begin : begin + length] == text[-length:]:
                return length, begin + length
    return 0, 0


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_the_longest_ending_at_its_first_place(text):
    automaton = Automaton()
    for i, token in enumerate(text):
        automaton.read([token])
        assert automaton.longest() == by_definition(text[: i + 1])


@pytest.mark.parametrize("kind", ["repeats", "random", "fresh"])
def test_steps_and_states_a_token_are_bounded(kind):
    rng, automaton = random.Random(0), Automaton()
    text = {
        "repeats": [1, 2, 1] * 2000, "random": rng.choices(range(5), k=6000), "fresh": range(6000)
    }  # fmt: skip
    automaton.read(list(text[kind]))
    assert automaton.states <= 2 * 6000
    assert automaton.steps <= 4 * 6000


def chain(text, depth=8, **options):
    drafter = SuffixAutomaton(depth, **options)
    drafter.prefill(torch.tensor(text))
    return drafter.propose(TorchCoins(0)).token_ids[1:]


def test_what_is_drafted():
    assert chain([1, 2, 3, 9, 1, 2, 3]) == (9, 1, 2, 3)
    assert chain([1, 2, 3, 9, 1, 2, 3], depth=2) == (9, 1)
    assert chain([1, 8, 1, 9, 1]) == (8, 1, 9, 1)  # the first place, not the latest
    assert chain([1, 8, 1, 9, 1], shortest=2) == ()
    assert chain([70_000, 3, 70_000]) == (3, 70_000)
    assert chain([4]) == ()


@pytest.mark.parametrize("bad", [{"depth": 0}, {"depth": 1, "shortest": 0}], ids=str)
def test_wrong_settings(bad):
    with pytest.raises(InvalidArgument, match=list(bad)[-1]):
        SuffixAutomaton(**bad)
