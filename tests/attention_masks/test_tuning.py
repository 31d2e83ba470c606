"""Measured tiles: stored by size, written to a file, and off by default."""

import importlib
import json
import math

import pytest
import torch

from attention_masks import InvalidInput, TreePass, Unavailable, attend, topology
from attention_masks.tree_attention import tuning
from attention_masks.tree_attention.tiles import Tile, tile
from attention_masks.tree_attention.tuning import Size, TileFile, candidates

SIZE = Size("card", 2, 64, 128, 4096)
FAST, SLOW, TOO_LARGE = Tile(16, 64, 4, 3), Tile(32, 64, 4, 3), Tile(128, 64, 8, 9)
TIMES = {FAST: 0.001, SLOW: 0.002, TOO_LARGE: math.inf}


def test_the_fastest_is_kept_and_found_again(tmp_path):
    path = tmp_path / "cache" / "tiles.json"
    timed = []

    def seconds(shape):
        timed.append(shape)
        return TIMES[shape]

    file = TileFile(path, "3.7")
    assert file.tile(SIZE, TIMES, seconds) == FAST
    assert file.tile(SIZE, TIMES, seconds) == FAST
    assert TileFile(path, "3.7").tile(SIZE, TIMES, seconds) == FAST
    assert len(timed) == len(TIMES)  # each tile is timed once
    assert TileFile(path, "3.8").tile(SIZE._replace(rows=16), [SLOW], seconds) == SLOW
    assert json.loads(path.read_text())["triton"] == "3.8"  # choices of another version are dropped
    assert [file.name for file in path.parent.iterdir()] == ["tiles.json"]


def test_no_candidate_runs():
    file = TileFile(importlib.import_module("pathlib").Path("nowhere.json"), "3.7")
    assert file.tile(SIZE, [TOO_LARGE], TIMES.__getitem__) is None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"triton": "3.7", "tiles": [[1, 2]]}', '{"tiles": []}']
)
def test_a_broken_file_is_named(tmp_path, text):
    path = tmp_path / "tiles.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"tiles\.json is not a file of tiles.*delete it"):
        TileFile(path, "3.7")


def test_sizes_share_a_choice_by_class():
    assert Size.of("card", 2, 40, 128, 3000) == Size.of("card", 2, 64, 128, 4096) == SIZE
    assert Size.of("card", 2, 65, 128, 3000) != SIZE
    assert Size.of("card", 2, 64, 128, 4097) != SIZE


@pytest.mark.parametrize("generation", [8, 9, 10])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_table_is_among_the_candidates(generation, itemsize):
    for dim in (64, 96, 128, 256):
        found = candidates(itemsize, dim, generation)
        assert tile(64, dim, itemsize, generation) in found
        assert len(found) == len(set(found)) > 2
        assert all(256 % shape.block_n == 0 and shape.stages >= 1 for shape in found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without CUDA")
def test_tuning_is_refused_without_a_device(tmp_path):
    with pytest.raises(Unavailable, match="measured on a CUDA device, and there is none"):
        tuning.enable(tmp_path / "tiles.json")


@pytest.mark.gpu
def test_on_gpu(tmp_path):
    tree_pass = TreePass(topology([-1, 0, 0, 1]), 300)
    q = torch.randn(1, 4, 4, 64, device="cuda", dtype=torch.float16)
    k, v = torch.randn(2, 1, 2, 304, 64, device="cuda", dtype=torch.float16)
    expected = attend(q, k, v, tree_pass, impl="triton")
    tuning.enable(tmp_path / "tiles.json")
    try:
        tuned = attend(q, k, v, tree_pass, impl="triton")
    finally:
        tuning.disable()
    # Another tile adds up in another order: weights and output are each rounded to float16 once.
    rounding = 2 * torch.finfo(torch.float16).eps * float(v.abs().max())
    torch.testing.assert_close(tuned, expected, rtol=0, atol=rounding)
    assert len(json.loads((tmp_path / "tiles.json").read_text())["tiles"]) == 1
