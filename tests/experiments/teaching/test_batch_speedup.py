import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from treespec import TreeShape
from treespec.experiments.measure.roofline import Peak
from treespec.experiments.teaching.batch_speedup import (
    LLAMA_1B,
    LLAMA_8B,
    BatchSpeedup,
    Llama,
    largest_batch,
    measured_latency,
    roofline_latency,
    speedup_by_batch,
)
from treespec.experiments.teaching.memory_wall import PassCost
from treespec.search import LatencyModel, best_tree, expected_tokens
from treespec.testing import plane_trees

RATES = (0.6, 0.15, 0.08)
PEAK = Peak(1e12, 100e12, "typed in")


@pytest.mark.parametrize(
    ("model", "width", "inner", "tied"),
    [(LLAMA_8B, 4096, 14336, False), (LLAMA_1B, 2048, 8192, True)],
)
def test_parameters_of_the_published_models(model, width, inner, tied):
    config = LlamaConfig(
        vocab_size=128256, hidden_size=width, intermediate_size=inner,
        num_hidden_layers=model.layers, num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads, head_dim=model.dim, tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.device("meta"):
        network = LlamaForCausalLM(config)
    counted = sum(p.numel() for p in set(network.parameters()))
    assert model.matrix == counted - (0 if tied else 128256 * width)


def test_the_floor_by_hand():
    small = Llama("small", 1000, 2, 4, 1, 8)
    assert small.cache_row == 2 * 2 * 1 * 8 * 2
    read = 2000 + 3 * (10 + 5) * 64
    computed = 3 * 5 * (2 * 1000 + 4 * 2 * 4 * 8 * 15)
    assert small.floor_s(Peak(1.0, 1e9, ""), 3, 5, 10) == read
    assert small.floor_s(Peak(1e9, 1.0, ""), 3, 5, 10) == computed


def test_what_fits():
    target, draft = Llama("target", 1000, 1, 1, 1, 4), Llama("draft", 100, 1, 1, 1, 1)
    assert largest_batch(target, draft, 2200 + 3 * 10 * (16 + 4), 10) == 3
    assert largest_batch(target, draft, 2200 + 3 * 10 * (16 + 4) - 1, 10) == 2
    assert largest_batch(target, draft, 100, 10) == 0


def test_the_best_by_brute_force():
    times = {1: 1.0, 2: 1.1, 3: 1.3, 5: 1.6}
    latency = LatencyModel.from_tables(verify=times, draft=0.1)
    fixed = TreeShape.expansion([2, 1])
    found = speedup_by_batch(RATES, latency, fixed, max_size=5)

    def speed(shape):
        seconds = np.interp(shape.size, list(times), list(times.values())) + 0.1 * shape.depth
        return expected_tokens(shape, RATES) / seconds

    shapes = [
        s for n in range(2, 6) for s in plane_trees(n) if max(map(len, s.children)) <= len(RATES)
    ]
    assert found.tree[0] == pytest.approx(max(speed(s) for s in shapes if not s.is_chain))
    assert found.chain[0] == pytest.approx(max(speed(s) for s in shapes if s.is_chain))
    assert found.fixed[0] == pytest.approx(speed(fixed))
    ranking = best_tree(RATES, latency, max_size=5)
    assert found.nodes == (ranking.tree.size,)


def test_short_texts_stop_paying_and_long_ones_do_not():
    tree = TreeShape.expansion([3, 2, 1])
    short, long = (
        speedup_by_batch(
            RATES,
            roofline_latency(LLAMA_8B, LLAMA_1B, PEAK, batches=(1, 8, 64, 512), prefix=prefix),
            tree,
        )
        for prefix in (128, 65536)
    )
    assert short.stops in (64, 512)
    assert long.stops is None
    assert short.best[0] > 1.5
    assert (np.diff(short.best) <= 1e-9).all()  # more texts never help a draft
    assert (np.diff(short.nodes) <= 0).all()


def test_texts_share_a_measured_pass():
    nodes = (1, 2, 4, 8)
    lines = [[1.0, 2.0, 3.0, 9.0], [0.1, 0.1, 0.1, 0.2]]
    target, draft = (
        PassCost(nodes, np.array([line]), *np.ones((2, 4)), PEAK, 8, 1, "float32") for line in lines
    )
    model = measured_latency(target, draft, (1, 2, 3, 8))
    assert model.verify_s(4, batch=2) == 9.0
    assert model.verify_s(2, batch=3) == pytest.approx(6.0)  # halfway from 4 to 8 tokens
    assert model.draft_level_s(1, batch=8) == pytest.approx(0.2)
    assert [model.largest(batch=b) for b in (1, 2, 3, 8)] == [8, 4, 2, 1]
    found = speedup_by_batch(RATES, model, TreeShape.chain(5))
    assert np.isfinite(found.fixed).tolist() == [True, False, False, False]
    assert np.isnan(found.best[3])
    assert found.nodes[3] == 1


def test_where_it_stops():
    def stops(*best):
        values = np.array(best)
        return BatchSpeedup((1, 2, 4), values, values, values, (3, 3, 3)).stops

    assert stops(2.0, 1.5, 1.2) is None
    assert stops(2.0, 1.5, 1.0) == 4
    assert stops(0.9, 0.8, 0.7) == 1
    assert stops(2.0, 0.9, 1.2) is None
    assert stops(1.2, np.nan, np.nan) == 2
