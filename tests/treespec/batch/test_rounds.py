"""Rounds: every text makes one step before any makes its next, in one pass of the target."""

from contextlib import contextmanager

import pytest
import torch

from treespec import Law, TorchCoins, TreeShape, verify
from treespec.batch import Failed, Text, decode_many, decode_rounds
from treespec.draft import ModelDrafter
from treespec.sampling.distributions import Sampling
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

SAMPLING = Sampling(temperature=1.0)
TABLES = random_table(3, seed=0), random_table(3, seed=1)


class Alone(TabularModel):
    """Its passes cannot be joined."""

    joins = None


def text(i, new=6, kind=TabularModel, stop=lambda ids: False):
    shape = TreeShape.expansion([2, 1])
    drafter = ModelDrafter(TabularModel(TABLES[1], 3), shape, Law.WITHOUT_REPLACEMENT, SAMPLING)
    target = ModelTarget(kind(TABLES[0], 3))
    prompt = torch.tensor([0, 1, 2][: 1 + i % 3])
    return Text(target, drafter, verify.rrsw, prompt, SAMPLING, TorchCoins(i), new, stop)


class Counting:
    def __init__(self):
        self.seen = []

    @contextmanager
    def text(self, text):
        yield

    @contextmanager
    def joined(self, texts, drafts, nodes):
        self.seen.append((tuple(texts), drafts, nodes))
        yield


@pytest.mark.parametrize("kind", [TabularModel, Alone])
def test_every_open_text_makes_one_step_a_round(kind):
    lengths = (3, 9, 6)
    steps = {i: [*text(i, new, kind).steps()] for i, new in enumerate(lengths)}
    rounds = [*decode_rounds([text(i, new, kind) for i, new in enumerate(lengths)])]
    for number, made in enumerate(rounds):
        assert [i for i, _ in made] == [i for i in steps if number < len(steps[i])]
        assert [step.tokens for _, step in made] == [steps[i][number].tokens for i, _ in made]
    flat = [(i, step.tokens) for made in rounds for i, step in made]
    many = decode_many([text(i, new, kind) for i, new in enumerate(lengths)])
    assert [(i, step.tokens) for i, step in many] == flat


def test_a_watch_sees_one_pass_of_the_target_a_round():
    watch = Counting()
    rounds = [*decode_rounds([text(i) for i in range(3)], watch=watch)]
    verified = [(texts, nodes) for texts, drafts, nodes in watch.seen if not drafts]
    assert [texts for texts, _ in verified] == [tuple(i for i, _ in made) for made in rounds]
    assert [nodes for _, nodes in verified] == [
        sum(step.tree.shape.size for _, step in made) for made in rounds
    ]
    assert any(drafts for _, drafts, _ in watch.seen)


def test_a_text_begins_when_a_place_is_free():
    rounds = [*decode_rounds([text(i) for i in range(3)], places=2)]
    assert all(len(made) <= 2 for made in rounds)
    assert {i for i, _ in rounds[0]} == {0, 1}
    assert {i for made in rounds for i, _ in made} == {0, 1, 2}


def test_a_text_that_fails_is_told_in_its_round():
    def broken(ids):
        raise RuntimeError("stop")

    rounds = [*decode_rounds([text(0), text(1, stop=broken)])]
    assert isinstance(rounds[0][1][1], Failed)
    assert [i for made in rounds[1:] for i, _ in made] == [0] * (len(rounds) - 1)
