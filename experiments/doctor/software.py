"""Facts about what is installed: Python, treespec, torch, transformers, Triton, the kernels."""

import os
import platform
import sys
from importlib import metadata, util
from importlib.metadata import PackageNotFoundError

from treespec.experiments.doctor.findings import Fact, Status, judged

__all__ = [
    "attention",
    "captured_passes",
    "compiler",
    "passes",
    "python",
    "torch_build",
    "transformers",
    "treespec",
    "triton",
]

LEAST_PYTHON = (3, 11)
LEAST_TRANSFORMERS = (5, 17)

WIDE_VECTORS = ("AVX512", "AVX2")
"""Torch's names for processors with wide vectors; all others are slow."""


def python() -> Fact:
    """The version of Python, and the path of its executable."""
    value = f"{platform.python_version()} ({sys.executable})"
    advice = "treespec needs Python 3.11 or newer" if sys.version_info < LEAST_PYTHON else ""
    return judged("Python", value, advice)


def treespec() -> Fact:
    """The version of treespec, and its commit if it runs from a clone."""
    from treespec.experiments.records.manifest import environment

    facts = environment()
    version, commit = facts["treespec_version"], facts["git_hash"]
    source = "not a git clone" if commit is None else f"commit {shortened(commit)}"
    value = f"{version or 'not installed'}, {source}"
    return judged("treespec", value, "" if version else "pip install -e . in the clone")


def torch_build() -> list[Fact]:
    """The build of torch, the processor's vector width, and the number of threads."""
    import torch

    from treespec.experiments.records.manifest import environment

    simd = torch.backends.cpu.get_cpu_capability()
    threads, cores = torch.get_num_threads(), environment()["hardware"]["cores"]
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU only"
    slow = "half precision is slow here for more than one row: set models.dtype=float32 in configs"
    vectors = Fact(
        "vectors",
        Status.OK if simd in WIDE_VECTORS else Status.PROBLEM,
        simd,
        "" if simd == WIDE_VECTORS[0] else slow,
    )
    status, advice = Status.OK, ""
    if threads > cores:
        status = Status.PROBLEM
        advice = f"more threads than cores wait for each other: set OMP_NUM_THREADS={cores}"
    elif threads < cores:
        advice = f"to use the whole machine, unset OMP_NUM_THREADS or set it to {cores}"
    used = Fact("threads", status, f"torch uses {threads} on {cores} cores", advice)
    return [Fact("torch", Status.OK, f"{torch.__version__}, {build}"), vectors, used]


def transformers() -> Fact:
    """The version of transformers."""
    version = metadata.version("transformers")
    old = tuple(map(int, version.split(".")[:2])) < LEAST_TRANSFORMERS
    least = ".".join(map(str, LEAST_TRANSFORMERS))
    advice = f"treespec needs {least} or newer: pip install -U transformers"
    return judged("transformers", version, advice if old else "")


def triton() -> Fact:
    """The version of Triton, and where its kernels can run."""
    import torch

    try:
        version = metadata.version("triton")
    except PackageNotFoundError:
        return Fact(
            "Triton", Status.MISSING, "not installed", "only GPUs need it: pip install triton"
        )
    if torch.cuda.is_available():
        return Fact("Triton", Status.OK, f"{version}, kernels run on the GPU")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return Fact("Triton", Status.OK, f"{version}, kernels are interpreted (slowly)")
    advice = "nothing to do; to try kernels (slowly) on the CPU, set TRITON_INTERPRET=1"
    return Fact("Triton", Status.OK, f"{version}, no GPU to run kernels on", advice)


def attention() -> list[Fact]:
    """The implementations of tree attention available on each device, and the one that `auto` uses."""
    import torch

    from attention_masks.tree_attention import IMPLEMENTATIONS, choose
    from attention_masks.tree_attention.triton import available

    facts = []
    for place in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
        device = torch.device(place)
        missing = available(device)
        names = [name for name in IMPLEMENTATIONS if name != "triton" or missing is None]
        value = f"{', '.join(names)}; auto uses {choose(device, 16)}"
        problem = "" if missing is None or place == "cpu" else missing
        facts.append(judged(f"tree attention, {place}", value, problem))
    return facts


def compiler() -> Fact:
    """Whether kernels can be compiled for GPUs that are not in this machine."""
    if util.find_spec("triton") is None:
        return Fact("kernel compiler", Status.MISSING, "no Triton", "only GPUs need it")
    from triton import knobs

    try:
        tool = knobs.nvidia.ptxas
    except RuntimeError as error:
        return Fact(
            "kernel compiler", Status.MISSING, str(error),
            "set TRITON_PTXAS_PATH to the ptxas of a CUDA toolkit",
        )  # fmt: skip
    from attention_masks.tree_attention.ahead_of_time import TARGETS

    targets = ", ".join(f"sm_{target}" for target in TARGETS)
    return Fact("kernel compiler", Status.OK, f"ptxas {tool.version}, for {targets}")


def passes() -> Fact:
    """Whether a model's passes can be compiled for the CPU; nothing is compiled."""
    from treespec.models.compiled_pass import missing_for_compiling

    missing = missing_for_compiling()
    if missing is not None:
        return Fact("compiled passes", Status.MISSING, missing, "passes run eagerly instead")
    return Fact(
        "compiled passes", Status.OK,
        "a C++ compiler and a folder for its output are available (models.passes)",
    )  # fmt: skip


def captured_passes() -> Fact:
    """Whether a model's passes can be captured on a GPU; nothing is captured."""
    import torch

    from attention_masks.tree_attention.triton import available

    name, advice = "captured passes", "passes on a GPU run eagerly instead"
    if not torch.cuda.is_available():
        reason = (
            "torch is built for the CPU only"
            if torch.version.cuda is None
            else "torch finds no GPU"
        )
        return Fact(
            name, Status.MISSING, f"{reason}, and these are CUDA graphs", "on a CPU, compile passes"
        )
    missing = available(torch.device("cuda"))
    if missing is not None:
        return Fact(name, Status.MISSING, missing, advice)
    return Fact(
        name, Status.OK, "a GPU and the kernel of tree attention are available (models.passes)"
    )


def shortened(commit: str) -> str:
    """The first ten characters of a commit; a suffix `-dirty` is kept.

    Example:
        >>> shortened("67f0c079a44c6c49-dirty")
        '67f0c079a4-dirty'
    """
    head, dash, rest = commit.partition("-")
    return f"{head[:10]}{dash}{rest}"
