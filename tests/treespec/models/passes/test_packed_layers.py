"""Linear layers of a model as products with packed weights."""

import copy

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from treespec.models.packed_weights import PackedWeights
from treespec.models.passes import compiled_pass
from treespec.models.passes.packed_layers import _groups, packed_linears

pytestmark = pytest.mark.skipif(
    compiled_pass.missing_for_compiling() is not None, reason="no C++ compiler"
)
SINGLE, BRAIN = torch.float32, torch.bfloat16


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(6, 40), nn.Linear(6, 8)
        self.v_proj, self.o_proj = nn.Linear(6, 8, bias=False), nn.Linear(6, 6)
        self.old, self.odd = Conv1D(10, 6), nn.Linear(5, 6)
        self.to(dtype).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        layers = (self.q_proj, self.k_proj, self.v_proj, self.o_proj, self.old)
        return [*(layer(x) for layer in layers), self.odd(x[..., :5])]


@pytest.mark.parametrize(("dtype", "packed"), [(SINGLE, 6), (BRAIN, 5), (torch.float16, 0)])
def test_layers_give_what_they_gave_and_are_left_as_they_were(dtype, packed):
    block, x = Block(dtype), torch.randn(2, 3, 6).to(dtype)
    expected, before = block(x), [*block.state_dict()]
    known = PackedWeights(block)
    with packed_linears(block, known):
        copies = [module.packed for module in block.modules() if "packed" in module._buffers]
        assert len(copies) == packed
        assert len({copy.data_ptr() for copy in copies}) == max(packed - 2, 0)  # three are one
        for mine, true in zip(block(x), expected, strict=True):
            torch.testing.assert_close(mine, true)
        with packed_linears(block, known):  # packed layers are not packed again
            assert copies == [m.packed for m in block.modules() if "packed" in m._buffers]
    assert [*block.state_dict()] == before
    assert not any("forward" in module.__dict__ for module in block.modules())
    assert all(map(torch.equal, block(x), expected))


def test_layers_of_other_inputs_are_products_of_their_own():
    block = nn.Module()
    block.q_proj, block.k_proj, block.v_proj = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(4, 8)
    assert [len(group) for group in _groups(block)] == [1, 1, 1]


def test_copies_of_a_whole_serve_its_parts():
    block = Block(SINGLE)
    known = PackedWeights(block)
    with packed_linears(block, known):
        copies = {id(module.packed) for module in block.modules() if "packed" in module._buffers}
        size = known.bytes
        part = nn.ModuleList([copy.copy(block.old), copy.copy(block.o_proj)])
        for layer in part:
            layer._buffers = {}
            del layer.forward
        with packed_linears(part, known):
            assert {id(layer.packed) for layer in part} < copies
        assert known.bytes == size


def test_layers_are_left_as_they_were_whatever_happens():
    block = Block(SINGLE)
    with pytest.raises(KeyboardInterrupt), packed_linears(block, PackedWeights(block)):
        raise KeyboardInterrupt
    assert not any("forward" in module.__dict__ for module in block.modules())
    assert not any("packed" in module._buffers for module in block.modules())


def test_one_layer_under_two_names_and_layers_of_others():
    block = Block(SINGLE)
    block.k_proj = block.v_proj  # then there is no product of three
    block.odd.weight = nn.Parameter(
        block.odd.weight.detach().as_subclass(Other), requires_grad=False
    )
    with packed_linears(block, PackedWeights(block)):
        sizes = {
            name: layer.packed.shape[0]
            for name, layer in block.named_children()
            if "packed" in layer._buffers
        }
    assert sizes == {"q_proj": 2, "k_proj": 1, "o_proj": 1, "old": 1}


class Other(torch.Tensor):
    """Weights of another library."""
