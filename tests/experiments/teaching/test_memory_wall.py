import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from treespec.experiments.measure.roofline import Peak
from treespec.experiments.teaching.memory_wall import (
    PassCost,
    measure_passes,
    measure_peaks,
    pass_flops,
)

PEAK = Peak(1e9, 1e9, "typed in")


def cost(seconds, bytes_s, flops_s, nodes=(1, 2, 4)):
    arrays = (np.array(values, dtype=float) for values in (seconds, bytes_s, flops_s))
    return PassCost(nodes, *arrays, peak=PEAK, prefix=8, parameters=1, dtype="float32")


@pytest.mark.parametrize("tied", [True, False])
def test_operations_as_torch_counts_them(tied):
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
        attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(torch.arange(7)[None], use_cache=False)
    assert counter.get_total_flops() == pass_flops(model, 7, 0)


def test_passes_are_measured_beside_their_floor(loaded_pair):
    found = measure_passes(loaded_pair.draft, (1, 2, 5), prefix=9, repeats=3, peak=PEAK)
    assert found.seconds.shape == (3, 3)
    assert (found.seconds > 0).all()
    model = loaded_pair.draft.model
    assert found.flops_s * 1e9 == pytest.approx([pass_flops(model, n, 9) for n in (1, 2, 5)])
    assert (found.bytes_s == found.bytes_s[0]).sum() == 1  # the cache grows with the nodes
    assert found.parameters == sum(p.numel() for p in set(model.parameters()))
    assert found.dtype == "float32"
    assert loaded_pair.draft.length == 0


def test_medians_quartiles_and_ratios_of_rounds():
    found = cost([[1, 2, 4], [2, 2, 4], [3, 6, 30]], [1, 1, 1], [0.5, 1, 2])
    assert found.median_s.tolist() == [2, 2, 4]
    assert found.quartiles_s[:, 0].tolist() == [1.5, 2.5]
    assert found.relative().tolist() == [1, 2, 4]  # medians of 2, 1, 2 and of 4, 2, 10
    assert found.floor_s.tolist() == [1, 1, 2]


def test_where_arithmetic_takes_over():
    ones = [[1, 1, 1]]
    assert cost(ones, [8, 8, 8], [3, 6, 12]).ridge == pytest.approx(8 / 3)
    assert cost(ones, [8, 8, 8], [1, 2, 4]).ridge == np.inf
    assert cost(ones, [8, 8, 8], [9, 18, 36]).ridge == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peaks_are_measured(dtype):
    peak = measure_peaks(dtype, torch.device("cpu"), megabytes=1, side=32)
    assert peak.bandwidth > 1e7
    assert peak.flops > 1e5
