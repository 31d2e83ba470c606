import pytest
import torch
from far_away import FarAway
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from treespec import Sampling
from treespec.errors import InvalidSampling, NonFiniteLogits
from treespec.sampling.distributions import require_finite, residual, without


def warpers(sampling):
    """The logits warpers that transformers builds for the same settings, in its order."""
    chain = LogitsProcessorList()
    if sampling.temperature != 1:
        chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k is not None:
        chain.append(TopKLogitsWarper(top_k=sampling.top_k))
    if sampling.top_p is not None and sampling.top_p < 1:
        chain.append(TopPLogitsWarper(top_p=sampling.top_p))
    if sampling.min_p is not None:
        chain.append(MinPLogitsWarper(min_p=sampling.min_p))
    return chain


settings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    top_k=st.none() | st.integers(1, 70),
    top_p=st.none() | st.floats(0.05, 1.0),
    min_p=st.none() | st.floats(0.0, 1.0),
)


@given(settings, st.integers(0, 2**31), st.sampled_from([0.1, 1.0, 6.0]))
def test_equal_to_transformers_warpers(sampling, seed, spread):
    logits = spread * torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
    theirs = warpers(sampling)(torch.zeros(3, 1, dtype=torch.long), logits.clone()).softmax(-1)
    assert torch.equal(sampling(logits), theirs)


def nucleus(row, top_p):
    """The smallest set of most probable tokens that reaches the mass, found by sorting the whole row."""
    probs = row.softmax(-1)
    best = probs.sort(descending=True, stable=True)
    count = int((best.values.cumsum(-1) < top_p).sum()) + 1
    return set(best.indices[:count].tolist())


@pytest.mark.parametrize("vocabulary", [1023, 1024, 1025, 3000, 8193, 131_072])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_a_nucleus_may_hold_more_than_a_thousand_tokens(vocabulary, top_p):
    """Rows from nearly flat to peaked, alone and in one stack: each gets its own nucleus."""
    noise = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits = noise.double() * torch.tensor([[0.01], [1.0], [3.0], [12.0]]).double()
    sampling, sizes = Sampling(top_p=top_p), []
    stacked = sampling(logits)
    for row, probs in zip(logits, stacked, strict=True):
        kept = nucleus(row, top_p)
        sizes.append(len(kept))
        assert set(probs.nonzero()[:, 0].tolist()) == kept
        assert torch.equal(sampling(row), probs)
    assert sizes == sorted(sizes, reverse=True)
    if vocabulary > 8192 and top_p > 0.5:
        assert sizes[0] > 7000
        assert sizes[-1] < 1024


@pytest.mark.parametrize("candidates", [7, 1024])
def test_of_equally_probable_tokens_a_nucleus_has_the_lowest_ids(candidates, monkeypatch):
    """In bfloat16 many tokens are equally probable, and devices sort them differently."""
    monkeypatch.setattr("treespec.sampling.distributions.TOP_P_CANDIDATES", candidates)
    divided = 0
    for seed in range(20):
        row = torch.randn(2000, generator=torch.Generator().manual_seed(seed)).bfloat16().float()
        kept = Sampling(top_p=0.5)(row) > 0
        assert set(kept.nonzero()[:, 0].tolist()) == nucleus(row, 0.5)
        at_the_edge = row == row[kept].min()
        divided += bool((at_the_edge & ~kept).any())
    assert divided > 10


def test_a_nucleus_ends_where_its_mass_is_reached():
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    assert Sampling(top_p=0.5)(logits).tolist() == [1, 0, 0, 0]
    assert Sampling(top_p=0.75)(logits).nonzero().flatten().tolist() == [0, 1]


def test_min_p_keeps_what_is_just_probable_enough():
    logits = torch.tensor([0.5, 0.25, 0.25]).log()
    assert Sampling(min_p=0.5)(logits).tolist() == pytest.approx([0.5, 0.25, 0.25])
    assert Sampling(min_p=0.51)(logits).tolist() == [1, 0, 0]


def test_our_order_is_the_order_of_generate():
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
        )
    )
    config = GenerationConfig(do_sample=True, temperature=0.5, top_k=4, top_p=0.8, min_p=0.1)
    config._eos_token_tensor = None
    processors = model._get_logits_processor(config, input_ids_seq_length=1)
    assert [type(p) for p in processors] == [
        TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper
    ]  # fmt: skip


def test_temperature_zero_takes_the_lowest_of_the_best():
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 3.0]])
    assert Sampling(temperature=0.0)(logits).tolist() == [[0, 1, 0], [1, 0, 0]]


@given(st.integers(0, 2**31))
def test_small_temperatures_approach_zero(seed):
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    near, at = Sampling(temperature=1e-6)(logits), Sampling(temperature=0.0)(logits)
    margin = logits.topk(2).values.diff().abs().min()
    assert margin < 1e-4 or torch.allclose(near, at, atol=1e-9)


def test_half_precision_is_computed_in_float32():
    assert Sampling()(torch.zeros(2, dtype=torch.bfloat16)).dtype == torch.float32
    assert Sampling()(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"temperature": -0.1}, "temperature = -0.1.*0 .greedy., or at least"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"temperature": 1e-38}, "temperature = 1e-38.*at least 1e-06"),
        ({"temperature": float("inf")}, "temperature = inf"),
        ({"top_p": 0.0}, r"top_p = 0.0.*\(0, 1\]"),
        ({"top_p": 1.5}, "top_p = 1.5"),
        ({"top_k": 0}, "top_k = 0"),
        ({"min_p": 1.1}, "min_p = 1.1"),
        ({"min_p": -0.1}, "min_p = -0.1"),
    ],
)
def test_settings_outside_their_range(changes, says):
    with pytest.raises(InvalidSampling, match=says):
        Sampling(**changes)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_rows_refuse_bad_logits_by_node(bad):
    logits = torch.zeros(4, 5)
    logits[2, 3] = bad
    rows = Sampling().rows(logits)
    assert torch.allclose(rows[1], torch.full((5,), 0.2))
    with pytest.raises(NonFiniteLogits, match=r"target model.*node 2"):
        rows[2]
    with pytest.raises(NonFiniteLogits, match="node 2"):
        require_finite(logits, "draft", range(4))
    with pytest.raises(NonFiniteLogits, match="node 12"):
        require_finite(logits, "draft", [10, 11, 12, 13])


def test_rows_are_computed_once_and_only_when_asked():
    calls = []

    class Counting(Sampling):
        def __call__(self, logits):
            calls.append(logits)
            return super().__call__(logits)

    rows = Counting().rows(torch.zeros(5, 3))
    assert rows[4] is rows[4]
    assert len(calls) == 1


def test_residual_by_hand():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
    assert torch.allclose(residual(p, q), torch.tensor([1.0, 0.0, 0.0]))
    assert torch.equal(residual(p, p), p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("least", [1e-7, 1e-12, 1e-30])
def test_however_small_a_residual_is_one(dtype, least):
    p = torch.tensor([least, 0.5, 0.5], dtype=dtype)
    assert residual(p, torch.tensor([0.0, 0.5, 0.5], dtype=dtype)).tolist() == [1, 0, 0]
    p, q = torch.tensor([1.0, least], dtype=dtype), torch.tensor([1.0, 2 * least], dtype=dtype)
    assert torch.equal(residual(p, q), p)  # nothing is left: there was nothing to reject


def test_without_by_hand():
    q = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    assert torch.allclose(without(q, torch.tensor([0])), torch.tensor([0, 0.6, 0.4, 0]).double())
    assert without(q, torch.tensor([0, 1, 2])).tolist() == [0, 0, 0, 1]
    one = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    assert torch.allclose(without(one, torch.tensor([1])), torch.tensor([1, 0, 1, 1]).double() / 3)
    both = without(torch.stack([q, one]), torch.tensor([[0], [1]]))
    assert torch.equal(both[0], without(q, torch.tensor([0])))
    assert torch.equal(both[1], without(one, torch.tensor([1])))


@pytest.mark.parametrize("last", [0.25, 0.0, 5e-324])
def test_without_gives_the_same_numbers_where_nothing_is_read(last):
    """Independent of the other rows, and for rows whose remaining mass is below the normal range."""
    rows = torch.tensor([[0.5, 0.25, 0.25], [1 - last, last, 0.0]], dtype=torch.float64)
    removed = torch.tensor([[0], [0]])
    apart = [without(row[None], one[None]) for row, one in zip(rows, removed, strict=True)]
    with FarAway() as far:
        found = without(rows, removed)
    assert not far.reads
    assert torch.equal(found, torch.cat(apart))
    assert torch.equal(without(rows, removed), found)
