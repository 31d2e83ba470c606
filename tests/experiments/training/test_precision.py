"""Passes of a training run in a precision that the device multiplies in."""

import pytest
import torch

from treespec.experiments.training import precision
from treespec.experiments.training.precision import has_bfloat16, training_passes


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
