"""The sections of the report that say what was found, each from data to HTML."""

from collections.abc import Iterable, Sequence
from html import escape

from treespec.experiments.report.html import interval_html, name_html, section, table
from treespec.experiments.report.measurements import measure, samplings_of
from treespec.experiments.report.run import Run
from treespec.experiments.report.summary import SamplingSummary
from treespec.experiments.report.table_text import COLUMNS, caption, cells, columns_of, footnotes
from treespec.experiments.report.verdict import METHOD_NOTE, comparisons, sentences

__all__ = [
    "comparison_section",
    "figure_section",
    "result_section",
    "speedup_section",
    "verdict_section",
]

CAPTIONS = {
    "speedup": "Tokens per second over those of the faster plain baseline, with 95 % intervals. Intervals "
    "of two methods may overlap although their ratio is clear, because prompts are shared: compare methods "
    "by the table of comparisons.",
    "size": "What a larger tree brings (kept tokens over target passes) and what it costs (time of a pass "
    "of the target) against the number of draft tokens; with 95 % intervals.",
    "scaling": "Kept tokens per step against the nodes of a tree, by family, on a logarithmic axis; with "
    "95 % intervals.",
    "stages": "Where the time of a step goes. A method is faster than another if its tokens per step grow "
    "more than its bar. Whiskers: 95 % intervals of the whole step, over prompts.",
    "accepted": "How many draft tokens the steps bring. The wider the grey part, the more passes brought "
    "nothing but one token, as plain decoding does. What the last step emits past the budget does "
    "not count. Whiskers: the 95 % interval of the grey part, over prompts.",
}

PREFILL_NOTE = (
    "With the prefill included, generate pays one pass of the target more than it would alone: here the "
    "prefill of every method holds all prompt tokens but the last, and the first token comes from a pass "
    "of its own."
)


def verdict_section(run: Run) -> str:
    """What was found, in sentences."""
    parts = "".join(
        f"<dt>{escape(sampling)}</dt><dd>{''.join(f'<p>{escape(line)}</p>' for line in lines)}</dd>"
        for sampling, lines in sentences(run).items()
    )
    warning = (
        "" if run.finished else "<p><strong>The run is not finished: prompts so far.</strong></p>"
    )
    return (
        f'<section class="verdict"><h2>Verdict</h2>{warning}<dl>{parts}</dl>'
        f'<p class="muted">{escape(METHOD_NOTE)}</p></section>'
    )


def result_section(run: Run, summaries: Sequence[SamplingSummary]) -> str:
    """The table of each sampling setting, with its footnotes."""
    tables = "".join(_result_table(s) for s in summaries)
    notes = "".join(f"<li>{escape(note)}</li>" for note in footnotes(run, tuple(summaries)))
    return section("Results", f'{tables}<ul class="notes">{notes}</ul>')


def comparison_section(run: Run) -> str:
    """Best against best, chosen and measured on different halves of the prompts."""
    heads = ["", "chosen", "against", "chosen", "times as fast", "95 % interval", ""]
    parts = []
    for sampling in samplings_of(run):
        rows = [
            [
                escape(c.left.family),
                escape(c.left.label),
                escape(c.right.family),
                escape(c.right.label),
                f"{c.ratio.estimate:.3f}",
                f"{c.ratio.low:.3f} to {c.ratio.high:.3f}",
                "not decided" if c.winner is None else "faster" if c.winner is c.left else "slower",
            ]
            for c in comparisons(measure(run, sampling))
        ]
        if rows:
            parts.append(table(heads, rows, sampling, text=(1, 2, 3, 6)))
    note = '<p class="muted">Chosen and measured on different halves of the prompts, as the verdict.</p>'
    return section("Comparisons", "".join(parts) + note) if parts else ""


def figure_section(figures: Iterable[tuple[str, str]]) -> str:
    """The figures, by name and SVG."""
    parts = [
        f"<figure>{svg}<figcaption>{escape(CAPTIONS.get(name, ''))}</figcaption></figure>"
        for name, svg in figures
    ]
    return section("Figures", f'<div class="figures">{"".join(parts)}</div>') if parts else ""


def speedup_section(summaries: Sequence[SamplingSummary]) -> str:
    """Speedups over each plain baseline, and with the prefill counted."""
    parts = []
    note = f'<p class="muted">{escape(PREFILL_NOTE)}</p>'
    for s in summaries:
        if s.baseline is None:
            continue
        plain = [row.method.name for row in s.rows if row.method.group == "plain"]
        heads = [
            "method",
            *(f"over {name}" for name in plain),
            f"over {s.baseline}, prefill included",
        ]
        rows = [
            [
                name_html(row),
                *(interval_html(row.speedups[name]) for name in plain),
                interval_html(row.speedup_with_prefill),
            ]
            for row in s.rows
        ]
        parts.append(table(heads, rows, s.sampling))
    return section("Speedups over each baseline", "".join(parts) + note) if parts else ""


def _result_table(summary: SamplingSummary) -> str:
    keep = columns_of(summary)
    heads = "".join(f'<th class="wrap">{escape(COLUMNS[i].name)}</th>' for i in keep)
    lines, group = [], None
    for row in summary.rows:
        values = [escape(value) for value in cells(row, summary)]
        values[0] = f'<span class="{row.method.group}">{values[0]}</span>'
        classes = [
            *(["group"] if group not in (None, row.method.group) else []),
            *(["best"] if row.among_fastest else []),
        ]
        group = row.method.group
        data = "".join(f"<td>{_small_interval(values[i], COLUMNS[i].head)}</td>" for i in keep)
        lines.append(f'<tr class="{" ".join(classes)}">{data}</tr>')
    return (
        f'<div class="scroll sticky"><table><caption>{escape(caption(summary))}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _small_interval(value: str, head: str) -> str:
    """The estimate, and the interval after it in small letters."""
    estimate, space, interval = value.partition(" ")
    return f"{estimate} <small>{interval}</small>" if head == "speedup" and space else value
