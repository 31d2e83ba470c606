"""A pass gives one mask and the cache itself to PyTorch's attention; and the benchmark's timing."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treespec.experiments.research.benchmarks import attention_overhead as benchmark

LAYERS, PREFIX, NODES = 3, 40, 6


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_one_mask_for_a_pass_and_no_copied_keys(model):
    ids = torch.arange(1, PREFIX + 1)
    ours = benchmark.measure_memory(model, ids, NODES, "sdpa")
    assert (ours["attention_calls"], ours["masks"], ours["copied_key_value_bytes"]) == (
        LAYERS,
        1,
        0,
    )
    assert ours["mask_bytes"] == 2 * NODES * (PREFIX + NODES) * 4  # two heads share a key head
    single = benchmark.measure_memory(model, ids, 1, "sdpa")
    assert (single["masks"], single["mask_bytes"], single["copied_key_value_bytes"]) == (0, 0, 0)
    usual = benchmark.measure_memory(model, ids, NODES, "transformers")
    # Keys and values of every layer, repeated for the heads that share them.
    assert usual["copied_key_value_bytes"] == LAYERS * 2 * 4 * (PREFIX + NODES) * 8 * 4
    assert usual["allocated_bytes"] > ours["allocated_bytes"] >= ours["peak_bytes"] > 0


def test_all_ways_are_timed(model):
    found = benchmark.measure_time(model, torch.arange(1, PREFIX + 1), repeats=2)
    assert set(found["ms"]) == {benchmark.OURS, benchmark.THEIRS, benchmark.STRICT}
    assert all(value > 0 for part in ("ms", "ratio") for value in found[part].values())
