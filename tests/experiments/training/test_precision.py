"""Passes of a training run in a precision that the device multiplies in."""

import pytest
import torch

from treespec.experiments.training import precision
from treespec.experiments.training.precision import has_bfloat16, muon_step, training_passes


@pytest.mark.parametrize("native", [True, False])
def test_products_are_in_bfloat16_where_the_device_has_it(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: native)
    weights = torch.ones(4, 4)
    with training_passes("cpu"):
        made = weights @ weights
    assert made.dtype == (torch.bfloat16 if native else torch.float32)


def test_gpus_have_it() -> None:
    assert has_bfloat16("cuda:1")
    assert isinstance(has_bfloat16("cpu"), bool)


@pytest.mark.parametrize("native", [True, False])
def test_muon_orthogonalises_in_float32_where_bfloat16_is_emulated(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: native)
    gradient = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    weights = torch.nn.Parameter(torch.zeros(8, 12))
    weights.grad = gradient.clone()
    with muon_step("cpu"):
        torch.optim.Muon([weights], lr=1.0).step()
    update = -weights.detach()
    assert torch.equal(update, update.bfloat16().float()) is native
    # Newton and Schulz's iteration, whose singular values end near 1.
    a, b, c, x = 3.4445, -4.7750, 2.0315, gradient / gradient.norm()
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    torch.testing.assert_close(update, x, atol=0.05 if native else 1e-5, rtol=0.0)
    assert torch.equal(weights.grad, gradient)
