"""Retrieval: the longest suffix in the datastore, and its most frequent continuations."""

import pytest
import torch

from treespec import TorchCoins
from treespec.draft import Datastore, Retrieval
from treespec.errors import InvalidArgument

WIDE = {"size": 65, "branching": 64}


@pytest.fixture
def drafted(tmp_path):
    def draft(texts, text, depth=10, **options):
        store = Datastore.build(tmp_path / "x", texts, vocab_size=10**6)
        drafter = Retrieval(store, depth, **options)
        drafter.prefill(torch.tensor(text))
        tree = drafter.propose(TorchCoins(0))
        return tree.shape.parents, tree.token_ids[1:]

    return draft


def test_two_disjoint_continuations_of_ten_are_twenty_nodes(drafted):
    """The original cuts by summed path lengths and gets 15."""
    parents, tokens = drafted([[1, 2, *range(10, 20)], [1, 2, *range(20, 30)]], [5, 1, 2], **WIDE)
    assert sorted(tokens) == list(range(10, 30))
    assert parents[1:3] == (0, 0)


def test_ties_go_by_count_then_shorter_then_token_id(drafted):
    texts = [[1, 2, 9, 9], [1, 2, 9, 8], [1, 2, 7, 3], [1, 2, 5, 4], [1, 2, 5, 4]]
    assert drafted(texts, [1, 2], 2, size=7, branching=9) == (
        (-1, 0, 0, 1, 0, 4, 2), (5, 9, 4, 7, 3, 8),
    )  # fmt: skip


def test_the_longest_ending_wins_down_to_the_shortest(drafted):
    texts = [[1, 2, 3, 7], [9, 2, 3, 8], [9, 2, 3, 8], [3, 6]]
    assert drafted(texts, [1, 2, 3])[1] == (7,)
    assert drafted(texts, [4, 2, 3])[1] == (8,)
    assert drafted(texts, [5, 3])[1] == ()  # one token is less than two
    assert drafted(texts, [5, 3], shortest=1)[1] == (8,)
    assert drafted(texts, [1, 2, 3], longest=2)[1] == (8,)


def test_continuations_end_with_their_text(drafted):
    assert drafted([[1, 2, 3], [4, 5]], [1, 2], **WIDE)[1] == (3,)
    assert drafted([[1, 2]], [1, 2], **WIDE)[1] == ()


def test_ids_above_two_bytes(drafted):
    assert drafted([[65_535, 65_536, 131_072]], [65_535, 65_536])[1] == (131_072,)


def test_of_many_places_some_are_asked(drafted):
    texts = [[1, 2, 10 + i % 4] for i in range(40)]
    assert drafted(texts, [1, 2], hits=8, **WIDE)[1] == (10, 11, 12, 13)


def test_wrong_settings(tmp_path):
    store = Datastore.build(tmp_path / "x", [[1, 2]], vocab_size=3)
    for said, given in {
        "shortest": {"shortest": 17},
        "sorted by 32": {"depth": 20},
        "hits": {"hits": 0},
        "needs a size": {"branching": 2},
    }.items():
        with pytest.raises(InvalidArgument, match=said):
            Retrieval(store, **given)
