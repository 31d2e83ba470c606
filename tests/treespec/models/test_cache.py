"""The cache compared with a plain list of rows, and in a model compared with recomputing everything."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treespec.models.cache import FIRST_CAPACITY, TreeCache
from treespec.models.transformers_model import TransformersModel
from treespec.step import Verdict
from treespec.tree import TreeShape

SHAPES = [(2, 3), (2, 3), (1, 4)]


def rows(values: list[int], layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [1, H, T, D] filled with these numbers, different in each layer."""
    heads, dim = SHAPES[layer]
    keys = torch.tensor(values, dtype=torch.float32)[None, None, :, None].expand(1, heads, -1, dim)
    return keys + 0.25 * layer, -keys - 0.25 * layer


def write(cache: TreeCache, first: int, values: list[int], expected: list[int]) -> None:
    """One pass through all layers; each must get all rows up to the last one written."""
    cache.begin(first, len(values))
    for layer in range(len(SHAPES)):
        assert cache.get_seq_length() == len(expected) - len(values)
        assert cache.get_mask_sizes(len(values), layer) == (len(expected), 0)
        keys, held = cache.update(*rows(values, layer), layer)
        assert torch.equal(keys, rows(expected, layer)[0])
        assert torch.equal(held, rows(expected, layer)[1])


def warm() -> TreeCache:
    cache = TreeCache()
    write(cache, 0, [1], [1])
    return cache


@st.composite
def passes(draw: st.DrawFn) -> list[tuple[int, int, list[int]]]:
    """Trees as (nodes of the first pass, nodes of the second pass, kept nodes)."""
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        first, second = draw(st.integers(1, 90)), draw(st.integers(0, 90))
        kept = draw(st.sets(st.integers(0, first + second - 1), max_size=12))
        steps.append((first, second, sorted(kept)))
    return steps


@settings(max_examples=50)
@given(passes(), st.booleans(), st.integers(0, 300))
def test_it_holds_what_a_list_would(
    steps: list[tuple[int, int, list[int]]], known: bool, prompt: int
) -> None:
    cache = TreeCache(warm().layout) if known else TreeCache()
    committed, fresh = [], iter(range(10**6))
    if prompt:
        committed = [next(fresh) for _ in range(prompt)]
        write(cache, 0, committed, committed)
        cache.keep(range(prompt))
    for first, second, kept in steps:
        nodes = [next(fresh) for _ in range(first)]
        write(cache, 0, nodes, committed + nodes)
        if second:
            more = [next(fresh) for _ in range(second)]
            write(cache, first, more, committed + nodes + more)
            nodes += more
        cache.keep(kept)
        committed = committed + [nodes[i] for i in kept]
        assert cache.length == cache.get_seq_length() == len(committed)
    write(cache, 0, [7], [*committed, 7])


def test_equal_layers_share_memory_and_others_do_not() -> None:
    layout = warm().layout
    cache = TreeCache(layout)
    write(cache, 0, [1], [1])
    first, second, third = cache.layers
    assert cache.layout == layout
    assert first.keys.untyped_storage().data_ptr() == second.keys.untyped_storage().data_ptr()
    assert first.keys.untyped_storage().data_ptr() != third.keys.untyped_storage().data_ptr()
    assert cache.capacity == FIRST_CAPACITY


def test_layers_without_rows_are_left_out() -> None:
    layout = (warm().layout[0], None, warm().layout[2])
    cache = TreeCache(layout)
    cache.begin(0, 2)
    cache.update(*rows([1, 2], 0), 0)
    cache.update(*rows([1, 2], 2), 2)
    cache.keep([1])
    assert cache.layout == layout
    assert cache.layers[1].keys is None


def test_writing_copies_nothing_but_the_new_rows() -> None:
    cache = TreeCache(warm().layout)
    write(cache, 0, [1, 2, 3], [1, 2, 3])
    cache.keep([0, 2])
    address = cache.layers[0].keys.data_ptr()
    write(cache, 0, [4], [1, 3, 4])
    assert cache.layers[0].keys.data_ptr() == address
    assert cache.update(*rows([4], 0), 0)[0].data_ptr() == address


@dataclass
class Standing:
    """A decision that stands."""

    out: torch.Tensor
    stands: bool = True

    def verdict(self) -> Verdict:
        raise AssertionError


def test_a_decision_is_forgotten_when_rows_are_written_again() -> None:
    cache = warm()
    write(cache, 0, [10, 11, 12], [10, 11, 12])
    decision = Standing(torch.tensor([0, 2, 5, 1]))
    cache.keep_ahead(torch.tensor([[0, -1], [0, 1], [0, 2]]), decision)
    write(cache, 0, [20, 21, 22], [20, 21, 22])
    cache.keep((0, 2))
    write(cache, 0, [30], [20, 22, 30])


def test_growth_doubles() -> None:
    cache = TreeCache(warm().layout)
    cache.begin(0, FIRST_CAPACITY)
    cache.keep(range(FIRST_CAPACITY))
    cache.begin(0, 1)
    assert cache.capacity == 2 * FIRST_CAPACITY
    cache.reset()
    assert (cache.length, cache.capacity) == (0, 2 * FIRST_CAPACITY)


def test_room_that_is_reserved_is_there_from_the_beginning() -> None:
    cache = TreeCache(warm().layout)
    cache.least = 3 * FIRST_CAPACITY
    cache.reserve(0, used=0)
    memory = cache.memory
    for _ in range(3):
        cache.begin(0, FIRST_CAPACITY)
        cache.keep(range(FIRST_CAPACITY))
    assert (cache.capacity, cache.memory) == (3 * FIRST_CAPACITY, memory)
    cache.begin(0, 1)
    assert cache.capacity == 6 * FIRST_CAPACITY


@st.composite
def kept_paths(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    """Parents of a tree, the last node of the path to keep, and the first node of the second pass."""
    size = draw(st.integers(1, 14))
    parents = (-1, *(draw(st.integers(0, i - 1)) for i in range(1, size)))
    return parents, draw(st.integers(0, size - 1)), draw(st.integers(1, size))


def test_keeping_a_path_equals_computing_it_anew(load: Callable[..., Any]) -> None:
    """With windows: rows behind a window are not confused with others."""
    model = TransformersModel(load("gemma3"))
    anew = model.fresh()
    prompt = torch.arange(1, 6)

    @settings(max_examples=20, suppress_health_check=list(HealthCheck))
    @given(st.lists(kept_paths(), min_size=1, max_size=3), st.integers(0, 99))
    def check(trees: list[tuple[tuple[int, ...], int, int]], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        model.prefill(prompt)
        text = prompt
        for parents, last_kept, split in trees:
            shape = TreeShape(parents)
            path = shape.path(last_kept)
            tokens = torch.randint(96, (shape.size,), generator=generator)
            model.run(tokens[:split], shape.parents[:split])
            if split < shape.size:
                model.run(tokens[split:], shape.parents, split)
            model.keep(path)
            text = torch.cat([text, tokens[list(path)]])
        anew.prefill(text)
        assert model.length == anew.length == len(text)
        last = torch.tensor([3, 4, 5])
        torch.testing.assert_close(
            model.run(last, (-1, 0, 0)).logits,
            anew.run(last, (-1, 0, 0)).logits,
            rtol=1e-4,
            atol=1e-4,
        )

    check()
