"""What the benchmark of text sources counts, on a text that repeats itself."""

import pytest
import torch

from treespec.experiments.research.benchmarks import draft_sources


@pytest.mark.parametrize("name", draft_sources.OWN)
def test_a_text_that_repeats_is_drafted_and_accepted(name, monkeypatch):
    monkeypatch.setattr(draft_sources, "STEPS", 20)
    monkeypatch.setattr(draft_sources, "WARM", 2)
    source = draft_sources.OWN[name]()
    source.prefill(torch.arange(30).repeat(3))
    found = draft_sources.measured(source, list(range(30)) * 10)
    assert 1 < found["accepted"] <= found["drafted"]
    assert 0 < found["search_p50_us"] <= found["search_p99_us"]
