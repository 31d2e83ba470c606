"""The references of speculators' formats, against rows that it computed itself: see `heads.recorded`."""

from pathlib import Path

import pytest
import torch
from heads import block, recorded
from safetensors.torch import load_file

RECORDED = load_file(Path(__file__).parent / "fixtures" / "speculators.safetensors")


@pytest.mark.parametrize("name", recorded.CASES)
def test_rows_are_those_of_speculators(tmp_path, name):
    module, _ = recorded.CASES[name]
    tensors, config = recorded.written(name, tmp_path)
    torch.testing.assert_close(
        recorded.total(tensors), RECORDED[f"{name}: total"], rtol=1e-9, atol=0
    )
    features, embedding, head = recorded.inputs(name)
    if module is block:
        rows = block.rows(tensors, config, features, recorded.ANCHOR, embedding, head)
    else:
        rows = module.rows(
            tensors, config, recorded.TOKENS, features, recorded.DRAFTED, embedding, head
        )
    expected = RECORDED[f"{name}: rows"]
    known = torch.isfinite(rows[0])
    assert known.sum() == expected.shape[-1]
    rows = rows[: len(expected), known]
    assert (rows - expected).abs().max() < 1e-5 * expected.abs().max()
