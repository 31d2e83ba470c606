"""What counts as a row of probabilities: rounding alone is never refused, a real error always is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec.errors import NotADistribution
from treespec.tree.probabilities import no_distributions, require_distribution, tolerance

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
SIZES = st.one_of(st.integers(1, 600), st.sampled_from([32_000, 128_256, 200_000]))


def logits_of(size, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(size, generator=generator, dtype=torch.float64)


@settings(max_examples=150)
@given(
    size=SIZES,
    dtype=st.sampled_from(DTYPES),
    spread=st.sampled_from([0.0, 0.01, 1.0, 5.0, 100.0]),
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 10.0, 1e4]),
    how=st.sampled_from(["rounded", "in the dtype", "divided in the dtype", "cut"]),
    seed=st.integers(0, 1000),
)
def test_no_row_is_refused_for_its_rounding(size, dtype, spread, temperature, how, seed):
    logits = logits_of(size, spread, seed) / temperature
    if how == "rounded":
        row = logits.softmax(-1).to(dtype)
    elif how == "in the dtype":
        row = logits.clamp(-6e4, 6e4).to(dtype).softmax(-1)
    elif how == "divided in the dtype":
        row = (logits - logits.max()).exp().float()
        row = (row / row.sum()).to(dtype)
        row = row / row.sum()
    else:
        kept = logits.clamp(-6e4, 6e4).masked_fill(logits < logits.median(), -torch.inf)
        row = kept.to(dtype).softmax(-1)
    require_distribution(row, "the row")
    assert not no_distributions(torch.stack([row, row])).any()


@settings(max_examples=100)
@given(
    size=SIZES,
    dtype=st.sampled_from(DTYPES),
    factor=st.sampled_from([0.0, 0.5, 0.98, 1.02, 2.0]),
    seed=st.integers(0, 1000),
)
def test_a_sum_that_is_off_by_a_hundredth_is_refused(size, dtype, factor, seed):
    row = (factor * logits_of(size, 2.0, seed).softmax(-1)).to(dtype)
    total = float(row.double().sum())
    assert abs(total - 1) > 0.01
    with pytest.raises(NotADistribution, match=r"the row is not a distribution: .* sum to "):
        require_distribution(row, "the row")
    assert no_distributions(row[None]).all()


@pytest.mark.parametrize("size", [3, 1000])
@pytest.mark.parametrize("wrong", [-0.25, -1e-6, torch.nan, torch.inf, -torch.inf])
def test_a_number_that_is_no_probability_is_named(size, wrong):
    row = torch.full((size,), 1 / size)
    row[1] = wrong
    with pytest.raises(NotADistribution, match=f"token 1 has the probability {wrong:g}"):
        require_distribution(row, "the row")
    assert no_distributions(row[None]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "row",
        [0.5, 0.5],
        torch.tensor(1.0),
        torch.ones(1, 1),
        torch.empty(0),
        torch.tensor([1, 0]),
        torch.tensor([True, False]),
        torch.tensor([1 + 0j]),
    ],
    ids=str,
)
@pytest.mark.usefixtures("without_shape_checks")
def test_what_is_no_row_of_numbers(wrong):
    with pytest.raises(NotADistribution, match="the row is not a distribution: "):
        require_distribution(wrong, "the row")


def test_the_tolerance_by_hand():
    assert tolerance(torch.float64, 10) == tolerance(torch.float32, 200_000) == 1e-3
    assert tolerance(torch.bfloat16, 200_000) == pytest.approx(2**-7)
    assert tolerance(torch.float16, 200_000) == pytest.approx(2**-10 + 200_000 * 2**-25)
    assert all(tolerance(dtype, 200_000) < 0.01 for dtype in DTYPES)
