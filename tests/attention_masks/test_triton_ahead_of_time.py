"""Every shipped tile of the tree attention kernel compiles for sm_80, sm_90 and sm_100 without spills."""

import os
import re
import subprocess
import sys

import pytest

from attention_masks import Unsupported
from attention_masks.compiling import SHARED_LIMITS, Compiled
from attention_masks.tree_attention.ahead_of_time import TARGETS, Variant, complaints, variants
from attention_masks.tree_attention.tiles import (
    COUNTED,
    FINE_CHUNK,
    MIN_CHUNK,
    MOST_MERGED_IN_PLACE,
    Plan,
    Tile,
    choices,
    planned,
    splits,
    tile,
)


def compile_all(tmp_path, *arguments):
    command = [sys.executable, "-m", "attention_masks.tree_attention.ahead_of_time", *arguments]
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "capability", [c if c == 80 else pytest.param(c, marks=pytest.mark.slow) for c in TARGETS]
)
def test_every_tile(tmp_path, capability):
    printed = compile_all(tmp_path, "--capability", str(capability))
    own = [variant for variant in variants() if variant.capability == capability]
    assert f"{len(own) + 3} kernels, 0 problems" in printed
    assert len(re.findall(r"^attend_split .* ok$", printed, re.MULTILINE)) == len(own)
    # Keys behind addresses are loaded as those of an argument are: in vectors, ahead of their use.
    numbers = r" +sm_\d+ +4 +\d+ +0 +(\S+) .* (\d+) +\d+  ok$"
    usual, scattered = (
        re.search(f"^{name}{numbers}", printed, re.MULTILINE)
        for name in ("attend_split bf16 128 16x64 plain", "attend_scattered bf16 128")
    )
    assert usual is not None
    assert scattered is not None
    assert scattered.groups() == usual.groups()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_tile_with_every_option(tmp_path):
    assert ", 0 problems" in compile_all(tmp_path, "--all")


def made(**changed):
    instructions = dict.fromkeys(("wgmma", "mma", "tcgen05", "cp.async", "tma"), 1)
    fields = {"stack": 0, "shared": 1, "tensor_memory": 0, "instructions": instructions}
    fields |= {"kernel": "k", "label": "", "capability": 90, "warps": 4, "registers": 9}
    return Compiled(**(fields | changed), ptx="", cubin=b"")


def test_complaints_name_the_problem():
    hopper = Variant(90, 2, 128, Tile(64, 64, 4, 3), "plain")
    assert not complaints(hopper, made())
    none = dict.fromkeys(("wgmma", "mma", "tcgen05", "cp.async", "tma"), 0)
    assert complaints(hopper, made(instructions=none | {"mma": 1})) == ("no wgmma",)
    small = hopper._replace(tile=Tile(16, 64, 4, 3))
    assert not complaints(small, made(instructions=none | {"mma": 1}))
    assert complaints(small, made(instructions=none)) == ("no tensor cores",)
    assert "does not start" in complaints(small, made(shared=SHARED_LIMITS[90] + 1))[0]


def test_the_table_has_a_tile_for_every_size():
    for generation in (7, 8, 9, 10, 11, 12):
        for rows in (1, 16, 17, 33, 65, 4096):
            for dim in (8, 64, 80, 96, 128, 256):
                for size in (2, 4):
                    chosen = tile(rows, dim, size, generation)
                    padded_dim = max(64, 1 << (dim - 1).bit_length())
                    assert (size, padded_dim, chosen) in choices(generation)
                    assert 256 % chosen.block_n == 0  # splits begin at tiles
    with pytest.raises(Unsupported, match="no tile for head_dim = 257"):
        tile(1, 257, 2, 9)


@pytest.mark.parametrize(
    ("keys", "programs", "warps", "expected"),
    [
        (1, 1, 4, 1),
        (100, 8, 4, 1),
        (600, 8, 4, 3),  # no split below 256 keys
        (4_100, 8, 4, 17),  # 136 programs: the last 4 share a multiprocessor
        (16_400, 8, 4, 17),  # 33 splits would end no earlier, and have more sums to merge
        (100_000, 8, 4, 17),
        (100_000, 9, 4, 17),
        (100_000, 8, 8, 16),  # 132 programs fit: 17 splits would need a second wave
        (100_000, 132, 8, 1),
        (100_000, 60, 8, 2),
        (100_000, 100, 8, 1),  # two halves, one after the other, would not be faster
        (100_000, 200, 8, 1),
    ],
)
def test_splits_end_together(keys, programs, warps, expected):
    assert splits(keys, programs, Tile(64, 64, warps, 3), 132) == expected


HEADS = [(32, 8, 128), (64, 8, 128), (32, 32, 128), (8, 1, 256), (14, 2, 64)]


@pytest.mark.parametrize(("q_heads", "kv_heads", "dim"), HEADS)
def test_plans_stay_within_the_limits(q_heads, kv_heads, dim):
    """Counters, rows that one program merges, tiles that are compiled, and a program for each processor."""
    for generation in (8, 9, 10, 12):
        compiled = [
            shape for size, padded, shape in choices(generation) if (size, padded) == (2, dim)
        ]
        for nodes in (1, 8, 64, 256):
            for keys in (1, 100, 1_100, 16_500, 131_100):
                rows = nodes * q_heads // kv_heads
                plan = planned(rows, keys, kv_heads, dim, 2, 132, generation)
                assert plan.tile in compiled
                assert plan.chunk % plan.tile.block_n == 0
                if plan.in_place:
                    assert 2 <= plan.splits <= MOST_MERGED_IN_PLACE // plan.tile.block_m
                    assert -(-rows // plan.tile.block_m) * kv_heads <= COUNTED
                    assert generation != 10 or plan.tile.block_m < 128


@pytest.mark.parametrize(
    ("rows", "keys", "expected"),
    [
        (64, 1_040, Plan(Tile(32, 64, 4, 3), 6, True)),  # one launch behind short prefixes
        (256, 1_088, Plan(Tile(64, 64, 4, 3), 3, True)),
        (64, 65_552, Plan(Tile(64, 64, 4, 3), 20, False)),  # keys read once behind long ones
        (256, 65_600, Plan(Tile(128, 64, 8, 3), 8, False)),
        (1024, 16_640, Plan(Tile(128, 64, 8, 3), 2, True)),
    ],
)
def test_plans_of_an_h100(rows, keys, expected):
    assert planned(rows, keys, 8, 128, 2, 132, 9) == expected
    assert expected.chunk == (FINE_CHUNK if expected.in_place else MIN_CHUNK)


def test_a_measured_tile_is_kept():
    for keys in (100, 5_000, 100_000):
        assert planned(64, keys, 8, 128, 2, 132, 9, Tile(64, 32, 4, 2)).tile == Tile(64, 32, 4, 2)
    assert planned(1, 1, 1, 64, 2, 132, 9) == Plan(Tile(16, 64, 4, 4), 1, False)
