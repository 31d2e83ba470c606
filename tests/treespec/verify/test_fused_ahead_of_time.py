"""The fused kernel compiles for GPUs that need not be present, and spills no registers.

Triton decides at import whether it compiles or interprets, so this file runs itself in a process without
TRITON_INTERPRET.
"""

import importlib
import os
import subprocess
import sys

from attention_masks.compiling import compile_kernel, table

fused_module = importlib.import_module("treespec.verify.engine.fused")


def test_ahead_of_time(tmp_path):
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == 1 + 12, done.stdout


def compile_ahead_of_time():
    """Print one line for each cubin; assert that none spills."""
    assert "triton" not in sys.modules, "importing treespec loads Triton"
    import triton.language as tl

    from treespec.verify.engine import fused_kernel

    pointers = dict.fromkeys(("tokens", "plan", "uniforms", "scratch", "out"), "")
    pointers |= {"tokens": "*i64", "plan": "*i32", "uniforms": "*fp64", "out": "*i32"}
    numbers = dict.fromkeys(("size", "vocab", "row_stride", "draft_stride", "limit"), "i32")
    aligned = {"rows", "draft_probs", *pointers, "vocab", "row_stride", "draft_stride"}
    made = []
    simple = "GREEDY", "NAIVE", "RRS", "ONEHOT", "RRSW", "MULTIDRAFT", "HUB"
    for rule, rows, dtype, arch in (
        *((rule, "LOGITS", "bf16", 90) for rule in simple),
        # RRSW needs the most registers of all rules, so spills would begin here.
        ("RRSW", "LOGITS", "bf16", 100),
        ("RRSW", "ARGMAX", "fp16", 80),
        ("RRSW", "PROBS", "fp32", 80),
        ("HUB", "LOGITS", "bf16", 80),
        ("MULTIDRAFT", "LOGITS", "bf16", 100),
    ):
        signature = {"rows": f"*{dtype}", "draft_probs": "*fp32", **pointers, "scratch": "*fp32"}
        signature |= numbers | {"temperature": "fp32"}
        constants = {
            "LENIENCE": 0.5 if rule == "RRS" else 1.0,
            "RULE": getattr(fused_kernel, rule).value,
            "ROWS": getattr(fused_kernel, rows).value,
            "WIDE": tl.float32,
            "BLOCK": fused_module.BLOCK,
        }
        options = fused_module.options(fused_module.BLOCK)
        label = f"{rule} {rows} {dtype}"
        made.append(
            compile_kernel(
                fused_kernel.walk, signature, constants, aligned, arch, options, label=label
            )
        )
        assert made[-1].cubin[:4] == b"\x7fELF"
    print(table(made))
    assert not any(kernel.problems for kernel in made), table(made)


if __name__ == "__main__":
    compile_ahead_of_time()
