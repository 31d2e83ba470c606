"""Memory and energy of a run by method, and the sentences about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treespec.experiments.report.measurements import ENERGIES, measure, samplings_of
from treespec.experiments.report.run import Run
from treespec.experiments.report.statistics import Interval

__all__ = ["MEMORIES", "Metered", "meter_notes", "metered", "unavailable"]

MEMORIES = ("rss_bytes", "peak_rss_bytes", "peak_cuda_bytes")

LABELS = {
    "rss_bytes": "resident memory",
    "peak_rss_bytes": "peak resident memory",
    "peak_cuda_bytes": "peak CUDA memory",
    "cpu_energy_j": "energy of CPU and memory",
    "cpu_energy_net_j": "energy of CPU and memory above idle",
    "gpu_energy_j": "energy of GPUs",
    "gpu_energy_net_j": "energy of GPUs above idle",
}


@dataclass(frozen=True)
class Metered:
    """What meters read of one method under one sampling setting.

    Args:
        method: its name.
        bytes: the largest over its finished prompts, by column of `MEMORIES`; only what was read.
        joules_per_token: whole prompts, prefill included, over kept tokens, by column of `ENERGIES`; only
            what was read on every compared prompt.
    """

    method: str
    bytes: Mapping[str, int]
    joules_per_token: Mapping[str, Interval]


def metered(run: Run, sampling: str) -> list[Metered]:
    """Memory and energy of every method that finished a prompt."""
    import polars as pl

    data = measure(run, sampling)
    read = any((m.name, column) in data.values for m in data.methods for column in ENERGIES)
    totals = data.bootstrap() if data.prompts and read else None
    rows = run.prompts.filter(pl.col("sampling") == sampling, pl.col("error").is_null())
    found = []
    for m in data.methods:
        mine = rows.filter(pl.col("method") == m.name)
        largest = {c: mine[c].max() for c in MEMORIES}
        energy = {
            column: totals.ratio([(m.name, column)], [(m.name, "new_tokens")])
            for column in ENERGIES
            if totals is not None and (m.name, column) in data.values
        }
        memory = {c: int(value) for c, value in largest.items() if isinstance(value, int)}
        found.append(Metered(m.name, memory, energy))
    return found


def unavailable(run: Run) -> dict[str, list[str]]:
    """What is not available, by the reason."""
    about: Mapping[str, Any] = run.manifest.get("meters") or {}
    reasons: Mapping[str, str] = about.get("unavailable") or {}
    found: dict[str, list[str]] = {}
    for column, why in reasons.items():
        if column in LABELS:
            found.setdefault(why, []).append(LABELS[column])
    return found


def meter_notes(run: Run) -> list[str]:
    """A line on memory and one on energy, for the footnotes of the table; nothing that was not read."""
    entries = {sampling: metered(run, sampling) for sampling in samplings_of(run)}
    notes = []
    for column in ("peak_rss_bytes", "peak_cuda_bytes"):
        sizes: dict[str, float] = {}
        for entry in (entry for found in entries.values() for entry in found):
            if column in entry.bytes:
                size = entry.bytes[column] / 2**20
                sizes[entry.method] = max(size, sizes.get(entry.method, 0.0))
        if sizes:
            low, high = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
            label = LABELS[column]
            notes.append(
                f"{label[0].upper()}{label[1:]}, models included: {sizes[low]:.0f} MiB ({low}) to "
                f"{sizes[high]:.0f} MiB ({high})."
            )
    for column in ENERGIES:
        for sampling, found in entries.items():
            each = [
                f"{entry.method} {entry.joules_per_token[column].estimate:.3g}"
                for entry in found
                if column in entry.joules_per_token
            ]
            if each:
                notes.append(
                    f"{sampling}: {LABELS[column]}, J per token (prefill included): {', '.join(each)}."
                )
    return notes
