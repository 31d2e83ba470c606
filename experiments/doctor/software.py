"""Facts about what is installed: versions, vectors and threads of torch, kernels, compilers."""

import platform
import sys
from importlib import metadata

from treespec.experiments.doctor.findings import Fact, Status, judged

WIDE_VECTORS = ("AVX512", "AVX2")
"""Torch's names for processors with wide vectors; all others are slow."""


def versions() -> list[Fact]:
    """Versions of Python and of the packages that decide what runs, and the commit of a clone."""
    from treespec.experiments.records.manifest import environment

    facts = [Fact("Python", Status.OK, f"{platform.python_version()} ({sys.executable})")]
    for name in ("treespec", "torch", "transformers", "triton"):
        try:
            value, status = metadata.version(name), Status.OK
        except metadata.PackageNotFoundError:
            value, status = "not installed", Status.MISSING
        commit = environment()["git_hash"] if name == "treespec" else None
        advice = "only GPUs need it: pip install triton" if status is Status.MISSING else ""
        facts.append(Fact(name, status, f"{value}, commit {commit}" if commit else value, advice))
    return facts


def processor() -> list[Fact]:
    """The processor's vector width, and the number of threads of torch."""
    import torch

    from treespec.experiments.records.manifest import environment

    simd = torch.backends.cpu.get_cpu_capability()
    slow = "half precision is slow here for more than one row; models.dtype=fastest measures it"
    status = Status.OK if simd in WIDE_VECTORS else Status.PROBLEM
    vectors = Fact("vectors", status, simd, "" if simd == WIDE_VECTORS[0] else slow)
    threads, cores = torch.get_num_threads(), environment()["hardware"]["cores"]
    advice = ""
    if threads > cores:
        advice = f"more threads than cores wait for each other: set OMP_NUM_THREADS={cores}"
    elif threads < cores:
        advice = f"to use the whole machine, unset OMP_NUM_THREADS or set it to {cores}"
    status = Status.PROBLEM if threads > cores else Status.OK
    used = Fact("threads", status, f"torch uses {threads} on {cores} cores", advice)
    return [vectors, used]


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
        problem = f"{missing}; passes are not captured" if missing and place == "cuda" else ""
        facts.append(judged(f"tree attention, {place}", value, problem))
    return facts


def compiler() -> Fact:
    """Whether a model's passes can be compiled for the CPU; nothing is compiled."""
    from treespec.models.passes.compiled_pass import missing_for_compiling

    missing = missing_for_compiling()
    if missing is not None:
        return Fact("compiled passes", Status.MISSING, missing, "passes run eagerly instead")
    value = "a C++ compiler and a folder for its output are available (models.passes)"
    return Fact("compiled passes", Status.OK, value)
