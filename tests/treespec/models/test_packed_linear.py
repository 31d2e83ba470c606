"""Products with packed weights, against float64 within a bound that its rounding allows."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from treespec.errors import Unavailable
from treespec.models import compiled_pass, packed_linear
from treespec.models.packed_linear import pack, packed_linears
from treespec.models.packed_weights import PackedWeights

pytestmark = pytest.mark.skipif(
    compiled_pass.missing_for_compiling() is not None, reason="no C++ compiler"
)
SINGLE, BRAIN = torch.float32, torch.bfloat16


@pytest.fixture(params=["native", "-DTREESPEC_PORTABLE -DTREESPEC_ROWS=2", "-DTREESPEC_ROWS=3"])
def kernel(request, monkeypatch):
    """As it is built here, and for processors without bfloat16 or with fewer registers."""
    if request.param != "native":
        built = packed_linear._built(*request.param.split())
        monkeypatch.setattr(packed_linear, "_library", lambda: built)


def bound(x, weight, bias, truth):
    """Of float32 sums in any order, and of rounding what they give."""
    terms = weight.shape[1] + 2
    unit = torch.finfo(torch.float32).eps / 2
    sizes = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    sums = terms * unit / (1 - terms * unit) * sizes
    last = torch.finfo(x.dtype).eps / 2 if x.dtype == BRAIN else 0.0
    return sums + last * (truth.abs() + sums)


@given(
    st.sampled_from([SINGLE, BRAIN]), st.integers(1, 70), st.integers(1, 40), st.integers(0, 40),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def check(dtype, size, pairs, rows, biased, seed):
    draws = torch.Generator().manual_seed(seed)
    inputs = 2 * pairs - (dtype == SINGLE)
    weight = torch.randn(size, inputs, generator=draws).to(dtype)
    x = torch.randn(rows, inputs, generator=draws).to(dtype)
    bias = torch.randn(size, generator=draws) * biased
    packed = pack(weight)
    padded = torch.nn.functional.pad(bias, (0, 32 * len(packed) - size)) if biased else None
    truth = x.double() @ weight.double().T + bias
    got = packed_linear.packed_linear(x, packed, padded, size)
    assert got.dtype == dtype
    assert ((got.double() - truth).abs() <= bound(x, weight, bias, truth)).all()


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
    wide = torch.stack([x, -x], dim=-1)[..., 0]  # other strides
    assert torch.equal(packed_linear.packed_linear(wide, pack(weight), None, 96), whole)
    assert torch.equal(packed_linear.packed_linear(x[3], pack(weight), None, 96), whole[3])


def test_rounding_is_that_of_torch(kernel):
    """Ties, numbers between the largest of bfloat16 and of float32, infinity and what is no number."""
    sums = torch.cat([torch.arange(1, 1 << 12) * 2.0**-3, torch.tensor([3.3961e38, 3.39e38])])
    high = sums.to(BRAIN)
    rest = (sums - high.float()).to(BRAIN)
    assert torch.equal((high.float() + rest.float())[:-2], sums[:-2])
    rows = torch.stack([high, rest], dim=1)
    rows = torch.cat([rows, torch.tensor([[torch.nan, 1], [torch.inf, 1]]).to(BRAIN), -rows])
    expected = (rows[:, 0].float() + rows[:, 1].float()).to(BRAIN)
    got = packed_linear.packed_linear(rows, pack(torch.ones(1, 2, dtype=BRAIN)), None, 1)[:, 0]
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(
        got.nan_to_num(0.0, torch.inf, -torch.inf), expected.nan_to_num(0.0, torch.inf, -torch.inf)
    )


def test_what_does_not_fit_together_is_refused():
    packed = pack(torch.randn(40, 6))
    for x, bias, size in [
        (torch.randn(2, 8), None, 40),
        (torch.randn(2, 6).to(BRAIN), None, 40),
        (torch.randn(2, 6), None, 65),
        (torch.randn(2, 6), torch.randn(40), 40),
        (torch.randn(2, 6), torch.randn(64).double(), 40),
    ]:
        with pytest.raises(ValueError, match="cannot be multiplied by a packed matrix"):
            packed_linear.packed_linear(x, packed, bias, size)
    for weight in (torch.randn(128, 5).to(BRAIN), torch.randn(4, 4).half(), torch.randn(4, 0)):
        with pytest.raises(ValueError, match="cannot be packed"):
            pack(weight)


def test_a_kernel_that_does_not_compile_is_named(monkeypatch, tmp_path):
    broken = tmp_path / "broken.cpp"
    broken.write_text("no code")
    monkeypatch.setattr(packed_linear, "SOURCE", broken)
    with pytest.raises(Unavailable, match="kernel of compiled passes cannot be compiled here"):
        packed_linear._built()


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
    with packed_linears(block, known) as options:
        assert bool(options) == bool(packed)
        copies = [module.packed for module in block.modules() if "packed" in module._buffers]
        assert len(copies) == packed
        assert len({copy.data_ptr() for copy in copies}) == max(packed - 2, 0)  # three are one
        for mine, true in zip(block(x), expected, strict=True):
            torch.testing.assert_close(mine, true)
        with packed_linears(block, known):  # what is packed is not packed anew
            assert copies == [m.packed for m in block.modules() if "packed" in m._buffers]
    assert [*block.state_dict()] == before
    assert not any("forward" in module.__dict__ for module in block.modules())
    assert all(map(torch.equal, block(x), expected))


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
    block.k_proj = block.v_proj  # no product of three then
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
    """Weights of some other library."""
