"""The fused kernel compiled for GPUs that need not be there: it compiles, and spills no registers.

Whether Triton compiles or interprets is decided when it is imported, so this file runs itself in a process
without TRITON_INTERPRET.
"""

import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

fused_module = importlib.import_module("treespec.verify.fused")


def test_ahead_of_time(tmp_path):
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == 8, done.stdout


def compile_ahead_of_time():
    """A line for each cubin; spills nowhere."""
    assert "triton" not in sys.modules, "importing treespec loads Triton"
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from treespec.verify import fused_kernel

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    pointers = dict.fromkeys(("tokens", "plan", "uniforms", "scratch", "out"), "")
    pointers |= {"tokens": "*i64", "plan": "*i32", "uniforms": "*fp64", "out": "*i32"}
    numbers = dict.fromkeys(("size", "vocab", "row_stride", "draft_stride", "limit"), "i32")
    for rule, rows, dtype, arch in (
        *((rule, "LOGITS", "bf16", 90) for rule in ("GREEDY", "NAIVE", "RRS", "ONEHOT", "RRSW")),
        # The most registers of all rules: where spills would begin.
        ("RRSW", "LOGITS", "bf16", 100),
        ("RRSW", "ARGMAX", "fp16", 80),
        ("RRSW", "PROBS", "fp32", 80),
    ):
        signature = {"rows": f"*{dtype}", "draft_probs": "*fp32", **pointers, "scratch": "*fp32"}
        signature |= numbers | {"temperature": "fp32"}
        constants = {
            "RULE": getattr(fused_kernel, rule).value,
            "ROWS": getattr(fused_kernel, rows).value,
            "WIDE": tl.float32,
            "BLOCK": fused_module.BLOCK,
        }
        aligned = {(i,): [["tt.divisibility", 16]] for i in (*range(7), 8, 9, 10)}
        source = ASTSource(
            fused_kernel.walk, signature | dict.fromkeys(constants, "constexpr"), constants, aligned
        )
        options = fused_module.options(fused_module.BLOCK)
        made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        assert made.asm["cubin"][:4] == b"\x7fELF"
        usage = ""
        if tool.exists():
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(made.asm["cubin"])
                file.flush()
                command = [tool, "--dump-resource-usage", file.name]
                usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert re.findall(r"STACK:(\d+)", usage) == ["0"], (rule, rows, arch, usage)
        print(rule, rows, dtype, arch, *re.findall(r"REG:\d+", usage))


if __name__ == "__main__":
    compile_ahead_of_time()
