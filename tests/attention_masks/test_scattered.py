"""Attention of sequences in memory of their own, through Triton's interpreter, against each alone.

Whether a kernel is interpreted is decided when Triton is imported, so this file runs itself in a process
with TRITON_INTERPRET=1 (`test_through_the_interpreter`).
"""

import importlib
import math
import os

import pytest
import torch

from attention_masks import InvalidInput, TreePass, topology
from attention_masks.testing import assert_accurate
from attention_masks.tree_attention import Options
from attention_masks.tree_attention.scattered import places, scattered_attention
from attention_masks.tree_attention.scattered_pass import ScatteredPass, ScatteredSize

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")
KV_HEADS, CPU = 2, torch.device("cpu")
TREES = (
    ([-1, 0, 0, 1, 2, 1, 4], 11, 0),
    ([-1], 300, 0),
    ([-1, 0, 1, 1, 2], 0, 2),
    ([-1, 0], 64, 1),
)
"""Parents, prefix and first row of four sequences."""


@pytest.fixture(autouse=True)
def _poisoned(request, monkeypatch):
    """Fill what the kernels write with NaN before."""
    if not INTERPRETED:
        return
    request.getfixturevalue("quick_interpreter")
    scattered = importlib.import_module("attention_masks.tree_attention.scattered")
    empty = torch.empty_like
    monkeypatch.setattr(
        scattered.torch, "empty_like", lambda *a, **kw: empty(*a, **kw).fill_(math.nan)
    )


def made(group, dim, dtype, trees=TREES, seed=0):
    """Passes, rows of queries, keys and values, and memories whose tree rows to run are NaN."""
    generator = torch.Generator().manual_seed(seed)
    passes, memories = [], []
    for parents, prefix, first in trees:
        passes.append(TreePass(topology(parents), prefix, range(first, len(parents))))
        slots = prefix + len(parents) + 3
        k, v = torch.randn(2, 1, KV_HEADS, slots, dim, generator=generator).to(dtype)
        k[:, :, prefix + first :] = v[:, :, prefix + first :] = math.nan
        memories.append((k, v))
    rows = sum(tree_pass.row_count for tree_pass in passes)
    q = torch.randn(1, rows + 6, KV_HEADS * group, dim, generator=generator).mul(2).transpose(1, 2)
    k, v = torch.randn(2, 1, KV_HEADS, rows + 6, dim, generator=generator).to(dtype)
    return passes, memories, (q.to(dtype), k, v)


def run(passes, memories, q, k, v, options, texts=6, nodes=8, keys=512):
    """The rows of the pass and of padding."""
    scattered = ScatteredPass(ScatteredSize(texts, q.shape[2], nodes, keys), CPU)
    scattered.buffer.copy_(scattered.filled(passes))
    scattered.scratch(CPU, 1 << 20).fill_(math.nan)
    table = torch.zeros(texts, 3, dtype=torch.long)  # an address that is read would crash
    table[: len(memories)] = places(memories)
    return scattered_attention(q, k, v, table, scattered, options)


@interpreted
@pytest.mark.parametrize("keys", [64, 1024])  # one split, several
@pytest.mark.parametrize(
    ("group", "dim", "dtype", "options"),
    [
        (2, 16, torch.float32, {}),
        (3, 24, torch.float32, {"window": 4}),
        (4, 64, torch.float16, {"softcap": 2.0, "window": 200}),
        (1, 8, torch.float32, {"sinks": torch.tensor([0.5, 3.0])}),
    ],
)
def test_each_sequence_is_what_it_is_alone(group, dim, dtype, options, keys):
    passes, memories, (q, k, v) = made(group, dim, dtype)
    before = [tuple(x.clone() for x in pair) for pair in memories]
    whole = Options(scale=dim**-0.5, **options)
    found = run(passes, memories, q, k, v, whole, keys=keys)
    row = 0
    for tree_pass, memory, old in zip(passes, memories, before, strict=True):
        end, count = row + tree_pass.row_count, tree_pass.key_count
        first = count - tree_pass.row_count
        for new, rows, was in zip(memory, (k, v), old, strict=True):
            assert torch.equal(new[:, :, first:count], rows[:, :, row:end])
            assert torch.equal(new[:, :, :first], was[:, :, :first])
            assert new[:, :, count:].isnan().all()
        visible = tree_pass.mask(options.get("window"), CPU)
        rest = {name: x for name, x in options.items() if name != "window"}
        assert_accurate(found[:, :, row:end], q[:, :, row:end], *memory, visible, **rest)
        row = end
    assert (found[:, :, row:] == 0).all()


@interpreted
@pytest.mark.parametrize("mutant", ["trees", "memories", "positions"])
def test_what_is_mixed_up_is_seen(mutant):
    """Two sequences of equal sizes, with trees, memories or positions of the other."""
    trees = (([-1, 0, 1, 2], 20, 0), ([-1, 0, 0, 0], 20, 0))
    passes, memories, (q, k, v) = made(2, 16, torch.float32, trees)
    options = Options(scale=0.25, window=21)
    right = run(passes, [tuple(x.clone() for x in m) for m in memories], q, k, v, options)
    if mutant == "trees":
        passes = passes[::-1]
    elif mutant == "memories":
        memories = memories[::-1]
    else:
        flat = [topology(tree_pass.topology.parents) for tree_pass in passes]
        for tree in flat:
            object.__setattr__(tree, "depth", torch.arange(tree.size, dtype=torch.int32))
        passes = [TreePass(tree, 20) for tree in flat]
    wrong = run(passes, memories, q, k, v, options)
    assert (right - wrong).abs().max() > 1e-2


def test_what_does_not_fit_is_refused():
    scattered = ScatteredPass(ScatteredSize(2, 4, 4, 64), CPU)
    chain = TreePass(topology([-1, 0]), 5)
    assert scattered.positions.tolist() == [0, 0, 0, 0]
    scattered.buffer.copy_(scattered.filled([chain, TreePass(topology([-1]), 7)]))
    assert scattered.positions.tolist() == [5, 6, 7, 0]
    for passes in ([chain] * 3, [TreePass(topology([-1, 0, 0, 0, 0]), 0)]):
        with pytest.raises(InvalidInput, match="do not fit"):
            scattered.filled(passes)


@plain
def test_through_the_interpreter(interpret):
    interpret(__file__)
