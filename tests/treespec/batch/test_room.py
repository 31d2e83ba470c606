"""Memory of a batch: what its caches take, said before any pass, and given to the next text."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import build

from treespec import Law, Sampling, TorchCoins, TreeShape, generate, load_pair, verify
from treespec.batch import Failed, Text, decode_many, decode_rounds, room
from treespec.draft import Cascade, EarlyExit, Merge, ModelDrafter, NoDrafter, PromptLookup
from treespec.errors import InvalidArgument
from treespec.models import memory
from treespec.models.cache import FIRST_CAPACITY
from treespec.models.transformers_model import TransformersModel
from treespec.target import ModelTarget
from treespec.testing import TabularModel, random_table

CPU, COLD = torch.device("cpu"), Sampling(0.0)
SHAPE = TreeShape.expansion([2, 2])
PROMPT, NEW = 5, 20


@pytest.fixture(scope="module")
def model() -> TransformersModel:
    return TransformersModel(build("llama"))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the free memory."""
    return lambda size: monkeypatch.setattr(room, "free_bytes", lambda device: size)


def text(model: Any, i: int = 0, drafter: Any = None, draft: Any = None) -> Text:
    return Text(
        ModelTarget(model), drafter or ModelDrafter(draft or model, SHAPE, Law.DETERMINISTIC, COLD),
        verify.greedy, torch.arange(1 + i, 1 + i + PROMPT), COLD, TorchCoins(i), NEW,
    )  # fmt: skip


def row(model: TransformersModel) -> int:
    """Bytes of a row, from the configuration."""
    config = model.model.config
    heads = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    return 2 * 4 * config.num_hidden_layers * heads


def rows(tokens: int, nodes: int) -> int:
    """Rows of a cache that holds a text and its trees."""
    return max(FIRST_CAPACITY, memory.rows_for(tokens, nodes))


def test_too_many_texts_are_refused_before_any_pass(
    model: TransformersModel, free: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 2 * row(model) * rows(PROMPT + NEW, SHAPE.size)
    free(6 * needed)
    texts = [text(model, i) for i in range(8)]
    monkeypatch.setattr(TransformersModel, "prefill", lambda *_: pytest.fail("it ran"))
    for decode in (decode_many, decode_rounds):
        with pytest.raises(
            InvalidArgument, match=r"8 texts at a time.*holds 6 of them.*\(places\)"
        ):
            decode(texts)
        decode(texts, places=6)
        with pytest.raises(InvalidArgument, match=r"7 texts at a time.*holds 6 of them"):
            decode(texts, places=7)
    free(6 * needed - 1)
    with pytest.raises(InvalidArgument, match="holds 5 of them"):
        decode_many(texts, places=6)
    free(1)
    with pytest.raises(InvalidArgument, match=r"1 text at a time.*not even one"):
        decode_many(texts[:1])


def test_what_is_reserved_or_allocated_counts(model: TransformersModel) -> None:
    made = text(model, drafter=NoDrafter())
    parts = made.target, made.drafter
    assert room.bytes_of(*parts, 100)[CPU] == row(model) * FIRST_CAPACITY
    assert room.bytes_of(*parts, 10**9)[CPU] == row(model) * rows(model.max_length, 1)
    made.target.model.reserve(500)
    assert room.bytes_of(*parts, 100)[CPU] == row(model) * 500
    made.target.prefill(made.prompt)
    assert room.bytes_of(*parts, 100)[CPU] == 0


@pytest.mark.parametrize("new", [20, 240])
def test_what_is_said_is_what_is_taken(model: TransformersModel, new: int) -> None:
    """Caches are allocated once, for the whole text."""
    texts = [replace(text(model, i), max_new_tokens=new) for i in range(3)]
    caches = [m.runner.cache for one in texts for m in room.models_of(one.target, one.drafter)]
    said = sum(room.bytes_of(t.target, t.drafter, PROMPT + new)[CPU] for t in texts)
    taken = set()
    for _ in decode_many(texts):
        taken.add(sum(row(model) * cache.capacity for cache in caches))
    assert max(taken) == said
    assert len(taken - {0}) == 1


@pytest.mark.usefixtures("without_shape_checks")
def test_a_text_of_another_kind_does_not_end_the_others(model: TransformersModel) -> None:
    wrong = ({"prompt": None}, {"prompt": torch.tensor(3)}, {"max_new_tokens": "5"})
    texts = [text(model), *(replace(text(model, i), **given) for i, given in enumerate(wrong, 1))]
    failed = {i for i, step in decode_many(texts) if isinstance(step, Failed)}
    assert failed == {1, 2, 3}


def test_every_cache_of_a_drafter_counts(model: TransformersModel) -> None:
    """Nothing is known of other models; early exit reads the target's rows."""
    draft = ModelDrafter(model, SHAPE, Law.DETERMINISTIC, COLD)
    other = ModelDrafter(TransformersModel(build("llama", 1)), SHAPE, Law.DETERMINISTIC, COLD)
    lookup = PromptLookup(3)
    table = TabularModel(random_table(5, 0), 5)
    one = row(model)
    for drafter, (caches, nodes) in (
        (lookup, (1, 64)),
        (draft, (2, SHAPE.size)),
        (Merge({"a": draft, "b": lookup}, 90, rates={"a": [[0.5]], "b": [[0.5]]}), (2, 90)),
        (Cascade(model, other, verify.greedy, 3, COLD, law=Law.DETERMINISTIC), (3, 4)),
        (EarlyExit(model, 1, SHAPE, Law.DETERMINISTIC, COLD), (1, SHAPE.size)),
        (ModelDrafter(table, SHAPE, Law.DETERMINISTIC, COLD), (1, SHAPE.size)),
    ):
        found = room.bytes_of(ModelTarget(model), drafter, 200)
        assert found[CPU] == one * caches * rows(200, nodes), type(drafter).__name__
    assert not room.bytes_of(ModelTarget(table), lookup, 100)


@pytest.mark.parametrize("places", [2, None])
def test_a_text_that_has_ended_gives_its_memory_to_the_next(
    model: TransformersModel, places: int | None
) -> None:
    texts = [text(model, i) for i in range(5)]
    caches = [[one.target.model.runner.cache, one.drafter.model.runner.cache] for one in texts]
    most = 0
    for _ in decode_many(texts, places=places):
        most = max(most, sum(all(cache.capacity for cache in pair) for pair in caches))
    assert most == (places or 5)
    again = decode_many([text(model, 0)])
    tokens = [token for _, step in again for token in step.tokens]
    first = [token for _, step in decode_many(texts[:1]) for token in step.tokens]
    assert first == tokens


def test_several_prompts_of_generate(free: Any) -> None:
    pair = load_pair("embedded")
    free(1)
    with pytest.raises(InvalidArgument, match=r"2 texts at a time.*not even one.*\(places\)"):
        generate(pair, ["import os", "def main("], max_new_tokens=8)


def test_free_memory_of_a_gpu_includes_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("memory_reserved", 50), ("memory_allocated", 20)):
        monkeypatch.setattr(torch.cuda, name, lambda device, size=size: size)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    assert memory.free_bytes(torch.device("cuda")) == 130
    assert memory.free_bytes(CPU) > 10**6
