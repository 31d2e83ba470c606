"""Values that are not rates are refused, and numbers of all kinds are taken."""

import numpy as np
import pytest
import torch

from treespec.search import expected_tokens, optimal_frontier, optimal_tree
from treespec.search.errors import InvalidAcceptance
from treespec.tree import TreeShape

NONE = {
    "text": ["x"],
    "complex": [0.5 + 1j],
    "ragged": [[0.5], [0.4, 0.1]],
    "on meta": torch.tensor([0.5], device="meta"),
    "sparse": torch.tensor([0.5]).to_sparse(),
}


@pytest.mark.parametrize("rates", NONE)
@pytest.mark.parametrize(
    "call",
    [
        lambda rates: optimal_tree(rates, 4),
        lambda rates: optimal_frontier(rates, 4),
        lambda rates: expected_tokens(TreeShape.chain(1), rates),
    ],
    ids=["optimal_tree", "optimal_frontier", "expected_tokens"],
)
def test_refused(call, rates):
    with pytest.raises(InvalidAcceptance, match="must hold numbers"):
        call(NONE[rates])


@pytest.mark.parametrize(
    "rates",
    [[0.5, 0.25], (0.5, 0.25), np.array([0.5, 0.25], dtype=np.float16), [np.float32(0.5), 0.25],
     torch.tensor([0.5, 0.25], dtype=torch.bfloat16), [torch.tensor(0.5), torch.tensor(0.25)]],
)  # fmt: skip
def test_numbers_of_all_kinds_are_taken(rates):
    assert expected_tokens(TreeShape.expansion([2]), rates) == 1.75
