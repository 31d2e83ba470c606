"""Every function that takes tensors refuses those whose numbers cannot be read, in one of our sentences."""

import pytest
import torch

import attention_masks as masks
from attention_masks.errors import AttentionMaskError
from treespec import Law, TokenTree, TorchCoins, TreeShape, verify
from treespec.errors import TreespecError

pytestmark = pytest.mark.usefixtures("without_shape_checks")

KINDS = {
    "sparse": lambda tensor: tensor.to_sparse(),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor.float()]),
    "quantized": lambda tensor: torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.quint8),
    "meta": lambda tensor: tensor.to("meta"),
}
ROW = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
TREE = TokenTree(TreeShape.chain(1), torch.tensor([0, 1]), ROW[None], Law.IID)


def drafted(rule):
    law = min(rule.laws, key=str)
    if law is Law.HUB:
        return TokenTree(TreeShape.expansion([2]), torch.tensor([0, 0, 1]), ROW[None], law)
    rows = None if law is Law.DETERMINISTIC else ROW[None]
    return TokenTree(TreeShape.chain(1), torch.tensor([0, 1]), rows, law)


DOORS = {
    "tokens": lambda of: TokenTree(TreeShape.chain(1), of(torch.tensor([0, 1])), ROW[None], "iid"),
    "draft_probs": lambda of: TokenTree(
        TreeShape.chain(1), torch.tensor([0, 1]), of(ROW[None]), "iid"
    ),
    "optimal_acceptance's target": lambda of: verify.optimal_acceptance(of(ROW), ROW, 2, Law.IID),
    "optimal_acceptance's draft": lambda of: verify.optimal_acceptance(ROW, of(ROW), 2, Law.IID),
    "rows of a list": lambda of: verify.rrs(TREE, [of(ROW), of(ROW)], TorchCoins(0)),
    "parents": lambda of: masks.topology(of(torch.tensor([-1, 0, 0]))),
    "packed": lambda of: masks.unpacked(of(torch.tensor([[1]])), 1),
} | {
    f"rows of {rule}": lambda of, rule=rule: rule(
        drafted(rule), of(torch.eye(3)[[1, 1, 1]]), TorchCoins(0)
    )
    for rule in verify.RULES.values()
}


LATE = ("tokens", "draft_probs", "packed")
"""Accepted on any device, because these are not read at once."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_refused_with_what_to_give(door, kind):
    if kind == "meta" and door in LATE:
        pytest.skip("a device whose numbers are read later, if at all")
    with pytest.raises((TreespecError, AttentionMaskError), match=rf"{kind}.*(give|pass)"):
        DOORS[door](KINDS[kind])
