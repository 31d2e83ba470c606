"""The default drafter of a tree: `NoDrafter` for the root alone, whatever the law."""

import pytest
import torch

from treespec import Law, Sampling, TorchCoins, TreeShape, decode, verify
from treespec.draft import ModelDrafter, NoDrafter, StaticGrowth, make_drafter
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

MODEL = TabularModel(random_table(4, 1), 4)


@pytest.mark.parametrize("law", Law, ids=str)
def test_the_root_alone_needs_no_model(law):
    assert isinstance(make_drafter(MODEL, TreeShape.chain(0), law, Sampling()), NoDrafter)
    assert isinstance(make_drafter(MODEL, TreeShape.chain(1), law, Sampling()), ModelDrafter)


def test_a_growth_may_draft_at_any_time():
    growth = StaticGrowth(TreeShape.chain(0))
    assert isinstance(make_drafter(MODEL, growth, Law.IID, Sampling()), ModelDrafter)


@pytest.mark.parametrize("law", Law, ids=str)
def test_plain_decoding_is_the_same_text_with_and_without_a_model(law):
    """A rule finds no child below the root and draws from the target."""
    texts = []
    for drafter in (
        make_drafter(MODEL, TreeShape.chain(0), law, Sampling()),
        ModelDrafter(MODEL, TreeShape.chain(0), law, Sampling()),
    ):
        steps = decode(
            ModelTarget(TabularModel(random_table(4, 0), 4)), drafter, verify.usual_rule(law, Sampling()),
            torch.tensor([0]), sampling=Sampling(), coins=TorchCoins(0), max_new_tokens=12,
        )  # fmt: skip
        texts.append([token for step in steps for token in step.tokens])
    assert texts[0] == texts[1]
