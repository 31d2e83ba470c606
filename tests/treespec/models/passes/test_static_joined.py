"""Passes over several texts in fixed memory, compared with each text's own static pass.

Whether a kernel is interpreted is decided when Triton is imported, so this file runs itself in a process
with TRITON_INTERPRET=1.
"""

import os
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from attention_masks.tree_attention import ScatteredPass, scattered
from treespec.features import Features
from treespec.models.passes.static_joined import StaticJoinedPass, StaticTogether
from treespec.models.passes.static_pass import StaticRunner
from treespec.models.passes.static_trial import NoHostReads
from treespec.models.transformers_model import TransformersModel
from treespec.models.waiting import Nodes

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")

POISON = 95
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
PROMPTS = (11, 1, 40, 5)
TREES = ((-1, 0, 0, 1, 2, 1, 4), (-1,), (-1, 0, 1, 1, 2), (-1, 0, 0))
"""Of four texts. All but the second have branches, and sizes differ."""


@pytest.fixture(autouse=True)
def _quick(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


def tokens_of(count, seed):
    return torch.randint(POISON, (count,), generator=torch.Generator().manual_seed(seed))


def texts_of(model, prompts=PROMPTS, reads=None, together=True):
    """Texts of a model, behind their prompts."""
    layout = model.finding.layout
    shared = StaticTogether(model.model, layout) if together else None
    texts = [model.fresh(runner=partial(StaticRunner, together=shared)) for _ in prompts]
    for i, (text, length) in enumerate(zip(texts, prompts, strict=True)):
        if reads is not None:
            text.lend(reads)
        text.prefill(tokens_of(length, i))
    return texts


def run_both(joined, alone, trees=TREES, first=0, seed=10):
    """Scores of one pass over all texts, and of a pass of each."""
    nodes = [
        Nodes(tokens_of(len(parents) - first, seed + i), parents, first)
        for i, parents in enumerate(trees)
    ]
    parts = [*zip(joined, nodes, strict=True)]
    found = joined[0].run_together(parts)
    assert len({text.joins for text in joined}) == 1
    copies = [
        SimpleNamespace(
            logits=scores.logits.clone(),
            features=None if scores.features is None else scores.features.clone(),
        )
        for scores in found
    ]
    expected = [text.run(*part) for text, part in zip(alone, nodes, strict=True)]
    return copies, expected


def require_close(found, expected):
    for mine, own in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.logits, own.logits, **CLOSE)


def rows(text):
    """Committed rows of all layers."""
    cache = text.runner.cache
    return [x[:, :, : cache.length] for layer in cache.layers for x in (layer.keys, layer.values)]


@interpreted
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_unequal_trees_step_after_step(name, load):
    """Logits of every node and committed rows, while texts grow, leave and come back."""
    model = TransformersModel(load(name, max_position_embeddings=512))
    joined, alone = texts_of(model), texts_of(model)
    members = [0, 1, 2, 3]
    for step in range(4):
        trees = [TREES[(i + step) % 4] for i in members]
        found, expected = run_both(
            [joined[i] for i in members], [alone[i] for i in members], trees, seed=20 * step
        )
        require_close(found, expected)
        for i, parents in zip(members, trees, strict=True):
            path = range(min(2, len(parents)))
            for text in (joined[i], alone[i]):
                text.keep(path)
            for mine, own in zip(rows(joined[i]), rows(alone[i]), strict=True):
                torch.testing.assert_close(mine, own, **CLOSE)
        members = [[0, 2], [3, 1, 2], [0, 1, 2, 3], []][step]
    together = joined[0].runner.together
    assert {size.texts for size, _ in together.passes} == {2, 4}


@interpreted
@pytest.mark.parametrize("name", ["mistral", "mixtral", "qwen3", "gpt_neox", "gemma3", "opt"])
def test_other_models(name, load):
    model = TransformersModel(load(name))
    require_close(*run_both(texts_of(model), texts_of(model)))


@interpreted
def test_a_cache_that_grows(load):
    """The pass stays and finds the rows at their new addresses."""
    model = TransformersModel(load("llama", max_position_embeddings=1024))
    joined, alone = (texts_of(model, (253, 300)) for _ in range(2))
    memories, trees = set(), ((-1, 0, 1), (-1, 0, 0))
    for step in range(3):
        require_close(*run_both(joined, alone, trees, seed=7 * step))
        memories.add(joined[0].runner.cache.memory)
        for text in (*joined, *alone):
            text.keep((0, 1))
    assert len(memories) == 2
    assert len(joined[0].runner.together.passes) == 1  # the other cache is the larger one


@interpreted
def test_in_parts_and_with_features(load):
    model = TransformersModel(load("gemma2"))
    reads = Features((1, 0), "post")
    joined, alone = (texts_of(model, reads=reads) for _ in range(2))
    trees = ((-1, 0, 0), (-1, 0, 1), (-1, 0, 0), (-1, 0, 1))
    deeper = ((-1, 0, 0, 1, 2), (-1, 0, 1, 2), (-1, 0, 0, 2, 2, 4), (-1, 0, 1, 0))
    for given, first in ((trees, 0), (deeper, 3)):
        found, expected = run_both(joined, alone, given, first, seed=first)
        require_close(found, expected)
        for mine, own in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.features, own.features, **CLOSE)


@interpreted
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_whatever_the_padding_and_unwritten_rows_hold(name, load, monkeypatch):
    model = TransformersModel(load(name))
    with torch.no_grad():
        model.model.get_input_embeddings().weight[POISON] = torch.nan
    joined, alone = texts_of(model), texts_of(model)
    with torch.inference_mode():
        for text in joined:
            for layer in text.runner.cache.layers:
                layer.keys[:, :, text.length :] = layer.values[:, :, text.length :] = torch.nan
    load_pass = StaticJoinedPass.load

    def poisoned(self, texts):
        self.input_ids.fill_(POISON)
        load_pass(self, texts)

    monkeypatch.setattr(StaticJoinedPass, "load", poisoned)
    found, expected = run_both(joined[:3], alone[:3], TREES[:3])
    require_close(found, expected)
    assert all(scores.logits.isfinite().all() for scores in found)
    for text, parents in zip(joined, TREES[:3], strict=False):
        for layer in text.runner.cache.layers:
            assert layer.keys[:, :, text.length + len(parents) :].isnan().all()


@interpreted
def test_nothing_is_read_back_from_the_device(load):
    model = TransformersModel(load("llama"))
    joined = texts_of(model)
    nodes = [Nodes(tokens_of(len(parents), i), parents) for i, parents in enumerate(TREES)]
    joined[0].run_together([*zip(joined, nodes, strict=True)])
    (static,) = joined[0].runner.together.passes.values()
    with torch.inference_mode(), NoHostReads():
        static.run()


@interpreted
@pytest.mark.parametrize("mutant", ["trees", "caches", "positions", "no text"])
def test_what_is_mixed_up_is_seen(mutant, load, monkeypatch):
    """Between two texts whose trees have one size."""
    model, trees = TransformersModel(load("gemma2")), ((-1, 0, 0, 1), (-1, 0, 1, 2))
    joined, alone = (texts_of(model, (20, 20)) for _ in range(2))
    filled, places = ScatteredPass.filled, scattered.places
    if mutant == "trees":
        monkeypatch.setattr(
            ScatteredPass, "filled", lambda self, passes, **kw: filled(self, passes[::-1], **kw)
        )
    elif mutant == "caches":
        monkeypatch.setattr(scattered, "places", lambda memories: places(memories[::-1]))
    elif mutant == "positions":

        def flat(self, passes, **options):
            buffer, size = filled(self, passes, **options), self.size.rows
            at = buffer[2 + 2 * size : 2 + 3 * size]
            at.copy_(at[0] + torch.arange(size))
            return buffer

        monkeypatch.setattr(ScatteredPass, "filled", flat)
    found, expected = run_both(joined, alone, trees)
    if mutant == "no text":
        require_close(found, expected)
        return
    with pytest.raises(AssertionError):
        require_close(found, expected)


@interpreted
def test_runners_that_share_nothing_run_alone(load):
    model = TransformersModel(load("llama"))
    assert texts_of(model, together=False)[0].joins is None
    one, other = texts_of(model)[0], texts_of(model)[0]
    assert one.joins != other.joins


@plain
def test_four_unequal_trees_through_the_interpreter(interpret):
    interpret(__file__, "-k", "test_what_is_mixed_up or (unequal and gemma2)")


@plain
@pytest.mark.slow
def test_through_the_interpreter(interpret):
    interpret(__file__)
