"""Values that numpy would convert, but are not rates: booleans, complex numbers, text, empty tensors."""

import numpy as np
import pytest
import torch

from treespec.search import NodeRates, expected_tokens, optimal_frontier, optimal_tree
from treespec.search.errors import InvalidAcceptance
from treespec.tree import TreeShape

NONE = {
    "truth values": [True, False],
    "a truth value among numbers": [0.5, True],
    "truth values of numpy": np.array([True, False]),
    "truth values of torch": torch.tensor([True, False]),
    "objects": np.array([1, True], dtype=object),
    "complex": [0.5 + 0j],
    "complex of numpy": np.array([[0.5 + 0.1j]]),
    "complex of torch": torch.tensor([0.5 + 1j]),
    "a complex scalar": np.complex64(0.5),
    "text": ["0.5"],
    "text of numpy": np.array(["0.5"]),
}


@pytest.mark.parametrize("rates", NONE)
@pytest.mark.parametrize(
    "call",
    [
        lambda rates: optimal_tree(rates, 4),
        lambda rates: optimal_frontier(rates, 4),
        lambda rates: expected_tokens(TreeShape.chain(1), rates),
        NodeRates,
    ],
    ids=["optimal_tree", "optimal_frontier", "expected_tokens", "NodeRates"],
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
