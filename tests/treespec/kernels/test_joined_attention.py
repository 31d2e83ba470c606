"""Attention of several texts: each as by `masked_attention` alone, which is compared with float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_masks import topology
from attention_masks.dense import dense_mask
from treespec.kernels.joined_attention import joined_attention
from treespec.kernels.masked_attention import masked_attention
from treespec.models.cache import LayerShape, TreeCache
from treespec.models.passes.joined_pass import places_of

SINGLE, BRAIN = torch.float32, torch.bfloat16
HIDDEN = torch.finfo(SINGLE).min
CPU = torch.device("cpu")

TREES = ((-1,), (-1, 0), (-1, 0, 0, 1, 1, 3), (-1, 0, 1, 2, 3), (-1, 0, 0, 0))


def caches(lengths, shared, dim, value_dim, dtype, draws, layers=2):
    """One cache for each text, with random rows."""
    made = []
    for length in lengths:
        cache = TreeCache([LayerShape(1, shared, dim, value_dim, dtype, CPU)] * layers)
        cache.begin(0, length + 8)
        for layer in cache.layers:
            for rows in (layer.keys, layer.values):
                rows.copy_(torch.randn(rows.shape, generator=draws))
        cache.length = length
        made.append(cache)
    return made


def each_alone(query, key, value, texts, layer, sinks, window, softcap):
    """Write the rows of each text, and attend by the kernel for one text."""
    found = []
    row = 0
    for cache, parents, first in texts:
        count = len(parents) - first
        rows = slice(row, row + count)
        cache.begin(first, count)
        keys, values = cache.layers[layer].update(key[:, :, rows], value[:, :, rows])
        nodes = range(first, len(parents))
        visible = dense_mask(topology(parents), cache.length, rows=nodes, window=window)
        bias = torch.where(visible, 0.0, HIDDEN)
        found.append(masked_attention(query[:, :, rows], keys, values, bias, sinks, 0.3, softcap))
        row += count
    return torch.cat(found, dim=1)


def arguments(texts):
    lines, arrays, row, node = [], [], 0, 0
    for cache, parents, first in texts:
        tree = topology(parents)
        lines.append((row, len(parents) - first, first, cache.length, node))
        arrays.append(torch.stack([tree.pre, tree.end, tree.depth]))
        row, node = row + len(parents) - first, node + len(parents)
    places = torch.stack([places_of(cache) for cache, _, _ in texts], dim=1)
    return places, torch.tensor(lines), torch.cat(arrays, dim=1)


@given(
    st.sampled_from([SINGLE, BRAIN]),
    st.lists(
        st.tuples(st.sampled_from(TREES), st.integers(0, 300), st.integers(0, 3)), min_size=1, max_size=6
    ),
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([0, 1, 3, 100]), st.sampled_from([0.0, 2.0]),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def check(dtype, drawn, shared, group, window, softcap, sunk, seed):
    draws = torch.Generator().manual_seed(seed)
    dim, value_dim = 6, 10
    own = caches([length for _, length, _ in drawn], shared, dim, value_dim, dtype, draws)
    texts = [
        (cache, parents, min(first, len(parents) - 1))
        for cache, (parents, _, first) in zip(own, drawn, strict=True)
    ]
    rows = sum(len(parents) - first for _, parents, first in texts)
    shapes = ((shared * group, rows, dim), (shared, rows, dim), (shared, rows, value_dim))
    query, key, value = (torch.randn(1, *s, generator=draws).to(dtype) for s in shapes)
    sinks = torch.randn(shared * group, generator=draws) if sunk else None
    before = [[layer.keys.clone() for layer in cache.layers] for cache in own]
    for cache, parents, first in texts:
        cache.begin(first, len(parents) - first)
    options = (sinks, 1, window, 0.3, softcap)
    got = joined_attention(query, key, value, *arguments(texts), *options)
    written = [[layer.keys.clone() for layer in cache.layers] for cache in own]
    expected = each_alone(query, key, value, texts, 1, sinks, window or None, softcap)
    assert got.dtype == dtype
    # Keys may be read in other parts, whose sums are joined in another order.
    close = {SINGLE: {"rtol": 2e-5, "atol": 2e-6}, BRAIN: {"rtol": 1.6e-2, "atol": 2e-2}}[dtype]
    torch.testing.assert_close(got, expected, **close)
    for cache, was, now in zip(own, before, written, strict=True):
        assert torch.equal(now[0], was[0])  # another layer
        assert torch.equal(now[1], cache.layers[1].keys)  # as the cache itself writes them


def test_each_text_attends_as_if_alone_and_writes_its_own_rows(kernel):
    check()


def test_a_text_does_not_depend_on_its_neighbours(kernel):
    draws = torch.Generator().manual_seed(0)
    own = caches([70, 20], 2, 8, 8, SINGLE, draws)
    texts = [(own[0], TREES[2], 0), (own[1], TREES[3], 0)]
    query, key, value = (torch.randn(1, 2, 11, 8, generator=draws) for _ in range(3))
    both = joined_attention(query, key, value, *arguments(texts), None, 0, 0, 0.3, 0.0)
    own[1].layers[0].keys.fill_(1e30)
    own[1].layers[0].values.fill_(-1e30)
    key[:, :, 6:], value[:, :, 6:] = 1e30, 1e30
    again = joined_attention(query, key, value, *arguments(texts), None, 0, 0, 0.3, 0.0)
    assert torch.equal(again[:, :6], both[:, :6])
    assert not torch.equal(again[:, 6:], both[:, 6:])


def test_rows_that_do_not_fit_are_refused(kernel):
    own = caches([3], 2, 8, 8, SINGLE, torch.Generator().manual_seed(0))
    query = torch.randn(1, 2, 1, 8)
    with pytest.raises(ValueError, match="do not fit"):
        joined_attention(
            query, query, query.bfloat16(), *arguments([(own[0], (-1,), 0)]), None, 0, 0, 0.3, 0.0
        )
