"""The section of the report on memory and energy."""

from html import escape

from treespec.experiments.report.html import interval_html, section, table
from treespec.experiments.report.measurements import ENERGIES, samplings_of
from treespec.experiments.report.meters import MEMORIES, metered, unavailable
from treespec.experiments.report.run import Run

__all__ = ["meters_section"]

HEADS = {
    "rss_bytes": "resident, MiB",
    "peak_rss_bytes": "peak resident, MiB",
    "peak_cuda_bytes": "peak CUDA, MiB",
    "cpu_energy_j": "CPU, J per token",
    "cpu_energy_net_j": "CPU above idle, J per token",
    "gpu_energy_j": "GPU, J per token",
    "gpu_energy_net_j": "GPU above idle, J per token",
}


def meters_section(run: Run) -> str:
    """Memory and energy by method, and why what is missing is not available; empty for older runs."""
    if not run.manifest.get("meters"):
        return ""
    groups = {m.name: m.group for m in run.methods}
    parts = []
    for sampling in samplings_of(run):
        found = metered(run, sampling)
        memories = [c for c in MEMORIES if any(c in entry.bytes for entry in found)]
        energies = [c for c in ENERGIES if any(c in entry.joules_per_token for entry in found)]
        rows = [
            [
                f'<span class="{groups[entry.method]}">{escape(entry.method)}</span>',
                *(f"{entry.bytes[c] / 2**20:.1f}" if c in entry.bytes else "–" for c in memories),
                *(interval_html(entry.joules_per_token.get(c)) for c in energies),
            ]
            for entry in found
        ]
        if memories or energies:
            heads = ["method", *(HEADS[c] for c in (*memories, *energies))]
            parts.append(table(heads, rows, sampling))
    reasons = "".join(
        f"<li>Not available ({escape(', '.join(what))}): {escape(why)}</li>"
        for why, what in unavailable(run).items()
    )
    note = (
        "Memory is the largest over prompts, with the models and all else that the process holds. "
        "Energy is of whole prompts, prefill included, over kept tokens; counters belong to devices, "
        "so what other processes did is in it. Above idle: less the power that the machine took "
        "before the run."
    )
    body = "".join(parts) + (f'<ul class="notes">{reasons}</ul>' if reasons else "")
    return section("Memory and energy", f'{body}<p class="muted">{note}</p>') if body else ""
