"""Drafts that write some of the target's tokens."""

from dataclasses import replace

import pytest
import torch
from tiny_encoder_decoders import encoder_decoder
from tiny_models import build
from two_vocabularies import SHARED, draft_table, intersection

from treespec import Law, Sampling, TreeShape, verify
from treespec.draft import ModelDrafter
from treespec.errors import UnsupportedModel
from treespec.models.some_tokens import Intersection, SomeTokens
from treespec.models.transformers_model import TransformersModel
from treespec.testing import TabularModel, output_law, random_table, target_law

P = torch.tensor([0.3, 0.4, 0.3], dtype=torch.float64)
Q = torch.tensor([0.3, 0.05, 0.6, 0.05], dtype=torch.float64)
"""Of b, bb, a, ba: a has .6 and b .3, as in the toy of the paper's trap."""

TOY_TARGET = TabularModel(lambda _: P.log(), 3)
TOY_DRAFT = Intersection(TabularModel(lambda _: Q.log(), 4), SHARED)


class Unnormalised(ModelDrafter):
    """A planted mistake: children are drawn from the shared tokens, and tested with the draft's own row."""

    def propose(self, coins):
        tree = super().propose(coins)
        own = tree.draft_probs * 0.9
        own[..., 2] = (
            0.1  # what it gives to tokens of its own stands where the target has another one
        )
        return replace(tree, draft_probs=own).vouched()


@pytest.mark.parametrize(
    ("kind", "law"), [(ModelDrafter, (0.3, 0.4, 0.3)), (Unnormalised, (0.333, 0.444, 0.222))]
)
def test_a_row_must_be_renormalised_on_the_shared_tokens(kind, law):
    found = output_law(
        verify.chain, TreeShape.chain(1), Law.IID, target=TOY_TARGET, draft=TOY_TARGET, tokens=1,
        draft_with=lambda *_: kind(TOY_DRAFT, TreeShape.chain(1), Law.IID, Sampling()),
    )  # fmt: skip
    assert found.probs.flatten().tolist() == pytest.approx(law, abs=1e-3)


def test_the_draft_reads_its_own_ids_of_the_text():
    """The prompt as its tokenizer splits it, later tokens piece by piece, rejected ones not at all."""
    model, given = intersection(), draft_table().row
    model.prefill(torch.tensor([0, 1, 0]))  # "aba" is a, ba
    first = model.run(torch.tensor([2, 1, 0]), (-1, 0, 0)).logits  # below "ab": b, and a
    assert torch.equal(first[2, [0, 1]], given((2, 3, 2, 0, 2))[[2, 0]])
    assert (first[:, 2] < -1e300).all()
    model.keep([0, 1])
    assert model.length == 5
    row = model.run(torch.tensor([0]), (-1,)).logits[0]
    assert torch.equal(row[[0, 1]], given((2, 3, 2, 0, 0, 2))[[2, 0]])


def test_a_text_beyond_the_context_is_continued():
    table = TabularModel(random_table(4, 1), 4, max_length=8)
    model = Intersection(table, SHARED)
    model.prefill(torch.tensor([0, 1] * 10))
    for _ in range(20):
        model.run(torch.tensor([2]), (-1,))
        model.keep([0])
        assert model.length <= 8


def test_trimmed_rows_keep_the_law():
    trimmed = SomeTokens(TabularModel(random_table(2, 5), 2), torch.tensor([2, 0]), 3)
    target, shape, law = (
        TabularModel(random_table(3, 3), 3),
        TreeShape.expansion([2]),
        Law.WITHOUT_REPLACEMENT,
    )
    found = output_law(
        verify.rrsw, shape, law, target=target, draft=target, tokens=2, prompt=(0, 1),
        draft_with=lambda *_: ModelDrafter(trimmed, shape, law, Sampling()),
    )  # fmt: skip
    right = target_law(target, (0, 1), 2, Sampling())
    assert float((found.probs - right).abs().max()) <= 1e-12


def test_a_trimmed_model_reads_ids_beyond_its_embeddings_as_the_whole_one_does():
    whole = TransformersModel(build("llama"), vocab_size=300)
    beyond = torch.tensor([1, 299, 2])
    assert whole._embeddings < 299
    rows = []
    for model in (whole.fresh(), whole.of_tokens(torch.tensor([0, 5])).fresh()):
        model.prefill(beyond)
        rows.append(model.run(torch.tensor([298]), (-1,)).logits[0, [0, 5]])
    torch.testing.assert_close(*rows)


def test_encoder_decoders_are_not_trimmed():
    with pytest.raises(UnsupportedModel, match="t5 models are encoder-decoders"):
        TransformersModel(encoder_decoder("t5")).of_tokens(torch.tensor([0, 5]))
