"""Result files of benchmarks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from treespec.experiments.records.manifest import environment, now
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.table import Table
from treespec.experiments.report.terminal import print_table, say
from treespec.files import write_whole

RESULTS = Path(__file__).resolve().parents[1] / "results"

MANIFEST_KEYS = ("treespec_version", "git_hash", "versions", "hardware", "config", "models")


def print_and_save(
    benchmark: str,
    figures: Mapping[str, Any],
    *parts: Table | str,
    width: int | None = None,
    saved: bool = True,
) -> None:
    """Print tables and sentences, save the figures (see `save`), and print the path of their file."""
    print_parts(*parts, width=width)
    if saved:
        print_parts(f"written: {save(benchmark, figures)}", width=width)


def print_parts(*parts: Table | str, width: int | None = None) -> None:
    """Print tables and sentences."""
    console = Console(width=width)
    for part in parts:
        if isinstance(part, Table):
            print_table(part, console)
        else:
            say(console, part)


def save(benchmark: str, figures: Mapping[str, Any]) -> Path:
    """Write figures that were measured just now, with the machine and versions; see `write`."""
    return write(benchmark, described(benchmark) | {"figures": figures})


def write(benchmark: str, data: Mapping[str, Any]) -> Path:
    """Write `<benchmark>-<cpu or gpu>.json`."""
    path = path_of(benchmark)
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(plain_data({"benchmark": benchmark, **data}), indent=1, ensure_ascii=False)
    return write_whole(path, text + "\n")


def path_of(benchmark: str, folder: Path = RESULTS) -> Path:
    """The file of a benchmark on this machine: `<benchmark>-<cpu or gpu>.json`.

    Processors of one name can differ in their vectors. Names of files say so unless they are AVX-512.
    """
    hardware = environment()["hardware"]
    simd = hardware["simd"] or ""
    vectors = "" if simd.startswith("AVX512") else simd
    machine = hardware["gpu"] or f"{hardware['cpu']} {vectors} {hardware['cores']} cores"
    slug = "-".join("".join(c if c.isalnum() else " " for c in machine).lower().split())
    return folder / f"{benchmark}-{slug}.json"


def described(benchmark: str) -> dict[str, Any]:
    """The head of every file: benchmark, time, code, versions and hardware."""
    return {"benchmark": benchmark, "measured": now(), **environment()}


def of_manifest(manifest: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """The head for figures that come from a run: its start, code, hardware, config, models and turns."""
    return {
        "measured": manifest["created"],
        "together": manifest.get("together", 1),
        **{key: manifest.get(key) for key in (*MANIFEST_KEYS, *more)},
    }
