"""Products with packed weights, compared with float64 within a rounding bound."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.kernels.packed_linear import pack, packed_linear

SINGLE, BRAIN = torch.float32, torch.bfloat16


def bound(x, weight, bias, truth):
    """Error bound for float32 sums in any order and for rounding the result."""
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
    got = packed_linear(x, packed, padded, size)
    assert got.dtype == dtype
    assert ((got.double() - truth).abs() <= bound(x, weight, bias, truth)).all()


def test_within_the_bound_of_float64(kernel):
    check()


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN])
def test_a_row_does_not_depend_on_the_others(kernel, dtype):
    weight, x = torch.randn(96, 62).to(dtype), torch.randn(40, 62).to(dtype)
    whole = packed_linear(x, pack(weight), None, 96)
    for rows in (1, 2, 11, 12, 13, 25):
        assert torch.equal(packed_linear(x[:rows], pack(weight), None, 96), whole[:rows])
    wide = torch.stack([x, -x], dim=-1)[..., 0]  # other strides
    assert torch.equal(packed_linear(wide, pack(weight), None, 96), whole)
    assert torch.equal(packed_linear(x[3], pack(weight), None, 96), whole[3])


def test_rounding_is_that_of_torch(kernel):
    """Ties, numbers between the largest of bfloat16 and of float32, infinity and NaN."""
    sums = torch.cat([torch.arange(1, 1 << 12) * 2.0**-3, torch.tensor([3.3961e38, 3.39e38])])
    high = sums.to(BRAIN)
    rest = (sums - high.float()).to(BRAIN)
    assert torch.equal((high.float() + rest.float())[:-2], sums[:-2])
    rows = torch.stack([high, rest], dim=1)
    rows = torch.cat([rows, torch.tensor([[torch.nan, 1], [torch.inf, 1]]).to(BRAIN), -rows])
    expected = (rows[:, 0].float() + rows[:, 1].float()).to(BRAIN)
    got = packed_linear(rows, pack(torch.ones(1, 2, dtype=BRAIN)), None, 1)[:, 0]
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
            packed_linear(x, packed, bias, size)
    for weight in (torch.randn(128, 5).to(BRAIN), torch.randn(4, 4).half(), torch.randn(4, 0)):
        with pytest.raises(ValueError, match="cannot be packed"):
            pack(weight)
