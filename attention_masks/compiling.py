"""Compile kernels for GPUs that need not be present, and report registers, spills and shared memory.

Triton decides at import whether it compiles or interprets, so this module works only in processes without
TRITON_INTERPRET. Compiling a kernel takes about a second and shares nothing with others, so it can be
spread over processes. A `Compiled` can be pickled but a kernel cannot: give a worker of a
`ProcessPoolExecutor` the name of a kernel and let it import the kernel.

Triton is imported only when a kernel is compiled.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from attention_masks.errors import InvalidInput, Unavailable

SHARED_LIMITS = {
    80: 163 * 1024,
    86: 99 * 1024,
    87: 163 * 1024,
    89: 99 * 1024,
    90: 227 * 1024,
    100: 227 * 1024,
    103: 227 * 1024,
    120: 99 * 1024,
    121: 99 * 1024,
}
"""Bytes of shared memory available to one program, by compute capability (8.0 is 80)."""

TENSOR_MEMORY_LIMIT = 512
"""Columns of tensor memory available to one program, on GPUs that have such memory (sm_100, sm_103)."""

# PTX names of instructions that compute and that copy: tensor cores of Hopper, of Ampere and of Blackwell;
# asynchronous copies to shared memory, and copies through a tensor map.
_INSTRUCTIONS = {
    "wgmma": r"\bwgmma\.mma_async\b",
    "mma": r"(?<!wg)\bmma\.(?:sync|sp)\b",
    "tcgen05": r"\btcgen05\.mma\b",
    "cp.async": r"\bcp\.async\.c[ag]\b",
    "tma": r"\bcp\.async\.bulk\.tensor\b",
}

_SASS_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z]\w*)")


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one target.

    Attributes:
        kernel: name of the kernel.
        label: the variant, in the caller's words.
        capability: compute capability of the target, 90 for sm_90.
        warps: warps per program.
        registers: registers per thread.
        stack: bytes of local memory per thread, 0 if nothing was spilled.
        shared: bytes of shared memory per program.
        tensor_memory: columns of tensor memory per program.
        instructions: number of occurrences in the PTX of "wgmma", "mma" (of sm_80), "tcgen05" (the mma of
            sm_100), "cp.async" and "tma"; an instruction in a loop counts once.
        ptx: the program before ptxas.
        cubin: the program after ptxas.
    """

    kernel: str
    label: str
    capability: int
    warps: int
    registers: int
    stack: int
    shared: int
    tensor_memory: int
    instructions: Mapping[str, int]
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)

    @cached_property
    def sass(self) -> str:
        """The machine code, disassembled at first use (takes about a second)."""
        return _cuobjdump("--dump-sass", self.cubin)

    @cached_property
    def opcodes(self) -> Mapping[str, int]:
        """Occurrences of each machine instruction, without modifiers: HGMMA, LDGSTS, BAR."""
        return Counter(_SASS_LINE.findall(self.sass))

    @cached_property
    def spills(self) -> int:
        """Number of instructions that move registers to or from local memory; 0 without a stack."""
        if not self.stack:
            return 0
        return self.opcodes.get("STL", 0) + self.opcodes.get("LDL", 0)

    @property
    def uses_wgmma(self) -> bool:
        """Whether the kernel uses Hopper's warp-group matrix instructions."""
        return self.instructions["wgmma"] > 0

    @property
    def problems(self) -> tuple[str, ...]:
        """Reasons why the kernel is slow or does not start; empty if there are none."""
        reasons = []
        limit = SHARED_LIMITS[self.capability]
        if self.shared > limit:
            reasons.append(f"shared memory {_kib(self.shared)} > {_kib(limit)} KiB: does not start")
        if self.tensor_memory > TENSOR_MEMORY_LIMIT:
            reasons.append(
                f"tensor memory {self.tensor_memory} > {TENSOR_MEMORY_LIMIT} columns: does not start"
            )
        if self.stack:
            reasons.append(f"{self.stack} bytes of stack, {self.spills} loads and stores of it")
        return tuple(reasons)


def compile_kernel(
    fn: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    divisible: Iterable[str],
    capability: int,
    options: Mapping[str, Any] | None = None,
    *,
    label: str = "",
) -> Compiled:
    """Compile a Triton kernel for a GPU that need not be present.

    `signature`: type of each argument known only at run time: "*bf16", "i32", "fp32". `constexprs`: value
    of every other argument: those that the kernel annotates as `tl.constexpr`, and those that a launch
    would specialise on, such as a stride of 1 or an argument that is None. `divisible`: arguments that are
    multiples of 16, which a launch would detect: pointers in bytes (true of tensors that torch allocates,
    not of every view), and integers. `options`: `num_warps`, `num_stages`, `maxnreg`, `enable_fp_fusion`,
    ... as at the launch. Fusion of multiplications with additions is on unless disabled here; it is passed
    to Triton explicitly, because Triton's default changes between versions. Returns the compiled kernel. It
    may come from Triton's cache (TRITON_CACHE_DIR) instead of the compiler.
    """
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from triton.runtime import JITFunction
    except ImportError as error:
        raise Unavailable(
            f"compiling a kernel needs Triton: pip install triton ({error})"
        ) from error
    # Triton's own functions (tl.sum and others) are kernels too, created when Triton was imported.
    if not isinstance(triton.language.sum, JITFunction) or _is_interpreted(fn):
        raise Unavailable(
            "TRITON_INTERPRET was on when Triton or the kernel was imported, and an interpreted kernel "
            "cannot be compiled: start a process without it (TRITON_INTERPRET=0)"
        )
    if not isinstance(fn, JITFunction):
        raise InvalidInput(f"{fn!r} is not a Triton kernel: decorate it with triton.jit alone")
    if capability not in SHARED_LIMITS:
        known = ", ".join(map(str, SHARED_LIMITS))
        raise InvalidInput(f"capability = {capability} is not known: it must be one of {known}")
    divisible = set(divisible)
    # In the kernel's argument order: attributes refer to arguments by position.
    types = {name: signature.get(name, "constexpr") for name in fn.arg_names}
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(fn.arg_names) if name in divisible
    }
    made = triton.compile(
        ASTSource(fn, types, dict(constexprs), attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"enable_fp_fusion": True} | dict(options or {}),
    )
    cubin, ptx, metadata = made.asm["cubin"], made.asm["ptx"], made.metadata
    usage = _cuobjdump("--dump-resource-usage", cubin)
    numbers = {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", usage)}
    return Compiled(
        kernel=fn.__name__,
        label=label,
        capability=capability,
        warps=metadata.num_warps,
        registers=numbers["REG"],
        stack=numbers["STACK"] + numbers["LOCAL"],
        shared=metadata.shared,
        tensor_memory=getattr(metadata, "tmem_size", None) or 0,
        instructions={name: len(re.findall(regex, ptx)) for name, regex in _INSTRUCTIONS.items()},
        ptx=ptx,
        cubin=cubin,
    )


def table(rows: Iterable[Compiled]) -> str:
    """Format compiled kernels as aligned text: one line per kernel, ending in "ok" or its problems."""
    columns: dict[str, Callable[[Compiled], Any]] = {
        "kernel": lambda x: f"{x.kernel} {x.label}".rstrip(),
        "target": lambda x: f"sm_{x.capability}",
        "warps": lambda x: x.warps,
        "registers": lambda x: x.registers,
        "stack B": lambda x: x.stack,
        "shared KiB": lambda x: _kib(x.shared),
        "of KiB": lambda x: _kib(SHARED_LIMITS[x.capability]),
        **{name: lambda x, name=name: x.instructions[name] for name in _INSTRUCTIONS},
        "verdict": lambda x: "; ".join(x.problems) or "ok",
    }
    lines = [list(columns), *([str(get(x)) for get in columns.values()] for x in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    left = {0, 1, len(columns) - 1}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in lines
    )


def _is_interpreted(fn: Any) -> bool:
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(fn, InterpretedFunction)


def _cuobjdump(option: str, cubin: bytes) -> str:
    """The output of NVIDIA's cuobjdump, which Triton's wheel ships, for a cubin."""
    from triton import knobs

    try:
        tool = knobs.nvidia.cuobjdump
    except RuntimeError:
        raise Unavailable(
            "inspecting a compiled kernel needs cuobjdump, which Triton's wheel ships but this "
            "installation lacks: set TRITON_CUOBJDUMP_PATH to the cuobjdump of a CUDA toolkit"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        run = subprocess.run([tool.path, option, file], capture_output=True, text=True, check=False)
    if run.returncode:
        raise Unavailable(f"{tool.path} {option} failed: {run.stderr.strip()}")
    return run.stdout


def _kib(size: int) -> str:
    return f"{size / 1024:.4g}"
