"""DDTree as a growth: the draft's rows along its best chain, and those that the model keeps."""

import pytest
import torch
from following import Follows

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter
from treespec.errors import InvalidTree
from treespec.search import DDTree, marginal_tree
from treespec.target import ModelTarget
from treespec.testing import (
    TabularModel,
    assert_lossless,
    output_law,
    random_table,
    target_law,
)

SURE = Law.DETERMINISTIC
PROMPT = (0, 1, 2, 0)


def table(seed, vocab=4):
    return TabularModel(random_table(vocab, seed), vocab)


class Counted:
    """A model that counts the rows it runs."""

    def __init__(self, model):
        self._model, self.rows = model, 0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def fresh(self):
        self._model = self._model.fresh()
        return self

    def run(self, tokens, parents, first=0):
        self.rows += len(tokens)
        return self._model.run(tokens, parents, first)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.0)], ids=str)
def test_the_tree_is_that_of_the_rows_along_the_best_chain(sampling):
    model = Counted(table(4))
    drafter = ModelDrafter(model, DDTree(12, 3), SURE, sampling)
    drafter.prefill(torch.tensor(PROMPT))
    tree = drafter.propose(TorchCoins(0))
    text, rows = PROMPT, []
    for _ in range(3):
        rows.append(random_table(4, 4)(text).softmax(-1))
        text = (*text, int(rows[-1].argmax()))
    wanted = marginal_tree(torch.stack(rows), PROMPT[-1], 12)
    assert (tree.shape, tree.token_ids) == (wanted.shape, wanted.token_ids)
    assert not tree.shape.is_chain
    assert model.rows == 3  # three rows for twelve nodes


class FollowingModel(Follows, ModelDrafter):
    pass


@pytest.mark.parametrize("growth", [DDTree(10, 3), DDTree(4, 4, 1), DDTree(3, 5), DDTree(1, 2)])
def test_the_model_follows_the_text_on_and_off_its_chain(growth):
    drafter, kept = FollowingModel(table(5), growth, SURE, Sampling()), set()
    for step in decode(
        ModelTarget(table(3)), drafter, verify.onehot, torch.tensor(PROMPT), sampling=Sampling(),
        coins=TorchCoins(0), max_new_tokens=60,
    ):  # fmt: skip
        kept.add(tuple(step.tree.shape.rank_path(node) for node in step.verdict.path)[-1])
        assert step.tree.shape.size <= growth.size
        assert step.tree.shape.depth <= growth.depth
    if growth.size == 10:
        assert {(), (0,), (1,), (0, 0)} <= kept  # on the chain, off it, and below both


@pytest.mark.parametrize("rule", [verify.naive, verify.onehot], ids=str)
def test_it_keeps_the_law(rule):
    target, draft = table(3, 3), table(4, 3)
    found = output_law(
        rule, DDTree(5, 2), SURE, target=target, draft=draft, tokens=3, prompt=(0, 1)
    )
    right = target_law(target, (0, 1), 3, Sampling())
    assert float((found.probs - right).abs().max()) <= 1e-12


def test_drawn_children_are_refused():
    for law in (Law.IID, Law.WITHOUT_REPLACEMENT):
        with pytest.raises(InvalidTree, match="made for deterministic only"):
            ModelDrafter(table(4), DDTree(5, 2), law, Sampling())


class OfMarginals:
    """A growth that does not state its laws."""

    max_depth = 2

    def next(self, shape, probs):
        raise AssertionError("a drafter asks for the tree alone")

    def tree_over(self, marginals, root):
        assert len(marginals) == self.max_depth
        return marginal_tree(marginals, root, 4)


def test_trees_of_marginals_are_of_best_tokens_whatever_a_growth_states():
    """Children are not drawn from their parents' rows, so no other law would describe them."""
    for law in (Law.IID, Law.WITHOUT_REPLACEMENT):
        with pytest.raises(
            InvalidTree, match=r"'OfMarginals' is not made for .* deterministic only"
        ):
            ModelDrafter(table(4), OfMarginals(), law, Sampling())
    proof = assert_lossless(verify.onehot, growths=[OfMarginals()], laws=Law, tables=1)
    assert (
        proof.cases
        == assert_lossless(verify.onehot, growths=[OfMarginals()], laws=[SURE], tables=1).cases
    )


def test_nothing_improbable_is_drafted():
    """Tokens outside of top-k have no probability, so trees end early."""
    drafter = ModelDrafter(table(4), DDTree(64, 2), SURE, Sampling(top_k=2))
    drafter.prefill(torch.tensor(PROMPT))
    assert drafter.propose(TorchCoins(0)).shape == TreeShape.expansion([2, 2])
