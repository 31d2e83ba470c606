"""Jacobi decoding: the chain from the last rows, and the maximum number of passes."""

from itertools import accumulate

import pytest
import torch

from treespec import Sampling, TorchCoins, decode, verify
from treespec.draft import Jacobi
from treespec.draft.jacobi import argmax_tokens
from treespec.errors import InvalidArgument
from treespec.step import Scores, Step, Verdict
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table


def steps_of(row, vocab, prompt, tokens, depth, kind=Jacobi):
    return list(decode(
        ModelTarget(TabularModel(row, vocab)), kind(depth), verify.greedy, torch.tensor(prompt),
        sampling=Sampling(temperature=0.0), coins=TorchCoins(0), max_new_tokens=tokens,
    ))  # fmt: skip


class Forgets(Jacobi):
    """Guesses from the text alone and ignores the rows."""

    def commit(self, step):
        super().commit(step)
        self._guesses = []


class OneBehind(Jacobi):
    """Guesses for each position the token of the position before."""

    def commit(self, step):
        super().commit(step)
        self._guesses = argmax_tokens(step)[len(step.emitted_ids) - 1 : -1]


class NotAgain(Jacobi):
    """Keeps its old guesses instead of taking those of the rows."""

    def commit(self, step):
        super().commit(step)
        self._guesses = list(step.tree.token_ids[len(step.emitted_ids) + 1 :])


def last_places(kind, reach):
    """The last final position after each pass, for a target that depends on the last `reach` tokens."""
    rows = torch.eye(53, dtype=torch.float64)
    row = lambda context: rows[(7 * context[-reach] + 3) % 53]  # noqa: E731
    steps = steps_of(row, 53, [5, 11, 30, 2], 1 + 4 * reach, 2 * reach, kind)
    return list(accumulate(len(step.tokens) for step in steps))


@pytest.mark.parametrize("reach", [1, 2, 3, 4])
def test_each_pass_makes_as_many_places_final_as_the_target_looks_back(reach):
    """Position i is final after pass i if it depends on the previous token, earlier if on older tokens.

    The first pass guesses all positions right that depend on the prompt, and emits the first. Each pass
    emits the positions that the previous pass guessed right and one more, and guesses as many after them.
    """
    right = [1 + reach * passed for passed in range(5)]
    assert last_places(Jacobi, reach) == right
    for broken in (Forgets, OneBehind, NotAgain) if reach > 1 else ():
        assert len(last_places(broken, reach)) > len(right)


def test_positions_that_do_not_depend_on_guesses_are_right_after_one_pass():
    """The target counts up by position, whatever the tokens, so the second chain is fully accepted."""
    rows = torch.eye(20, dtype=torch.float64)
    steps = steps_of(lambda context: rows[len(context)], 20, [0], 9, 3)
    assert [len(step.tokens) for step in steps[:2]] == [1, 4]
    assert steps[1].tokens == (2, 3, 4, 5)


def test_the_chain_is_of_the_rows_after_the_accepted_nodes():
    before, after = steps_of(random_table(50, 0), 50, [3, 1, 4], 2, 4)
    best = before.scores.logits.argmax(-1).tolist()
    accepted = before.verdict.accepted
    assert after.tree.token_ids[0] == best[accepted]
    assert list(after.tree.token_ids[1 : 5 - accepted]) == best[accepted + 1 :]
    assert after.tree.shape.size == 5


def test_depth():
    with pytest.raises(InvalidArgument, match="depth"):
        Jacobi(0)


def test_guesses_move_on_by_tokens_of_other_sources_too():
    """A guess belongs to its position: after three emitted tokens, those of the last two nodes are left."""
    drafter = Jacobi(4)
    drafter.prefill(torch.tensor([4, 5, 6]))
    tree = drafter.propose(TorchCoins(0))
    scores = Scores(torch.eye(9)[[1, 2, 3, 4, 5]])
    drafter.commit(Step(tree, Verdict((0, 1), 8), scores, (), further=(7,)))
    assert drafter.propose(TorchCoins(0)).token_ids == (8, 4, 5, 7, 8)
