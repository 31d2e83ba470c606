"""Jacobi decoding: the chain of the last rows, and how many passes it takes at most."""

import pytest
import torch

from treespec import Sampling, TorchCoins, decode, verify
from treespec.draft import Jacobi
from treespec.errors import InvalidArgument
from treespec.step import Scores, Step, Verdict
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table


def steps_of(row, vocab, prompt, tokens, depth):
    return list(decode(
        ModelTarget(TabularModel(row, vocab)), Jacobi(depth), verify.greedy, torch.tensor(prompt),
        sampling=Sampling(temperature=0.0), coins=TorchCoins(0), max_new_tokens=tokens,
    ))  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_n_tokens_take_at_most_n_passes(seed):
    assert len(steps_of(random_table(4, seed), 4, [0, 1], 12, 3)) <= 12


def test_positions_that_do_not_depend_on_guesses_are_right_after_one_pass():
    """The target counts up by position, whatever the tokens: the second chain is accepted whole."""
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
    """A guess is for its place: behind three emitted tokens those of the last two nodes are left."""
    drafter = Jacobi(4)
    drafter.prefill(torch.tensor([4, 5, 6]))
    tree = drafter.propose(TorchCoins(0))
    scores = Scores(torch.eye(9)[[1, 2, 3, 4, 5]])
    drafter.commit(Step(tree, Verdict((0, 1), 8), scores, (), further=(7,)))
    assert drafter.propose(TorchCoins(0)).token_ids == (8, 4, 5, 7, 8)
