"""Facts about this machine and about what is installed, each with advice where something is to be done."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata, util
from pathlib import Path

from treespec.errors import in_words
from treespec.experiments.records.machine_load import BUSY_PERCENT, PASSIVE, busy_percent

LEAST_DISK_GIB, LEAST_MEMORY_GIB = 1.0, 2.0
GIB = 2**30


class Status(StrEnum):
    """In order; missing, which may be fine; or present, but with a problem."""

    OK = "ok"
    MISSING = "missing"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Fact:
    """A fact about the machine, and what to do about it; no advice if nothing needs to be done."""

    name: str
    status: Status
    value: str
    advice: str = ""


def judged(name: str, value: str, advice: str) -> Fact:
    """A fact that is a problem if there is advice about it, and in order otherwise."""
    return Fact(name, Status.PROBLEM if advice else Status.OK, value, advice)


def versions() -> list[Fact]:
    """Versions of Python and of the packages that decide what runs, and the commit of a clone."""
    from treespec.experiments.records.manifest import environment

    facts = [Fact("Python", Status.OK, f"{platform.python_version()} ({sys.executable})")]
    for name in ("treespec", "torch", "transformers", "triton"):
        try:
            package = "treespec-decoding" if name == "treespec" else name
            facts.append(Fact(name, Status.OK, metadata.version(package)))
        except metadata.PackageNotFoundError:
            advice = "only GPUs need it: pip install triton"
            facts.append(Fact(name, Status.MISSING, "not installed", advice))
    commit = environment()["git_hash"]
    return [*facts, Fact("commit", Status.OK, commit)] if commit else facts


def processor() -> list[Fact]:
    import torch

    from treespec.experiments.records.manifest import environment

    simd = torch.backends.cpu.get_cpu_capability()
    status = Status.OK if simd in ("AVX512", "AVX2") else Status.PROBLEM
    vectors = Fact("vectors", status, simd)
    threads, cores = torch.get_num_threads(), environment()["hardware"]["cores"]
    status, advice = Status.OK, ""
    if threads > cores:
        status = Status.PROBLEM
        advice = f"more threads than cores wait for each other: set OMP_NUM_THREADS={cores}"
    elif threads < cores:
        advice = f"to use the whole machine, unset OMP_NUM_THREADS or set it to {cores}"
    return [vectors, Fact("threads", status, f"torch uses {threads} on {cores} cores", advice)]


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


def acceptance() -> list[Fact]:
    """Which acceptance rules a kernel decides on CUDA; nothing without a GPU."""
    import torch

    from treespec.verify import RULES
    from treespec.verify.engine.fused import why_on_host

    if not torch.cuda.is_available():
        return []
    there = [name for name, rule in RULES.items() if why_on_host(rule) is None]
    here = ", ".join(name for name in RULES if name not in there)
    value = f"one kernel decides {', '.join(there)}"
    return [
        Fact("acceptance, cuda", Status.OK, value, f"on the host, with a copy of all rows: {here}")
    ]


def compiler() -> Fact:
    """Whether a model's passes can be compiled for the CPU; nothing is compiled."""
    from treespec.models.passes.compiled_pass import missing_for_compiling

    missing = missing_for_compiling()
    if missing is not None:
        return Fact("compiled passes", Status.MISSING, missing, "passes run eagerly instead")
    value = "a C++ compiler and a folder for its output are available (models.passes)"
    return Fact("compiled passes", Status.OK, value)


def gpus() -> list[Fact]:
    import torch

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") is None:
            return [Fact("GPU", Status.MISSING, "none; everything runs on the CPU")]
        value, advice = "torch finds no device", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        if torch.version.cuda is None:
            value = "torch is built for the CPU"
            advice = "install a CUDA build of torch: https://pytorch.org/get-started"
        return [Fact("GPU", Status.PROBLEM, f"a driver is installed, but {value}", advice)]
    facts = []
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        room = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
        advice = "set models.device=cuda in configs" if i == 0 else ""
        value = f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {room}"
        facts.append(Fact(f"GPU {i}", Status.OK, value, advice))
    return facts


def memory() -> Fact:
    import psutil

    ram = psutil.virtual_memory()
    value = f"{ram.available / GIB:.1f} of {ram.total / GIB:.1f} GiB free"
    tight = ram.available < LEAST_MEMORY_GIB * GIB
    return judged("memory", value, "close other programs: models will not fit" if tight else "")


def disk() -> Fact:
    """Free space in the current folder, where runs are written, and whether it is writable."""
    here = Path.cwd()
    free = shutil.disk_usage(here).free / GIB
    elsewhere = "name another folder with --out"
    if not os.access(here, os.W_OK):
        return Fact("disk", Status.PROBLEM, f"{here} cannot be written", elsewhere)
    advice = f"free some space, or {elsewhere}" if free < LEAST_DISK_GIB else ""
    return judged("disk", f"{free:.1f} GiB free in {here}", advice)


def busy() -> Fact:
    """How much of the processor other programs use at the moment."""
    others = busy_percent()
    advice = f"times are unreliable now{PASSIVE}"
    value = f"use {others:.0f} % of all cores"
    return judged("other processes", value, advice if others > BUSY_PERCENT else "")


def slurm() -> Fact:
    """Whether sweeps can be submitted: needs sbatch and submitit."""
    if shutil.which("sbatch") is None:
        return Fact("SLURM", Status.MISSING, "no sbatch; sweeps run in local processes")
    if util.find_spec("submitit") is None:
        advice = "only sweeps on SLURM need it: pip install submitit"
        return Fact("SLURM", Status.MISSING, "submitit is not installed", advice)
    return Fact("SLURM", Status.OK, "sbatch and submitit (sweep --executor slurm)")


def real_models() -> list[Fact]:
    """Whether the models that can be fetched are here."""
    from treespec.models.known_models import KNOWN, folder_of

    return [
        Fact(f"model {name}", Status.OK, str(folder_of(name)))
        if folder_of(name).is_dir()
        else Fact(
            f"model {name}",
            Status.MISSING,
            f"a real language model, {model.megabytes} MB",
            f"to fetch it: treespec models get {name}",
        )
        for name, model in KNOWN.items()
    ]


QUESTIONS: dict[str, Callable[[], Fact | list[Fact]]] = {
    "versions": versions,
    "processor": processor,
    "tree attention": attention,
    "acceptance": acceptance,
    "compiled passes": compiler,
    "GPU": gpus,
    "memory": memory,
    "disk": disk,
    "other processes": busy,
    "SLURM": slurm,
    "models": real_models,
}


def ask(name: str) -> list[Fact]:
    """The answers to a question; an exception becomes a problem, so that others are still asked."""
    try:
        answer = QUESTIONS[name]()
    except Exception as error:
        problem = in_words(error, f"the question '{name}'")
        return [Fact(name, Status.PROBLEM, problem, "unexpected: please report it")]
    return answer if isinstance(answer, list) else [answer]
