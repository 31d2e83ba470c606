"""Compiling kernels without a GPU: what is read from the cubin, and what cannot be compiled.

Triton decides at import whether it compiles or interprets, so this file runs itself in processes with and
without TRITON_INTERPRET.
"""

import os
import pickle
import subprocess
import sys

import pytest

from attention_masks.compiling import (
    SHARED_LIMITS,
    TENSOR_MEMORY_LIMIT,
    Compiled,
    compile_kernel,
    table,
)
from attention_masks.errors import InvalidInput, Unavailable

SIGNATURE = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "count": "i32"}


def product():
    """A kernel that uses tensor cores."""
    import triton
    import triton.language as tl

    def multiply(a, b, c, count, SIZE: tl.constexpr):  # noqa: N803
        line = tl.arange(0, SIZE)
        place = line[:, None] * SIZE + line[None, :]
        total = tl.zeros([SIZE, SIZE], tl.float32)
        for i in range(count):
            x, y = tl.load(a + i * SIZE * SIZE + place), tl.load(b + i * SIZE * SIZE + place)
            total = tl.dot(x, y, total)
        tl.store(c + place, total)

    multiply.__globals__["tl"] = tl  # Triton looks names up there
    return triton.jit(multiply)


def compiled():
    kernel = product()
    kernels = [
        compile_kernel(
            kernel, SIGNATURE, {"SIZE": size}, "abc", capability, options, label=f"size={size}"
        )
        for capability, size, options in (
            (80, 64, {"num_warps": 4, "num_stages": 3}),
            (90, 64, {"num_warps": 4, "num_stages": 3}),
            (100, 64, {"num_warps": 4, "num_stages": 3}),
            # The accumulators do not fit into 64 registers.
            (80, 64, {"num_warps": 1, "num_stages": 2, "maxnreg": 64}),
        )
    ]
    ampere, hopper, blackwell, spilled = kernels
    for without_spills in kernels[:3]:
        assert without_spills.problems == (), without_spills
        assert without_spills.stack == without_spills.spills == 0
        assert without_spills.shared >= 2 * 64 * 64 * 2
        assert 0 < without_spills.registers <= 255
        assert "ld.param" in without_spills.ptx
        assert without_spills.cubin[:4] == b"\x7fELF"
    assert ampere.instructions["mma"]
    assert not ampere.uses_wgmma
    assert ampere.instructions["cp.async"]
    assert hopper.instructions["cp.async"]
    assert hopper.uses_wgmma
    assert not hopper.instructions["mma"]
    assert blackwell.instructions["tcgen05"]
    assert 0 < blackwell.tensor_memory <= TENSOR_MEMORY_LIMIT
    assert ampere.opcodes["HMMA"]
    assert hopper.opcodes["HGMMA"]
    assert blackwell.opcodes["UTCHMMA"]
    assert spilled.stack
    assert spilled.spills
    assert "stack" in spilled.problems[0]
    assert pickle.loads(pickle.dumps(kernels)) == kernels
    print(table(kernels))


def fusion():
    """If fusion is off, no product and sum are rounded together."""
    import triton
    import triton.language as tl

    def add(x, y, SIZE: tl.constexpr):  # noqa: N803
        place = tl.arange(0, SIZE)
        value = tl.load(x + place)
        tl.store(y + place, value * value + value)

    add.__globals__["tl"] = tl
    kernel = triton.jit(add)
    arguments = kernel, {"x": "*fp32", "y": "*fp32"}, {"SIZE": 128}, "xy", 90
    assert compile_kernel(*arguments).opcodes["FFMA"]
    assert not compile_kernel(*arguments, {"enable_fp_fusion": False}).opcodes["FFMA"]


def refused():
    kernel = product()
    good = kernel, SIGNATURE, {"SIZE": 64}, "abc", 90
    for wrong, message in (
        ((*good[:4], 70), "capability = 70 is not known: it must be one of 80,"),
        ((len, *good[1:]), "is not a Triton kernel"),
    ):
        with pytest.raises(InvalidInput, match=message):
            compile_kernel(*wrong)


def interpreted():
    with pytest.raises(Unavailable, match="TRITON_INTERPRET was on"):
        compile_kernel(product(), SIGNATURE, {"SIZE": 64}, "abc", 90)


@pytest.mark.parametrize("what", ["compiled fusion refused", "interpreted"])
def test_in_a_separate_process(what, tmp_path):
    interpret = str(int(what == "interpreted"))
    env = {**os.environ, "TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, __file__, *what.split()], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]


def compiled_with(**changes):
    values = {
        "kernel": "walk",
        "label": "",
        "capability": 90,
        "warps": 4,
        "registers": 128,
        "stack": 0,
        "shared": 1024,
        "tensor_memory": 0,
        "instructions": dict.fromkeys(("wgmma", "mma", "tcgen05", "cp.async", "tma"), 0),
        "ptx": "",
        "cubin": b"",
    }
    return Compiled(**(values | changes))


def test_limits():
    for capability, limit in SHARED_LIMITS.items():
        assert not compiled_with(capability=capability, shared=limit).problems
        too_large = compiled_with(capability=capability, shared=limit + 1)
        assert "does not start" in too_large.problems[0]
    assert (SHARED_LIMITS[80], SHARED_LIMITS[90]) == (163 * 1024, 227 * 1024)
    too_large = compiled_with(capability=100, tensor_memory=1024)
    assert "tensor memory 1024 > 512" in too_large.problems[0]


def test_table():
    kernels = [compiled_with(label="n=1"), compiled_with(shared=228 * 1024)]
    head, first, second = table(kernels).splitlines()
    assert head.split()[:3] == ["kernel", "target", "warps"]
    assert head.index("target") == first.index("sm_90") == second.index("sm_90")
    assert first.startswith("walk n=1 ")
    assert first.endswith(" ok")
    assert second.endswith("shared memory 228 > 227 KiB: does not start")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
