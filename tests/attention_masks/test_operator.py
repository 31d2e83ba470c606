"""The operator of tree attention on a CPU: against the walk over parents, and as a compiler sees it.

Without the interpreter it is the reference; this file runs itself with the kernel too.
"""

import os

import pytest
import torch

from attention_masks import topology
from attention_masks.testing import assert_accurate, visible_by_walk
from attention_masks.tree_attention import PassArrays
from attention_masks.tree_attention.operator import tree_attention_operator
from attention_masks.tree_attention.pass_arrays import fill

TREE = (-1, 0, 0, 1, 2, 1, 4)
PREFIX = 9
SLOTS = 80
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPE = torch.float32 if INTERPRETED else torch.float64


def arguments(rows=range(7), capacity=8, nodes=8, dtype=DTYPE, **options):
    """Arguments of the operator, with NaN in unused slots."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 4, capacity, 16, generator=generator, dtype=dtype)
    k, v = torch.randn(2, 1, 2, SLOTS, 16, generator=generator, dtype=dtype)
    k[:, :, PREFIX + len(TREE) :] = v[:, :, PREFIX + len(TREE) :] = torch.nan
    arrays = PassArrays.empty(1, capacity, nodes)
    fill(arrays, 0, topology(TREE), PREFIX, rows)
    given = {"sinks": None, "scale": 0.25, "softcap": None, "window": None} | options
    counters = torch.zeros(64, dtype=torch.int32)
    return q, k, v, arrays.buffer, counters, *given.values()


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 4}, {"softcap": 2.0}, {"sinks": torch.arange(4.0, dtype=DTYPE)}],
)
@pytest.mark.parametrize("rows", [range(7), range(3, 7)])
def test_every_option(rows, options):
    given = arguments(rows, nodes=64, **options)
    out = tree_attention_operator(*given).transpose(1, 2)
    used = slice(0, PREFIX + len(TREE))
    q, k, v = given[0][:, :, : len(rows)], given[1][:, :, used], given[2][:, :, used]
    visible = visible_by_walk(TREE, PREFIX, rows=rows, window=options.get("window"))
    options = {name: value for name, value in options.items() if name != "window"}
    assert_accurate(out[:, :, : len(rows)], q, k, v, visible, scale=0.25, **options)
    assert not out[:, :, len(rows) :].any()  # padding


def test_what_a_compiler_needs():
    """The shapes that it is told are right, and nothing is changed or returned that was given."""
    torch.library.opcheck(
        torch.ops.treespec.tree_attention.default,
        arguments(),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.skipif(INTERPRETED, reason="runs in the process outside")
def test_by_the_kernel(interpret):
    interpret(__file__)
