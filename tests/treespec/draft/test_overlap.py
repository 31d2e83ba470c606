"""Drafting before the previous tree is decided (PEARL): the law of what is kept, and the coins it uses."""

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.step import Verdict
from treespec.target import ModelTarget
from treespec.testing import TabularModel, output_law, random_table, target_law
from treespec.tree import TokenTree

PROMPT = (0, 1)


def table(seed, vocab=2):
    return TabularModel(random_table(vocab, seed), vocab)


def without_bonus(tree, probs, coins):
    """Where the path ends at a leaf, that token is the next root: the tree below it is being drafted."""
    verdict = verify.rrs(tree, probs, coins)
    if tree.shape.children[verdict.path[-1]]:
        return verdict
    return Verdict(verdict.path[:-1], tree.token_ids[verdict.path[-1]])


class Ahead:
    """Drafts one token, and the next one as if the first were accepted.

    Args:
        draft: the draft's table.
        overlap: whether the next token is drafted before the first is decided, or in its turn.
        ahead: table from which tokens are drafted before their turn.
        said: table whose rows are stated for these.
        keeps: whether to keep such a token and row, if the first token was accepted.
    """

    max_depth, max_length = 1, 10**6

    def __init__(self, draft, overlap=True, ahead=None, said=None, keeps=lambda token, row: True):
        self.draft, self.overlap, self.keeps = draft, overlap, keeps
        self.ahead = ahead or draft
        self.said = said or self.ahead

    def prefill(self, tokens):
        self.text, self.kept = tuple(tokens.tolist()), None

    def propose(self, coins):
        token, row = self.kept or self.drawn(self.draft, self.draft, self.text, coins)
        text = (*self.text, token)
        self.next = self.drawn(self.ahead, self.said, text, coins) if self.overlap else None
        self.drafted = token
        return TokenTree(TreeShape.chain(1), torch.tensor(text[-2:]), row[None], Law.IID)

    def drawn(self, model, said, text, coins):
        token = coins.fork(f"draft {len(text)}").draw(model.row(text).softmax(-1))
        return token, said.row(text).softmax(-1)

    def commit(self, step):
        self.text += tuple(step.emitted_ids)
        accepted = step.emitted_ids == [self.drafted]
        self.kept = self.next if accepted and self.overlap and self.keeps(*self.next) else None


def largest_error(make):
    target = table(3)
    found = output_law(
        without_bonus, TreeShape.chain(1), Law.IID, target=target, draft=target, tokens=3, prompt=PROMPT,
        draft_with=lambda *_: make(),
    )  # fmt: skip
    return float((found.probs - target_law(target, PROMPT, 3, Sampling())).abs().max())


@pytest.mark.usefixtures("without_shape_checks")
def test_a_step_that_is_accepted_whole_may_do_without_its_bonus():
    """The last accepted draft is the next root, and no bonus is drawn."""
    shape, ended = TreeShape.from_parents([-1, 0, 0, 1]), set()

    def watched(tree, probs, coins):
        verdict = verify.rrs(tree, probs, coins)
        if not tree.shape.children[verdict.path[-1]]:
            ended.add(verdict.accepted)
        return without_bonus(tree, probs, coins)

    target = table(3)
    found = output_law(watched, shape, Law.IID, target=target, draft=table(4), tokens=3)
    right = target_law(target, (0,), 3, Sampling())
    assert float((found.probs - right).abs().max()) <= 1e-12
    assert ended == {1, 2}


@pytest.mark.usefixtures("without_shape_checks")
def test_a_token_that_was_drafted_ahead_is_kept_by_outcome_only():
    """Kept for its own probability, it would no longer have the law of its row."""
    assert largest_error(lambda: Ahead(table(4))) <= 1e-12
    probable = lambda token, row: row[token] > 0.5  # noqa: E731
    assert largest_error(lambda: Ahead(table(4), keeps=probable)) > 0.01


@pytest.mark.usefixtures("without_shape_checks")
def test_a_token_that_was_drafted_ahead_otherwise_has_the_row_it_was_drafted_from():
    """As in SSD (arXiv:2603.03251), whose guesses are drawn from changed rows."""
    changed = table(5)
    assert largest_error(lambda: Ahead(table(4), ahead=changed)) <= 1e-12
    assert largest_error(lambda: Ahead(table(4), ahead=changed, said=table(4))) > 0.01


class OneStream(TorchCoins):
    """Coins without forks."""

    def fork(self, name):
        return self


@pytest.mark.parametrize("coins", [TorchCoins, OneStream])
def test_forks_make_ids_independent_of_what_overlaps(coins):
    def ids(overlap):
        steps = decode(
            ModelTarget(table(3, 9)), Ahead(table(4, 9), overlap), without_bonus, torch.tensor(PROMPT),
            sampling=Sampling(), coins=coins(7), max_new_tokens=100,
        )  # fmt: skip
        return [token for step in steps for token in step.tokens]

    assert (ids(overlap=True) == ids(overlap=False)) == (coins is TorchCoins)
