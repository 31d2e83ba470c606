"""Where benchmarks put their figures."""

import json
from pathlib import Path
from typing import Any

from treespec.experiments.records.manifest import environment, now
from treespec.search.whole_file import write_whole

__all__ = ["RESULTS", "described", "path_of", "save"]

RESULTS = Path(__file__).resolve().parent / "results"


def save(benchmark: str, figures: dict[str, Any]) -> Path:
    """Write figures as `<benchmark>-<cpu or gpu>.json`, with what they were measured on.

    Args:
        benchmark: name of the benchmark.
        figures: plain data.
    """
    path = path_of(benchmark)
    path.parent.mkdir(exist_ok=True)
    data = described(benchmark) | {"figures": figures}
    return write_whole(path, json.dumps(data, indent=1) + "\n")


def path_of(benchmark: str, folder: Path = RESULTS) -> Path:
    """The file of a benchmark on this machine: `<benchmark>-<cpu or gpu>.json`."""
    hardware = environment()["hardware"]
    machine = hardware["gpu"] or f"{hardware['cpu']} {hardware['cores']} cores"
    slug = "-".join("".join(c if c.isalnum() else " " for c in machine).lower().split())
    return folder / f"{benchmark}-{slug}.json"


def described(benchmark: str) -> dict[str, Any]:
    """What stands at the head of every file: the benchmark, when, code, versions and hardware."""
    return {"benchmark": benchmark, "measured": now(), **environment()}
