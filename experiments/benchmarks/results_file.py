"""Where benchmarks put their figures."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treespec.experiments.records.manifest import environment, now
from treespec.experiments.records.plain_data import plain_data
from treespec.whole_file import write_whole

__all__ = ["RESULTS", "described", "of_manifest", "path_of", "save", "write"]

RESULTS = Path(__file__).resolve().parent / "results"

MANIFEST_KEYS = ("treespec_version", "git_hash", "versions", "hardware", "config", "models")


def save(benchmark: str, figures: Mapping[str, Any]) -> Path:
    """Write figures that were measured just now, with what they were measured on; see `write`."""
    return write(benchmark, described(benchmark) | {"figures": figures})


def write(benchmark: str, data: Mapping[str, Any]) -> Path:
    """Write `<benchmark>-<cpu or gpu>.json`.

    Args:
        benchmark: its name.
        data: figures, and what they were measured on; see `plain_data` for what it may hold.

    Returns:
        The path.
    """
    path = path_of(benchmark)
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(plain_data({"benchmark": benchmark, **data}), indent=1, ensure_ascii=False)
    return write_whole(path, text + "\n")


def path_of(benchmark: str, folder: Path = RESULTS) -> Path:
    """The file of a benchmark on this machine: `<benchmark>-<cpu or gpu>.json`."""
    hardware = environment()["hardware"]
    machine = hardware["gpu"] or f"{hardware['cpu']} {hardware['cores']} cores"
    slug = "-".join("".join(c if c.isalnum() else " " for c in machine).lower().split())
    return folder / f"{benchmark}-{slug}.json"


def described(benchmark: str) -> dict[str, Any]:
    """What stands at the head of every file: the benchmark, when, code, versions and hardware."""
    return {"benchmark": benchmark, "measured": now(), **environment()}


def of_manifest(manifest: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """The same for figures that come from a run: when it began, code, hardware, config, models and turns.

    Args:
        manifest: of the run.
        more: further keys to take; None where the manifest has no such key.
    """
    keys = (*MANIFEST_KEYS, *more)
    turns = {"together": manifest.get("together", 1)}
    return {"measured": manifest["created"], **turns, **{key: manifest.get(key) for key in keys}}
