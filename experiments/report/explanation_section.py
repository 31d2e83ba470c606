"""The section of the report that says what explains the speedups."""

from html import escape

from treespec.experiments.report.explanation import FACTORS, explanations
from treespec.experiments.report.explanation_text import NOTE, row_label
from treespec.experiments.report.html import interval_html, section, table
from treespec.experiments.report.measurements import measure, samplings_of
from treespec.experiments.report.run import Run

__all__ = ["explanation_section"]


def explanation_section(run: Run) -> str:
    """The factors of every speedup, with intervals; empty where no method has stage times."""
    parts = []
    for sampling in samplings_of(run):
        data = measure(run, sampling)
        found = explanations(data)
        if not found:
            continue
        baseline = data.fastest(data.named("plain"))
        groups = {m.name: m.group for m in data.methods}
        heads = ["method", *(f"× {name}" for name in FACTORS), "= speedup"]
        rows = [
            [
                f'<span class="{groups[e.method]}">{escape(row_label(e, baseline))}</span>',
                *(interval_html(factor) for factor in e.factors.values()),
                interval_html(e.measured),
            ]
            for e in found
        ]
        caption = f"{sampling}, over {baseline}" if baseline else sampling
        parts.append(table(heads, rows, caption))
    note = f'<p class="muted">{escape(NOTE)}</p>'
    return section("What explains the speedup", "".join(parts) + note) if parts else ""
