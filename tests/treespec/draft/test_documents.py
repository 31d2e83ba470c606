"""Documents given with the prompt: their continuations, not the text's own."""

import pytest
import torch

from treespec import TorchCoins
from treespec.draft import Documents
from treespec.errors import InvalidArgument


def tree(documents, text, depth=4, **options):
    drafter = Documents(documents, depth, **options)
    drafter.prefill(torch.tensor(text))
    found = drafter.propose(TorchCoins(0))
    return found.shape.parents, found.token_ids[1:]


def test_only_documents_are_looked_up_and_none_goes_on_into_the_next():
    assert tree([[1, 2, 3], [4, 5]], [9, 1, 2]) == ((-1, 0), (3,))
    assert tree([[1, 2, 3], [4, 5]], [3]) == ((-1,), ())  # 4 begins another document
    assert tree([[4, 5]], [1, 2, 1]) == ((-1,), ())  # the text itself says 2


def test_an_ending_that_only_ends_documents_says_nothing():
    """The shorter suffix is used instead, because something followed it."""
    assert tree([[7, 1, 2], [2, 5]], [1, 2])[1] == (5,)


def test_all_matches_are_one_tree():
    documents = [[1, 2, 3, 4], torch.tensor([1, 2, 5, 6]), [1, 2, 3, 7]]
    found = tree(documents, [1, 2], size=4, branching=2)
    assert found == ((-1, 0, 0, 1), (3, 5, 7))  # 3 twice; then once each: the shorter, the later
    assert tree([[70_000, 80_000]], [70_000])[1] == (80_000,)


def test_without_documents_the_prompt_is_the_only_one():
    """It is forgotten with its text; tokens decoded after it are not looked up."""
    same = Documents(None, 4, size=6, branching=2, vocab_size=9)
    for prompt in ([1, 2, 3, 1, 4, 1], [5, 6, 5]):
        same.prefill(torch.tensor(prompt))
        given = Documents([prompt], 4, size=6, branching=2)
        given.prefill(torch.tensor(prompt))
        for tokens in ([], [2], [7, 8, 7], [5]):
            if tokens:
                same.read(tokens)
                given.read(tokens)
            trees = [source.propose(TorchCoins(0)) for source in (same, given)]
            assert trees[0].token_ids == trees[1].token_ids
            assert trees[0].shape == trees[1].shape
    assert tree(None, [1, 2, 3, 1])[1] == (2, 3, 1)
    same.read([7, 8, 7])
    assert same.propose(TorchCoins(0)).token_ids == (7,)


WRONG = {
    "documents hold no token": {"documents": []},
    "hold no token": {"documents": [[], []]},
    r"documents\[1\]\[0\] = -1 is not a token id": {"documents": [[1], [-1]]},
    r"documents\[0\]\[1\] = 9 is not a token id: ids are 0\.\.8": {
        "documents": [[1, 9]], "vocab_size": 9
    },
    "float32": {"documents": [torch.tensor([1.0])]},
    "places": {"documents": [[1]], "places": 0},
    "ngram": {"documents": [[1]], "ngram": 0},
}  # fmt: skip


@pytest.mark.parametrize("said", WRONG)
def test_wrong_settings(said):
    with pytest.raises(InvalidArgument, match=said):
        Documents(**{"depth": 2} | WRONG[said])
