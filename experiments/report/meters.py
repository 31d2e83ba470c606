"""Memory and energy by method, as tables and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import Totals
from treespec.experiments.report.table import NONE, Column, Finding, Table, interval
from treespec.search.intervals import Interval

ENERGIES = ("cpu_energy_j", "cpu_energy_net_j", "gpu_energy_j", "gpu_energy_net_j")
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


HEADS = {
    "rss_bytes": "resident, MiB",
    "peak_rss_bytes": "peak resident, MiB",
    "peak_cuda_bytes": "peak CUDA, MiB",
    "cpu_energy_j": "CPU, J per token",
    "cpu_energy_net_j": "CPU above idle, J per token",
    "gpu_energy_j": "GPU, J per token",
    "gpu_energy_net_j": "GPU above idle, J per token",
}

NOTE = (
    "Measured while a method decodes a prompt alone (the config's `alone`). Memory is the maximum over "
    "prompts and includes the models and everything else in the process; on CUDA this includes the caches "
    "and captured passes that the other methods keep for their next prompt. Energy covers whole prompts, "
    "prefill included, per kept token; counters belong to devices, so the energy that other processes used "
    "is included. Above idle: minus the power that the machine drew before the run."
)

MIB = 2**20


@dataclass(frozen=True)
class Metered:
    """Meter readings of one method under one sampling setting; only columns that were read.

    `bytes` holds maxima over its finished prompts; `joules_per_token` the energy of whole prompts, prefill
    included, over kept tokens, of the prompts that the method decoded alone.
    """

    method: str
    group: str
    bytes: Mapping[str, int]
    joules_per_token: Mapping[str, Interval]


def metered(run: RunRecords, data: Measurements) -> list[Metered]:
    rows = run.prompts.filter(pl.col("sampling") == data.sampling, pl.col("error").is_null())
    compared = rows.filter(pl.col("prompt").is_in(list(data.prompts)))
    if run.manifest["config"].get("alone") is not None:
        compared = compared.filter(pl.col("alone_s").is_not_null())
    entries = []
    for m in data.methods:
        energies = compared.filter(method=m.name)
        largest = rows.filter(method=m.name).select(pl.col(MEMORIES).max()).row(0, named=True)
        known = [c for c in ENERGIES if len(energies) and energies[c].null_count() == 0]
        sums = energies.group_by("prompt").agg(pl.col("new_tokens", *known).sum())
        columns = {c: sums[c] for c in ("new_tokens", *known)}
        totals = Totals.of(columns, files=run.files_of(sums["prompt"])) if known else None
        energy = {c: totals.ratio([c], ["new_tokens"]) for c in known} if totals else {}
        memory = {c: value for c, value in largest.items() if value is not None}
        entries.append(Metered(m.name, m.group, memory, energy))
    return entries


def meter_finding(run: RunRecords, measurements: Mapping[str, Measurements]) -> Finding | None:
    tables = [_table(sampling, metered(run, data)) for sampling, data in measurements.items()]
    shown = [table for table in tables if len(table.columns) > 1]
    remarks = [
        f"Not available ({', '.join(what)}): {why}" for why, what in unavailable(run).items()
    ]
    if not run.manifest.get("meters") or not (shown or remarks):
        return None
    return Finding("Memory and energy", shown, (NOTE,), remarks)


def _table(sampling: str, entries: Sequence[Metered]) -> Table:
    def memory(column: str) -> Column[Metered]:
        return Column(
            HEADS[column],
            lambda entry: f"{entry.bytes[column] / MIB:.1f}" if column in entry.bytes else NONE,
        )

    def energy(column: str) -> Column[Metered]:
        return Column(HEADS[column], lambda entry: interval(entry.joules_per_token.get(column)))

    columns = [
        Column[Metered]("method", lambda entry: entry.method, left=True),
        *(memory(c) for c in MEMORIES if any(c in entry.bytes for entry in entries)),
        *(energy(c) for c in ENERGIES if any(c in entry.joules_per_token for entry in entries)),
    ]
    return Table(sampling, columns, entries, colour=lambda entry: entry.group)


def unavailable(run: RunRecords) -> dict[str, list[str]]:
    about: Mapping[str, Any] = run.manifest.get("meters") or {}
    missing: dict[str, list[str]] = {}
    for column, why in (about.get("unavailable") or {}).items():
        if column in LABELS:
            missing.setdefault(why, []).append(LABELS[column])
    return missing
