"""Captured passes on a CUDA device: texts, buckets, growth, and that they never wait for the device."""

import importlib
import logging

import pytest
import torch

from treespec import (
    Law,
    Sampling,
    TokenTree,
    TorchCoins,
    TreeShape,
    decode,
    generate,
    load_pair,
    verify,
)
from treespec.draft import ModelDrafter, NoDrafter
from treespec.errors import StaleScores, UnsupportedModel
from treespec.models.passes.static_sizes import bucket, most_sizes
from treespec.step import Step, Verdict
from treespec.target import ModelTarget, make_target
from treespec.target.graph import GraphTarget

pytestmark = pytest.mark.gpu

COLD, WARM = Sampling(temperature=0.0), Sampling()
FAMILIES = ["Llama", "Mistral", "Gemma2"]


def random_tree(size, generator):
    draws = torch.rand(size, generator=generator)
    shape = TreeShape((-1, *(int(draws[i] * i) for i in range(1, size))))
    tokens = torch.randint(96, (size,), generator=generator).cuda()
    return TokenTree(shape, tokens, None, Law.DETERMINISTIC)


def commit(target, tree, path, scores):
    target.commit(Step(tree, Verdict(path, 0), scores, ()))


def text(target, drafter, sampling, rule, prompt, budget):
    tokens = []
    for step in decode(
        target, drafter, rule, prompt, sampling=sampling, coins=TorchCoins(0), max_new_tokens=budget
    ):
        tokens += step.tokens
    return tokens


def distance(logits, expected):
    """Largest distance of a row, relative to its norm."""
    logits, expected = logits.double(), expected.double()
    return float(((logits - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


@pytest.mark.parametrize("family", FAMILIES)
def test_texts(family, make_model):
    """Plain and tree decoding across two doublings of the cache give the text of the ordinary target."""
    model = make_model(family, device="cuda", attention="triton")
    draft = make_model(family, seed=1, device="cuda")
    prompt = torch.randint(96, (200,), generator=torch.Generator().manual_seed(3)).cuda()
    shape = TreeShape.expansion([3, 2, 1])
    for drafter, sampling, rule in (
        (NoDrafter(), COLD, verify.greedy),
        (ModelDrafter(draft, shape, Law.DETERMINISTIC, COLD), COLD, verify.greedy),
        (ModelDrafter(draft, shape, Law.WITHOUT_REPLACEMENT, WARM), WARM, verify.rrsw),
    ):
        target = GraphTarget(model.fresh())  # with a small cache again
        tokens = text(target, drafter, sampling, rule, prompt, 350)
        expected = text(ModelTarget(model), drafter, sampling, rule, prompt, 350)
        assert tokens == expected
        assert target.model._runner.cache.capacity == 1024
    assert len(set(tokens)) > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_bucket(family, dtype, make_model):
    """Trees of all sizes, in an order that returns to earlier buckets, and the kept rows."""
    model = make_model(family, device="cuda", dtype=dtype, attention="triton")
    target, other = GraphTarget(model), ModelTarget(model)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(96, (30,), generator=generator).cuda()
    target.prefill(prompt)
    other.prefill(prompt)
    for size in (1, 5, 64, 2, 33, 130, 8, 512, 3, 17, 300, 1, 5, 64, 130):
        tree = random_tree(size, generator)
        scores, expected = target.score(tree), other.score(tree)
        assert distance(scores.logits, expected.logits) < (1e-3 if dtype == torch.float32 else 0.1)
        path = tree.shape.path(size - 1)
        commit(target, tree, path, scores)
        commit(other, tree, path, expected)
    graphs = target._runner.place.graphs
    assert set(graphs) == set(target.model._runner._passes)
    assert {size.rows for size in graphs} <= {bucket(size) for size in range(1, 513)}
    assert len(graphs) <= most_sizes(512)


def test_nothing_waits(make_model):
    """Neither loading a tree nor replaying its pass synchronises with the device."""
    target = GraphTarget(make_model(device="cuda"))
    target.prefill(torch.arange(20).cuda())
    generator = torch.Generator().manual_seed(0)
    trees = [random_tree(size, generator) for size in (7, 5, 8, 3)]
    for tree in trees:
        target.score(tree)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            for tree in trees:
                target.score(tree)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_buffers_are_not_overtaken(make_model):
    """Many trees are loaded while the device is behind: each of them is scored, not only the last."""
    model = make_model(device="cuda", attention="triton")
    target, other = GraphTarget(model), ModelTarget(model)
    target.prefill(torch.arange(20).cuda())
    other.prefill(torch.arange(20).cuda())
    generator = torch.Generator().manual_seed(0)
    trees = [random_tree(8, generator) for _ in range(50)]
    target.score(trees[0])
    torch.cuda._sleep(200_000_000)
    got = [target.score(tree).logits.clone() for tree in trees]
    for tree, logits in zip(trees, got, strict=True):
        torch.testing.assert_close(logits, other.score(tree).logits, rtol=1e-3, atol=1e-3)


def test_targets_after_and_beside_each_other(make_model, monkeypatch):
    from treespec.models.passes import captured_runner

    captures = []
    capture = captured_runner.capture
    monkeypatch.setattr(
        captured_runner,
        "capture",
        lambda *args: (captures.append(None), capture(*args))[1],  # arguments would live on
    )
    model = make_model(device="cuda")
    tree = random_tree(4, torch.Generator().manual_seed(0))
    for _ in range(3):
        target = GraphTarget(model)
        target.prefill(torch.arange(5).cuda())
        scores = target.score(tree)
        logits = scores.logits.clone()
        del target
    assert len(captures) == 1
    one, two = GraphTarget(model), GraphTarget(model)
    one.prefill(torch.arange(5).cuda())
    two.prefill(torch.arange(9).cuda())
    of_one, of_two = one.score(tree), two.score(tree)
    assert len(captures) == 2
    torch.testing.assert_close(of_one.logits, logits)
    assert not torch.allclose(of_two.logits, logits, atol=0.1)
    with pytest.raises(StaleScores):
        _ = scores.logits


def test_which_target_a_model_gets(make_model, caplog):
    assert type(make_target(make_model(device="cuda"))) is GraphTarget
    stablelm = make_model("StableLm", device="cuda")
    with pytest.raises(UnsupportedModel, match="as a mask through their own attention"):
        GraphTarget(stablelm)
    with caplog.at_level(logging.WARNING, logger="treespec"):
        assert type(make_target(stablelm)) is ModelTarget
    assert "not captured" in caplog.text
    experts = make_model("Mixtral", device="cuda")
    experts.model.set_experts_implementation("eager")
    with pytest.raises(UnsupportedModel, match=r"reads values back|waits for the device"):
        GraphTarget(experts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_are_right_or_refused(dtype, make_model):
    """Which experts can be captured depends on torch, transformers and the device."""
    model = make_model("Mixtral", device="cuda", dtype=dtype, attention="triton")
    other = ModelTarget(model)
    try:
        target = GraphTarget(model)
    except UnsupportedModel as reason:
        pytest.skip(str(reason))
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(96, (30,), generator=generator).cuda()
    target.prefill(prompt)
    other.prefill(prompt)
    for size in (5, 8, 3, 8):
        tree = random_tree(size, generator)
        error = distance(target.score(tree).logits, other.score(tree).logits)
        assert error < (1e-3 if dtype == torch.float32 else 0.1)


def test_generate(monkeypatch):
    pair = load_pair("embedded", device="cuda")
    made = []
    module = importlib.import_module("treespec.generation")
    for make in (make_target, ModelTarget):
        monkeypatch.setattr(
            module, "make_target", lambda model, make=make: made.append(make(model)) or made[-1]
        )
        text_of = generate(pair, "def main(", max_new_tokens=100)
        assert text_of.steps < 100
        made.append(text_of.tokens)
    assert [type(one) for one in made[::2]] == [GraphTarget, ModelTarget]
    assert made[1] == made[3]


def test_a_batch_of_unequal_texts(make_model):
    """One captured pass for all texts, of the target and of the draft; each is what it is alone."""
    from many_texts import alone, together

    from treespec.batch import Text
    from treespec.models.pass_kinds import Passes
    from treespec.models.passes.captured_runner import Places

    for family in ("Llama", "Gemma2"):
        target, draft = (make_model(family, seed=seed, device="cuda") for seed in (0, 1))
        draft.run_by(Places().copying_runner, Passes("captured"))
        sampling = Sampling(temperature=0.0)

        def text(i, target=target, draft=draft, sampling=sampling):
            shape = (TreeShape.expansion([3, 2]), TreeShape.chain(4))[i % 2]
            drafter = ModelDrafter(draft, shape, Law.DETERMINISTIC, sampling)
            generator = torch.Generator().manual_seed(i)
            prompt = torch.randint(1, 96, (1 + 90 * i,), generator=generator).cuda()
            return Text(
                GraphTarget(target), drafter, verify.greedy, prompt, sampling, TorchCoins(i), 20 + 7 * i
            )  # fmt: skip

        found = together([text(i) for i in range(6)], places=4)
        for i, told in enumerate(found):
            expected = alone(text(i))
            assert told.error is expected.error is None
            assert told.tokens == expected.tokens
            torch.testing.assert_close(told.chances, expected.chances, rtol=0, atol=1e-3)
