"""Products with packed weights, against float64 within a bound that its rounding allows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from treespec.models import compiled_pass, packed_linear
from treespec.models.packed_linear import pack, packed_linears

pytestmark = pytest.mark.skipif(
    compiled_pass.missing_for_compiling() is not None, reason="no C++ compiler"
)
SINGLE, BRAIN = torch.float32, torch.bfloat16


@pytest.fixture(params=["native", "portable"])
def kernel(request, monkeypatch):
    """The kernel as it is built here, and as it is built where the processor knows no bfloat16."""
    if request.param == "portable":
        built = packed_linear._built("-DTREESPEC_PORTABLE")
        monkeypatch.setattr(packed_linear, "_library", lambda: built)


def bound(x, weight, truth):
    """Of float32 sums in any order, and of rounding what they give."""
    terms = weight.shape[1] + 1
    unit = torch.finfo(torch.float32).eps / 2
    sums = terms * unit / (1 - terms * unit) * (x.double().abs() @ weight.double().abs().T)
    last = torch.finfo(x.dtype).eps / 2 if x.dtype == BRAIN else 0.0
    return sums + last * (truth.abs() + sums)


@given(
    st.sampled_from([SINGLE, BRAIN]), st.integers(1, 70), st.integers(1, 40), st.integers(1, 40),
    st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def check(dtype, size, pairs, rows, seed):
    draws = torch.Generator().manual_seed(seed)
    inputs = 2 * pairs - (dtype == SINGLE)
    weight = torch.randn(size, inputs, generator=draws).to(dtype)
    x = torch.randn(rows, inputs, generator=draws).to(dtype)
    truth = x.double() @ weight.double().T
    got = packed_linear.packed_linear(x, pack(weight), None, size)
    assert got.dtype == dtype
    assert ((got.double() - truth).abs() <= bound(x, weight, truth)).all()


def test_within_the_bound_of_float64(kernel):
    check()


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN])
def test_a_row_does_not_depend_on_the_others(kernel, dtype):
    weight, x = torch.randn(96, 62).to(dtype), torch.randn(40, 62).to(dtype)
    whole = packed_linear.packed_linear(x, pack(weight), None, 96)
    for rows in (1, 2, 11, 12, 13, 25):
        assert torch.equal(
            packed_linear.packed_linear(x[:rows], pack(weight), None, 96), whole[:rows]
        )


def test_what_is_no_number_stays_none(kernel):
    x = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0], [3e38, 1.0]], dtype=BRAIN)
    got = packed_linear.packed_linear(x, pack(torch.full((3, 2), 2.0, dtype=BRAIN)), None, 3)
    assert got[0].isnan().all()
    assert got[1:].isinf().all()


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
    with packed_linears(block):
        copies = [module.packed for module in block.modules() if "packed" in module._buffers]
        assert len(copies) == packed
        assert len({copy.data_ptr() for copy in copies}) == max(packed - 2, 0)  # three are one
        for mine, true in zip(block(x), expected, strict=True):
            torch.testing.assert_close(mine, true)
        with packed_linears(block):  # what is packed is not packed anew
            assert copies == [m.packed for m in block.modules() if "packed" in m._buffers]
    assert [*block.state_dict()] == before
    assert not any("forward" in module.__dict__ for module in block.modules())
    assert all(map(torch.equal, block(x), expected))
