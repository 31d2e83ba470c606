"""Facts about the machine: GPUs, memory, disk, other processes, energy meters, SLURM."""

import os
import shutil
import subprocess
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from treespec.experiments.doctor.findings import Fact, Status, judged
from treespec.experiments.records.machine_load import BUSY_PERCENT, busy_percent

if TYPE_CHECKING:
    from treespec.experiments.run.meters.energy import EnergySource

__all__ = ["busy", "disk", "energy", "gpus", "memory", "slurm"]

PATIENCE_S = 5.0
"""Seconds to wait for another program to answer."""

LEAST_DISK_GIB = 1.0
LEAST_MEMORY_GIB = 2.0
GIB = 2**30


def gpus() -> list[Fact]:
    """The GPUs, with memory and compute capability."""
    import torch

    if not torch.cuda.is_available():
        if shutil.which("nvidia-smi") is None:
            return [Fact("GPU", Status.MISSING, "none; everything runs on the CPU")]
        if torch.version.cuda is None:
            return [
                Fact(
                    "GPU",
                    Status.PROBLEM,
                    "a driver is installed, but torch is built for the CPU",
                    "install a CUDA build of torch: https://pytorch.org/get-started",
                )
            ]
        return [
            Fact(
                "GPU",
                Status.PROBLEM,
                "a driver is installed, but torch finds no device",
                "check the output of nvidia-smi, and CUDA_VISIBLE_DEVICES",
            )
        ]
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
    free = shutil.disk_usage(here).free
    value = f"{free / GIB:.1f} GiB free in {here}"
    if not os.access(here, os.W_OK):
        return Fact(
            "disk",
            Status.PROBLEM,
            f"{here} cannot be written",
            "change to a folder that you can write to, or name one with --out",
        )
    tight = free < LEAST_DISK_GIB * GIB
    return judged(
        "disk", value, "free some space, or name another folder with --out" if tight else ""
    )


def busy() -> Fact:
    """How much of the processor other programs use at the moment."""
    others = busy_percent()
    advice = "times are unreliable now; OMP_WAIT_POLICY=PASSIVE limits the damage on a shared CPU"
    return judged(
        "other processes",
        f"use {others:.0f} % of all cores",
        advice if others > BUSY_PERCENT else "",
    )


def energy() -> list[Fact]:
    """The energy meters that a run would read: of the processor, and of the GPUs."""
    import torch

    from treespec.errors import Unavailable
    from treespec.experiments.run.meters.energy import Rapl, find_gpu_energy

    devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    facts = []
    finders: dict[str, Callable[[], EnergySource]] = {"processor": Rapl.find}
    if devices:
        finders["GPU"] = lambda: find_gpu_energy(devices)
    for hardware, find in finders.items():
        try:
            facts.append(Fact(f"energy, {hardware}", Status.OK, find().name))
        except Unavailable as missing:
            facts.append(Fact(f"energy, {hardware}", Status.MISSING, str(missing)))
    return facts


def slurm() -> list[Fact]:
    """Whether sweeps can be submitted: needs sbatch, a controller that answers, and submitit."""
    if shutil.which("sbatch") is None:
        return [Fact("SLURM", Status.MISSING, "no sbatch; sweeps run in local processes")]
    facts = [_sinfo()]
    if util.find_spec("submitit") is None:
        facts.append(
            Fact(
                "submitit",
                Status.MISSING,
                "not installed",
                "only sweeps on SLURM need it: pip install submitit",
            )
        )
    return facts


def _sinfo() -> Fact:
    advice = (
        "only `sweep --executor slurm` needs it: check that the controller (slurmctld) is running and "
        "reachable from here"
    )
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%P %D %t"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Fact("SLURM", Status.MISSING, f"sinfo does not answer: {error}", advice)
    lines = done.stdout.split("\n")
    if done.returncode or not lines[0]:
        problem = (done.stderr.strip().splitlines() or ["it lists no partition"])[-1]
        return Fact("SLURM", Status.MISSING, f"sinfo: {problem}", advice)
    partitions = "; ".join(line.strip() for line in lines if line.strip())
    return Fact("SLURM", Status.OK, f"partition, nodes, state: {partitions}")
