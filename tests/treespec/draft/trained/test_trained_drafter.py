"""What a trained drafter is given: a head of its kind, and the features of a prompt without its root."""

import head_formats
import marginal_heads
import pytest
import torch
from marginal_heads import states_of, target

from treespec import Law, Sampling, TreeShape
from treespec.draft import BlockDraft, Eagle, Eagle3, Medusa, Mtp
from treespec.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("without_shape_checks")

TREE = (TreeShape.chain(1), Law.IID, Sampling())
TEXT = torch.tensor([5, 17, 80, 2, 41])


@pytest.mark.parametrize("kind", [BlockDraft, Eagle, Eagle3, Medusa, Mtp])
def test_a_model_is_no_head(kind):
    with pytest.raises(
        InvalidArgument, match=f"{kind.__name__} drafts with .* given a TransformersModel: read"
    ):
        kind(target(), *TREE)


def test_nor_is_a_head_that_is_run_otherwise(tmp_path):
    one = head_formats.head_of("eagle", tmp_path / "eagle", target())
    other = marginal_heads.FORMATS["medusa"].read(tmp_path / "medusa")
    with pytest.raises(InvalidArgument, match="given a HeadModel of family 'eagle'"):
        Medusa(one, *TREE)
    with pytest.raises(InvalidArgument, match="given a MedusaHeads of family 'medusa'"):
        Eagle(other, *TREE)


@pytest.fixture(params=["eagle3, specforge", "dflash"])
def drafter(request, tmp_path):
    name = request.param
    if name in head_formats.FORMATS:
        head = head_formats.head_of(name, tmp_path, target())
        return head_formats.FORMATS[name].drafter(head, *TREE)
    form = marginal_heads.FORMATS[name]
    return form.drafter(form.read(tmp_path), *TREE)


@pytest.mark.parametrize(
    "part",
    [
        lambda states: states[1:],
        lambda states: torch.cat([states, states[:1]]),
        lambda states: states[:, :1],
        lambda states: states.flatten(1),
        lambda states: states.tolist(),
    ],
    ids=["too short", "with the root's", "too few states", "side by side", "a list"],
)
def test_features_are_those_of_all_tokens_but_the_root(drafter, part):
    states = states_of(target(), drafter.reads, TEXT[:-1].tolist())
    drafter.prefill(TEXT, states)
    with pytest.raises(InvalidArgument, match=r"5 tokens must have shape \[4, \d, H\], .* are "):
        drafter.prefill(TEXT, part(states))
