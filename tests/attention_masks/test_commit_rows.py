"""Moving accepted rows: the kernel through its interpreter, compiled ahead of time, and on a GPU.

Triton decides at import whether it interprets kernels, so this file runs itself in a process with
TRITON_INTERPRET=1 (`test_through_the_interpreter`), and in one without it to compile.
"""

import doctest
import importlib
import importlib.util
import logging
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attention_masks import InvalidInput, Unavailable, Unsupported
from attention_masks.commit_rows import RowMover, commit_rows
from attention_masks.compiling import compile_kernel, table

module = importlib.import_module("attention_masks.commit_rows")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="see test_through_the_interpreter")
plain = pytest.mark.skipif(INTERPRETED, reason="about Triton outside its interpreter")
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8]


@pytest.fixture(autouse=True)
def _interpreter(request):
    if INTERPRETED:
        request.getfixturevalue("quick_interpreter")


@st.composite
def moves(draw):
    """Number of slots, sources and first destination, often close enough to overlap."""
    start = draw(st.integers(0, 6))
    gaps = draw(st.lists(st.integers(1, 3) | st.just(1), max_size=40))
    first = start + draw(st.integers(0, 3))
    source = [first + sum(gaps[:i]) for i in range(len(gaps))]
    return (source[-1] if source else first) + 1 + draw(st.integers(0, 4)), source, start


def cache(slots, shape=(2, 1, 2), dims=(5, 3), dtype=torch.float32, device="cpu"):
    """Keys and values with random numbers of a wide range, so that few are equal."""
    tensors = []
    for seed, dim in enumerate(dims):
        size = *shape, slots, dim
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randint(0, 200, size, generator=generator)
        tensors.append(numbers.to(dtype).to(device))
    return tensors


def by_hand(rows, source, start):
    """The moved rows, written slot by slot into a copy."""
    moved = rows.clone()
    for i, slot in enumerate(source):
        moved[:, :, :, start + i] = rows[:, :, :, slot]
    return moved


def bits(rows):
    """The rows as bytes, so that NaN equals NaN."""
    return rows.contiguous().view(torch.uint8)


def check(source, start, keys, values, impl, given=None):
    expected = [None if x is None else by_hand(x, source, start) for x in (keys, values)]
    commit_rows(keys, values, source if given is None else given, start, impl=impl)
    for found, right in zip((keys, values), expected, strict=True):
        assert found is None or torch.equal(bits(found), bits(right)), (source, start)


@interpreted
@settings(max_examples=60)
@given(moves(), st.sampled_from(DTYPES), st.sampled_from([2, 4, 16]), st.sampled_from([5, 33]))
def test_overlapping_moves(move, dtype, chunk, dim):
    slots, source, start = move
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attention_masks.commit_kernel.BLOCK_T", chunk)
        keys, values = cache(slots, (2, 1, 1), (dim, 3), dtype)
        check(source, start, keys, values, "triton")


@settings(max_examples=60)
@given(moves(), st.sampled_from(DTYPES))
@example((5, [], 2), torch.float32)
def test_the_gather(move, dtype):
    slots, source, start = move
    check(source, start, *cache(slots, dtype=dtype), "torch")
    check(source, start, *cache(slots, dtype=dtype), "auto", torch.tensor(source).int())


@interpreted
@pytest.mark.parametrize("blocks", [32, 128])
def test_column_blocks_layers_sequences_and_heads(blocks, monkeypatch):
    monkeypatch.setattr("attention_masks.commit_kernel.BLOCK_D", blocks)
    source = [3, 4, 6, 7, 9]
    check(source, 2, *cache(12, (2, 3, 2), (80, 40)), "triton")
    check(source, 2, *cache(12, (1, 2, 1), (16, 130), torch.bfloat16), "triton")
    check(source, 2, cache(12)[0], None, "triton")
    keys, values = cache(12)
    check(source, 2, keys, values.double(), "triton")
    check(range(4, 9), 4, keys, values, "triton")
    check([], 12, keys, values, "triton")
    check([11], 0, *cache(12, (0, 1, 1)), "triton")
    check([11], 0, *cache(12, dims=(0, 0)), "triton")


@interpreted
def test_any_strides():
    """Values stored beside keys, heads after slots, every second sequence, columns with gaps."""
    source = [3, 4, 6, 7, 9]
    keys_and_values = cache(12, (2, 4, 2), (8, 0))[0]
    check(source, 2, keys_and_values[..., :5], keys_and_values[..., 5:], "triton")
    check(source, 2, *(x.transpose(2, 3).contiguous().transpose(2, 3) for x in cache(12)), "triton")
    keys, values = cache(12, (2, 4, 2))
    check(source, 2, keys[:, ::2], values[:, 1::2], "triton")
    check(source, 2, *(x.mT.contiguous().mT for x in cache(12)), "triton")


@pytest.mark.parametrize("impl", ["torch", pytest.param("triton", marks=interpreted)])
def test_poisoned_rows_stay_where_they_are(impl):
    """NaN in every slot that is not a source: none reaches a destination, and none is overwritten."""
    source, start = [4, 5, 8, 11, 12], 3
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        keys, values = cache(16, dtype=dtype)
        others = [slot for slot in range(16) if slot not in source]
        for rows in (keys, values):
            rows[:, :, :, others] = math.nan
        check(source, start, keys, values, impl)
        for rows in (keys, values):
            finite = rows.isfinite().all(-1).flatten(0, 2)
            expected = [slot in source or start <= slot < start + 5 for slot in range(16)]
            assert finite.tolist() == [expected] * len(finite)


@pytest.mark.parametrize("impl", ["torch", pytest.param("triton", marks=interpreted)])
def test_moves_preserve_bits(impl):
    """NaN with a payload, infinities, signed zeros, subnormals."""
    words = torch.tensor([0x7FC12345, -1, 0x7F800001, -(2**31), 1, 0x7F800000], dtype=torch.int32)
    keys = words.repeat(1, 1, 1, 9, 1).roll(3, dims=-1)
    keys += torch.arange(9, dtype=torch.int32)[:, None]
    check([2, 3, 6, 8], 1, keys.view(torch.float32), keys.clone().view(torch.bfloat16), impl)


MUTANTS = {
    "chunks from the last to the first: rows are overwritten before they are read": (
        "i = first + tl",
        "i = (count - 1) // BLOCK_T * BLOCK_T - first + tl",
    ),
    "a chunk is stored before its rows are read": (
        "rows = tl.load(line",
        "tl.store(line + (start + i)[:, None] * stride_slot + at, 0, mask=inside)\n"
        "        rows = tl.load(line",
    ),
    "destination": ("start + i)", "start + i + 1)"),
    "layer": ("* k_layer", "* 0"),
    "head": ("* v_head", "* 0"),
    "sequence": ("// kv_heads % batch", "% batch"),
    "a block of keys too many": ("block < k_blocks", "block <= k_blocks"),
    "block of values": ("block = block - k_blocks", "block = block"),
    "last column": ("cols < dim", "cols < dim - 1"),
}


@interpreted
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_kernels_are_caught(mutant, tmp_path, monkeypatch):
    before, after = MUTANTS[mutant]
    text = Path(importlib.import_module("attention_masks.commit_kernel").__file__).read_text()
    body = text.index("@triton.jit")
    assert before in text[body:]
    file = tmp_path / "mutant.py"
    file.write_text(text[:body] + text[body:].replace(before, after))
    spec = importlib.util.spec_from_file_location("mutant", file)
    mutant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutant)
    monkeypatch.setattr(mutant, "BLOCK_T", 4)
    monkeypatch.setattr(mutant, "BLOCK_D", 4)
    monkeypatch.setattr(module, "_kernel", lambda device: mutant)
    with pytest.raises(AssertionError):
        check([3, *range(5, 14)], 2, *cache(20, (2, 2, 2), (12, 6)), "triton")


@interpreted
def test_unchecked_sources_stay_inside_the_slots(monkeypatch):
    """Sources on the device are not checked; the kernel skips slots that do not exist."""
    monkeypatch.setattr(module, "_checked_source", lambda source, *_: source)
    keys = cache(10)[0]
    held = torch.full((2, 1, 2, 30, 5), math.nan)
    held[:, :, :, 10:20] = keys
    before = held.clone()
    commit_rows(held[:, :, :, 10:20], None, torch.tensor([-1, 5, 10, 2**40]), 2, impl="triton")
    before[:, :, :, 13] = before[:, :, :, 15]
    assert torch.equal(bits(held), bits(before))


@pytest.mark.parametrize(
    ("source", "start", "message"),
    [
        ([3, 3], 1, r"source\[1\] = 3 after 3, but source must increase strictly: \[3, 3\]"),
        ([3, 5, 4], 1, r"source\[2\] = 4 after 5"),
        ([3, 5], 4, r"source\[0\] = 3 is below start = 4, but no row moves upwards: \[3, 5\]"),
        ([-1, 5], 0, r"source\[0\] = -1 is below start = 0"),
        ([3, 12], 1, r"source\[1\] = 12, but there are 12 slots"),
        ([3], -1, r"slots -1\.\.-1, but there are 12"),
        (list(range(4, 12)), 5, r"8 rows go to slots 5\.\.12, but there are 12"),
        (torch.tensor([3, 3]), 1, r"source\[1\] = 3 after 3"),
        (torch.tensor([3, 4]).short(), 1, r"torch.int16 \[2\], but must be a list of int32 or"),
    ],
)
def test_sources_are_checked(source, start, message):
    keys, values = cache(12)
    before = keys.clone(), values.clone()
    for impl in ("torch", "auto"):
        with pytest.raises(InvalidInput, match=message):
            commit_rows(keys, values, source, start, impl=impl)
    assert torch.equal(keys, before[0])
    assert torch.equal(values, before[1])


@pytest.mark.usefixtures("without_shape_checks")
def test_other_wrong_inputs():
    keys, values = cache(12)
    for error, message, arguments, options in (
        (InvalidInput, "equal in all but the last", (keys, values[:1], [3], 1), {}),
        (InvalidInput, "must be .layers, batch", (keys[0], None, [3], 1), {}),
        (InvalidInput, "values are on meta", (keys, values.to("meta"), [3], 1), {}),
        (InvalidInput, "keys are expanded", (keys[:1].expand(2, -1, -1, -1, -1), None, [3], 1), {}),
        (InvalidInput, "source is on meta", (keys, None, torch.tensor([3]).to("meta"), 1), {}),
        (InvalidInput, r"source\[0\] = 3.0, but it must be", (keys, None, [3.0], 1), {}),
        (InvalidInput, "start = '1', but it must be", (keys, None, [3], "1"), {}),
        (InvalidInput, "must be 'auto', 'torch' or", (keys, None, [3], 1), {"impl": "cuda"}),
        (Unsupported, "at most 8 bytes", (keys.to(torch.complex128), None, [3], 1), {}),
        (Unsupported, "need gradients", (keys.clone().requires_grad_(), None, [3], 1), {}),
    ):
        with pytest.raises(error, match=message):
            commit_rows(*arguments, **options)


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_a_mover_moves_again_and_again(count):
    keys, values = cache(40)
    mover = RowMover(keys, values, impl="torch")
    for start in (5, 2):
        source = [start + 2 + i for i in range(count)]
        hoped = [by_hand(rows, source, start) for rows in (keys, values)]
        mover(source, start)
        assert torch.equal(keys, hoped[0])
        assert torch.equal(values, hoped[1])
    with pytest.raises(InvalidInput, match="source must increase strictly"):
        mover([7, 7], 3)
    learned = RowMover(keys.clone().requires_grad_(), None, impl="torch")
    with torch.no_grad():
        learned([3], 1)
    with pytest.raises(Unsupported, match="keys need gradients"):
        learned([3], 1)


@plain
def test_no_silent_fallback(monkeypatch):
    keys, values = cache(12)
    with pytest.raises(Unavailable, match="needs a CUDA device, and the rows are on cpu"):
        commit_rows(keys, values, [3], 1, impl="triton")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "attention_masks.commit_kernel", raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(Unavailable, match="needs Triton: pip install triton"):
        commit_rows(keys, values, [3], 1, impl="triton")
    # Even if there is nothing to move.
    with pytest.raises(Unavailable, match="needs Triton"):
        commit_rows(keys, values, [], 1, impl="triton")
    check([3], 1, keys, values, "auto")


def test_the_choice_of_auto_is_logged_once(caplog):
    module._choose.cache_clear()
    with caplog.at_level(logging.INFO, "attention_masks"):
        for _ in range(2):
            check([3], 1, *cache(12), "auto")
    assert [record.getMessage() for record in caplog.records] == [
        "commit_rows on cpu: impl='auto' takes 'torch'"
    ]


def test_examples_in_docstrings():
    assert doctest.testmod(module).failed == 0


@plain
def test_through_the_interpreter(interpret):
    interpret(__file__, "-m", "not gpu")


@plain
def test_ahead_of_time(tmp_path):
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count(" ok\n") == 6, done.stdout


def compile_ahead_of_time():
    """Print one line for each cubin; assert no stack, no shared memory, and a barrier after the loads."""
    assert "triton" not in sys.modules, "importing attention_masks loads Triton"
    from attention_masks import commit_kernel

    kernel, cubins = commit_kernel.move_rows, []
    axes = ("layer", "batch", "head", "slot", "col")
    strides = [f"{name}_{axis}" for name in "kv" for axis in axes]
    constants = {"BLOCK_T": commit_kernel.BLOCK_T, "BLOCK_D": commit_kernel.BLOCK_D}
    constants |= {"k_col": 1, "v_col": 1, "batch": 1}
    aligned = [*strides, "k_dim", "v_dim", "keys", "values", "source"]
    for capability in (80, 90, 100):
        for word in ("i16", "i32"):
            types = dict.fromkeys(kernel.arg_names, "i32")
            types |= {"keys": f"*{word}", "values": f"*{word}", "source": "*i64"}
            cubin = compile_kernel(
                kernel,
                {name: type for name, type in types.items() if name not in constants},
                constants,
                [name for name in aligned if name not in constants],
                capability,
                {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False},
                label=word,
            )
            cubins.append(cubin)
            assert not cubin.problems, cubin.problems
            assert cubin.stack == cubin.shared == 0
            assert re.search(r"ld\.global\S*\.v4\.b32", cubin.ptx), "rows are read in narrow pieces"
            # For keys, then for values: rows are loaded, all threads meet, rows are stored. The same
            # holds in machine code: the assembler moved no load or store across the barrier.
            for text, words in (
                (cubin.ptx, {"ld.global": "l", "bar.sync": "b", "barrier.sync": "b", "st.global": "s"}),
                (cubin.sass, {"LDG": "l", "BAR.SYNC": "b", "STG": "s"}),
            ):  # fmt: skip
                found = re.findall("|".join(map(re.escape, words)), text)
                order = "".join(words[x] for x in found)
                assert re.fullmatch(r"(l+bs+)+l*", order), order
                assert order.count("b") >= 2, order
    print(table(cubins))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_gpu(dtype):
    """Races between threads occur only on a GPU: repeat long, overlapping moves of many layers."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        picked = torch.randperm(300, generator=generator)[: 1 + 13 * seed].sort().values
        source, start = (5 + picked).tolist(), seed % 6
        shape, dims = (7, 1 + seed % 2, 8), (128, 128 if seed % 3 else 72)
        for form in (source, torch.tensor(source).cuda(), torch.tensor(source).cuda().int()):
            for impl in ("auto", "triton", "torch"):
                keys, values = cache(310, shape, dims, dtype, "cuda")
                check(source, start, keys, values, impl, form)


@pytest.mark.gpu
def test_no_synchronisation():
    keys, values = cache(64, (4, 1, 8), (128, 128), torch.bfloat16, "cuda")
    index = torch.tensor([5, 8, 9]).cuda()
    commit_rows(keys, values, index, 3)  # compiles
    commit_rows(keys, values, [5, 8, 9], 3)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        commit_rows(keys, values, index, 3)
        commit_rows(keys, values, [5, 8, 9], 3)
    finally:
        torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    compile_ahead_of_time()
