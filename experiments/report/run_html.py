"""A run in a notebook: its name, what was found, and a small table."""

from html import escape

from treespec.experiments.report.html import interval_html
from treespec.experiments.report.run import Run
from treespec.experiments.report.summary import MethodSummary, SamplingSummary, summarise
from treespec.experiments.report.table_text import caption, hardware_line, label
from treespec.experiments.report.verdict import sentences

__all__ = ["run_html"]

HEADS = ("method", "tokens per step", "tokens per second", "speedup, 95 % interval")
CELL = 'style="text-align:right;padding:.15em .6em"'
NAME = 'style="text-align:left;padding:.15em .6em"'


def run_html(run: Run) -> str:
    """The run as HTML that needs no style sheet. Everything that a model or a user wrote is escaped."""
    found = sentences(run)
    parts = [
        f"<h4>{escape(run.manifest['name'])}{'' if run.finished else ' (not finished)'}</h4>",
        f'<p style="opacity:.75">{escape(hardware_line(run))}</p>',
    ]
    for summary in summarise(run):
        parts += [f"<p>{escape(line)}</p>" for line in found[summary.sampling]]
        parts.append(_table(summary))
    parts.append(
        '<p style="opacity:.75">* not distinguishable from the fastest lossless method.</p>'
    )
    return "<div>" + "".join(parts) + "</div>"


def _table(summary: SamplingSummary) -> str:
    heads = "".join(f"<th {NAME if i == 0 else CELL}>{h}</th>" for i, h in enumerate(HEADS))
    rows = "".join(_row(row) for row in summary.rows)
    return (
        '<div style="overflow-x:auto"><table>'
        f'<caption style="text-align:left;font-weight:600">{escape(caption(summary))}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(row: MethodSummary) -> str:
    cells = [
        f"{row.tokens_per_step.estimate:.2f}",
        f"{row.tokens_per_second.estimate:.1f}",
        interval_html(row.speedup),
    ]
    data = "".join(f"<td {CELL}>{cell}</td>" for cell in cells)
    return f"<tr><td {NAME}>{escape(label(row))}</td>{data}</tr>"
