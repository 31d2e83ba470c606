"""Passes in fixed memory compared with ordinary ones, and which models are refused.

Whether a kernel is interpreted is decided when Triton is imported, so this file runs itself in a process
with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import os

import pytest
import torch

from attention_masks import topology
from treespec import TreeShape
from treespec.errors import InvalidTree, Unavailable, UnsupportedModel
from treespec.features import Features
from treespec.models.cache import cache_argument
from treespec.models.hidden_states import HiddenStates
from treespec.models.passes.static_pass import Kind, StaticPass, StaticRunner
from treespec.models.passes.static_sizes import Size, bucket, most_sizes, size_of
from treespec.models.passes.static_trial import NoHostReads, require_static
from treespec.models.transformers_model import TransformersModel

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")

ON_OUR_ATTENTION = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi", "phi3", "gpt2", "gpt_neox", "opt",
    "olmo2", "starcoder2", "cohere", "mixtral",
)  # fmt: skip
POISON = 95
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def _quick(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


def random_tree(generator, largest):
    """Parents, tokens and a path to keep."""
    size = int(torch.randint(1, largest + 1, (), generator=generator))
    draws = torch.rand(size, generator=generator)
    shape = TreeShape((-1, *(int(draws[i] * i) for i in range(1, size))))
    tokens = torch.randint(POISON, (size,), generator=generator)
    return shape, tokens, shape.path(int(draws[0] * size))


def both(model):
    return model.fresh(), model.fresh(runner=StaticRunner)


def rows(model):
    """Committed rows of all layers."""
    cache = model._runner.cache
    length = cache.length
    return [x[:, :, :length] for layer in cache.layers for x in (layer.keys, layer.values)]


@interpreted
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "mixtral"])
def test_trees_one_after_another(name, load):
    """Logits of every node and committed rows, over trees in all buckets up to 16 and growing prefixes."""
    model = TransformersModel(load(name))
    ordinary, static = both(model)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(POISON, (11,), generator=generator)
    ordinary.prefill(prompt)
    static.prefill(prompt)
    for step in range(10):
        shape, tokens, path = random_tree(generator, 4 if step % 2 else 16)
        logits = static.run(tokens, shape.parents).logits
        torch.testing.assert_close(logits, ordinary.run(tokens, shape.parents).logits, **CLOSE)
        ordinary.keep(path)
        static.keep(path)
        assert static.length == ordinary.length
        for actual, expected in zip(rows(static), rows(ordinary), strict=True):
            torch.testing.assert_close(actual, expected, **CLOSE)
    assert len(static._runner._passes) >= 4
    # A further text: what the buffers still hold of the last one has no effect.
    for each in (ordinary, static):
        each.prefill(prompt[:3])
    again = static.run(prompt[:5], (-1, 0, 0, 1, 2)).logits
    torch.testing.assert_close(again, ordinary.run(prompt[:5], (-1, 0, 0, 1, 2)).logits, **CLOSE)


@interpreted
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_features(name, load):
    """Of trees as a whole and in parts; passes of one size with and without features are apart."""
    model = TransformersModel(load(name))
    ordinary, static = both(model)
    tokens, parents = torch.arange(6), (-1, 0, 0, 1, 1, 2)
    for reads in (Features((1, 0, 2), "post"), Features()):
        for each in (ordinary, static):
            each.lend(reads)
            each.prefill(tokens)
        expected = ordinary.run(tokens, parents)
        whole = static.run(tokens, parents)
        torch.testing.assert_close(whole.logits, expected.logits, **CLOSE)
        if not reads.states:
            assert whole.features is None
            continue
        torch.testing.assert_close(whole.features, expected.features, **CLOSE)
        parts = [static.run(tokens[:3], parents[:3]).features.clone()]
        parts.append(static.run(tokens[3:], parents, 3).features)
        torch.testing.assert_close(torch.cat(parts), expected.features, **CLOSE)
    assert len(static._runner._passes) == 4


@interpreted
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_whatever_the_padding_holds(name, load):
    """Padding tokens whose every state is NaN, after cache rows of NaN."""
    model = TransformersModel(load(name))
    with torch.no_grad():
        model.model.get_input_embeddings().weight[POISON] = torch.nan
    ordinary, static = both(model)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(POISON, (9,), generator=generator)
    ordinary.prefill(prompt)
    static.prefill(prompt)
    runner = static._runner
    for step in range(6):
        shape, tokens, path = random_tree(generator, 13)
        with torch.inference_mode():
            passing = runner._static(0, size_of(0, shape.size))
            passing.input_ids.fill_(POISON)
            for layer in runner.cache.layers:
                layer.keys[:, :, static.length :] = torch.nan
                layer.values[:, :, static.length :] = torch.nan
        logits = static.run(tokens, shape.parents).logits
        assert passing.run().logits[shape.size :].isnan().all()
        assert logits.isfinite().all(), step
        torch.testing.assert_close(logits, ordinary.run(tokens, shape.parents).logits, **CLOSE)
        ordinary.keep(path)
        static.keep(path)


@interpreted
def test_padding_sees_only_itself(load):
    """The logits of padding depend only on its token and position."""
    _, static = both(TransformersModel(load("llama")))
    seen = []
    for prompt, tokens in (([1, 2, 3], [4, 5, 6]), ([9, 8, 7], [30, 31, 32])):
        static.prefill(torch.tensor(prompt))
        with torch.inference_mode():
            passing = static._runner._static(0, Size(4, 4))
            passing.input_ids[0, 3] = 50
        static.run(torch.tensor(tokens), (-1, 0, 0))
        seen.append(passing.run().logits[3])
    torch.testing.assert_close(*seen, **CLOSE)


@interpreted
def test_the_cache_grows(load):
    """Rows move to other memory: passes are made again and give the same logits."""
    ordinary, static = both(TransformersModel(load("llama", max_position_embeddings=1024)))
    generator = torch.Generator().manual_seed(2)
    prompt = torch.randint(POISON, (250,), generator=generator)
    ordinary.prefill(prompt)
    static.prefill(prompt)
    chain = TreeShape.chain(3)
    memories, passes = set(), set()
    for _ in range(3):
        tokens = torch.randint(POISON, (4,), generator=generator)
        logits = static.run(tokens, chain.parents).logits
        torch.testing.assert_close(logits, ordinary.run(tokens, chain.parents).logits, **CLOSE)
        memories.add(static._runner.cache.memory)
        passes.add(static._runner._passes[Kind(Size(4, 4))])
        assert len(static._runner._passes) == 1
        ordinary.keep((0, 1, 2, 3))
        static.keep((0, 1, 2, 3))
    assert len(memories) == len(passes) == 2
    assert static._runner.cache.capacity == 512


@interpreted
@pytest.mark.parametrize(("name", "prompt"), [("llama", 5), ("gemma2", 5), ("llama", 250)])
def test_a_tree_in_parts(name, prompt, load):
    """A level attends to nodes of earlier passes, also if the cache grows between them."""
    ordinary, static = both(TransformersModel(load(name, max_position_embeddings=512)))
    tokens = torch.arange(10, 16)
    parents = (-1, 0, 0, 2, 1, 2)
    for each in (ordinary, static):
        each.prefill(torch.arange(prompt) % POISON)
    whole = ordinary.run(tokens, parents).logits
    parts = [
        static.run(tokens[:3], parents[:3]).logits.clone(),
        static.run(tokens[3:], parents, 3).logits,
    ]
    torch.testing.assert_close(torch.cat(parts), whole, **CLOSE)
    static.keep((0, 2, 5))
    with pytest.raises(InvalidTree):
        static.keep((0, 3))
    with pytest.raises(InvalidTree):
        static.run(tokens[:2], parents[:3])


@interpreted
def test_a_vocabulary_cut_or_padded(load):
    model = TransformersModel(load("llama"))
    ordinary = model.fresh()
    ordinary.prefill(torch.arange(4))
    expected = ordinary.run(torch.tensor([5]), (-1,)).logits
    for width in (90, 100):
        static = model.fresh(vocab_size=width, runner=StaticRunner)
        static.prefill(torch.arange(4))
        logits = static.run(torch.tensor([5]), (-1,)).logits
        assert logits.shape == (1, width)
        torch.testing.assert_close(logits[:, :90], expected[:, :90], **CLOSE)


@interpreted
@pytest.mark.parametrize("name", ON_OUR_ATTENTION)
def test_what_can_be_captured(name, load):
    require_static(TransformersModel(load(name)))


@interpreted
@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("stablelm", {}, "as a mask through their own attention"),
        ("mixtral", {"experts": "eager"}, "reads values back from the device"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            "reads values back from the device",
        ),
        ("llama", {"dtype": torch.float64}, "elements of 8 bytes"),
    ],
)
def test_what_cannot_be_captured(name, changes, reason, load):
    changes = dict(changes)
    dtype, experts = changes.pop("dtype", torch.float32), changes.pop("experts", None)
    made = load(name, **changes).to(dtype)
    if experts:
        made.set_experts_implementation(experts)
    with pytest.raises(UnsupportedModel, match=reason):
        require_static(TransformersModel(made))


@interpreted
def test_lengths_as_python_numbers_are_found(load):
    """A model that takes its positions from the cache would be captured with a fixed length."""
    made = load("llama")
    forward = made.model.forward

    taken_as = cache_argument(made.model)

    def counting(*args, position_ids=None, **kwargs):
        if kwargs.get(taken_as) is not None and kwargs["input_ids"].shape[1] > 1:
            start = kwargs[taken_as].get_seq_length()
            position_ids = position_ids - position_ids[:, :1] + start
        return forward(*args, position_ids=position_ids, **kwargs)

    made.model.forward = counting
    with pytest.raises(UnsupportedModel, match="logits of a pass in fixed memory differ"):
        require_static(TransformersModel(made))


@interpreted
def test_an_implementation_asked_for_by_name(load):
    with pytest.raises(UnsupportedModel, match=r"attention='sdpa'.*'auto' or 'triton'"):
        require_static(TransformersModel(load("llama"), attention="sdpa"))


@pytest.mark.parametrize(
    "asks",
    [
        lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero(), lambda x: bool(x.any()),
        lambda x: x.masked_select(x > 0), lambda x: x.unique(), lambda x: torch.equal(x, x + 1),
        lambda x: x.repeat_interleave(x.long().abs()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_host_reads_are_seen(asks, mode):
    with pytest.raises(UnsupportedModel, match="reads values back"), mode(), NoHostReads():
        asks(torch.arange(-3.0, 4.0))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_ordinary_operations_are_no_host_reads(mode):
    x = torch.arange(-3.0, 4.0)
    with mode(), NoHostReads():
        x[torch.tensor([1, 2])] = 0
        x.masked_fill(x > 0, 1)[None, 1:].topk(2)
        x.to(torch.float16).copy_(x)


def test_a_pass_that_does_not_fit_behind_earlier_nodes_is_refused(load):
    model = TransformersModel(load("llama"))
    model.runner.cache.begin(0, 1)
    static = StaticPass(
        model.model, model.runner.cache, Size(8, 64), HiddenStates(model.model, Features())
    )
    tree, free = topology(tuple(range(-1, 12))), 12  # rows behind the prompt, for 5 + 8 nodes
    with pytest.raises(InvalidTree, match="do not fit into a cache"):
        static.load(torch.arange(8), tree, model.runner.cache.capacity - free, 5)


def test_buckets():
    for size in range(1, 700):
        held = bucket(size)
        assert size <= held < max(2 * size, size + 64)
        assert bucket(held) == held
    assert len({bucket(size) for size in range(1, 513)}) == 14


@pytest.mark.parametrize("nodes", [1, 2, 5, 64, 65, 130, 300])
def test_sizes_are_few(nodes):
    """So is the number of captured graphs, whatever the trees."""
    whole = {size_of(0, count) for count in range(1, nodes + 1)}
    assert len(whole) == most_sizes(nodes)
    ends = [(first, count) for first in range(1, nodes) for count in range(1, nodes - first + 1)]
    every = whole | {size_of(*end) for end in ends}
    assert len(every) <= most_sizes(nodes, parts=True) < len(every) + 2 * len(whole)


@plain
def test_without_the_interpreter_the_kernel_is_missing(load):
    if torch.cuda.is_available():
        pytest.skip("it is here")
    with pytest.raises(Unavailable, match="needs a CUDA device"):
        require_static(TransformersModel(load("llama")))


@plain
def test_one_architecture_through_the_interpreter(interpret):
    """Static passes run at all; the rest is `slow`."""
    interpret(__file__, "-k", "test_features and llama")


@plain
@pytest.mark.slow
def test_through_the_interpreter(interpret):
    interpret(__file__)
