"""Facts about the machine: GPUs, memory, disk, other processes, energy meters, SLURM."""

import os
import shutil
from collections.abc import Callable
from importlib import util
from pathlib import Path

from treespec.experiments.doctor.findings import Fact, Status, judged
from treespec.experiments.records.machine_load import BUSY_PERCENT, busy_percent

LEAST_DISK_GIB = 1.0
LEAST_MEMORY_GIB = 2.0
GIB = 2**30


def gpus() -> list[Fact]:
    """The GPUs, with memory and compute capability."""
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
        value = f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {room}"
        advice = "set models.device=cuda in configs" if i == 0 else ""
        facts.append(Fact(f"GPU {i}", Status.OK, value, advice))
    return facts


def memory() -> Fact:
    """Free and total main memory."""
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
    advice = "times are unreliable now; OMP_WAIT_POLICY=PASSIVE limits the damage on a shared CPU"
    value = f"use {others:.0f} % of all cores"
    return judged("other processes", value, advice if others > BUSY_PERCENT else "")


def energy() -> list[Fact]:
    """The energy meters that a run would read: of the processor, and of the GPUs."""
    import torch

    from treespec.errors import Unavailable
    from treespec.experiments.run.meters.energy import EnergySource, Rapl, find_gpu_energy

    finders: dict[str, Callable[[], EnergySource]] = {"processor": Rapl.find}
    if torch.cuda.is_available():
        finders["GPU"] = lambda: find_gpu_energy(range(torch.cuda.device_count()))
    facts = []
    for hardware, find in finders.items():
        try:
            facts.append(Fact(f"energy, {hardware}", Status.OK, find().name))
        except Unavailable as missing:
            facts.append(Fact(f"energy, {hardware}", Status.MISSING, str(missing)))
    return facts


def slurm() -> Fact:
    """Whether sweeps can be submitted: needs sbatch and submitit."""
    if shutil.which("sbatch") is None:
        return Fact("SLURM", Status.MISSING, "no sbatch; sweeps run in local processes")
    if util.find_spec("submitit") is None:
        advice = "only sweeps on SLURM need it: pip install submitit"
        return Fact("SLURM", Status.MISSING, "submitit is not installed", advice)
    return Fact("SLURM", Status.OK, "sbatch and submitit (sweep --executor slurm)")
