"""What explains the speedup, as a table in the terminal and in Markdown."""

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from treespec.experiments.report.explanation import FACTORS, Explanation
from treespec.experiments.report.statistics import Interval
from treespec.experiments.report.table_text import interval_text

__all__ = ["NOTE", "TITLE", "explanation_markdown", "explanation_table", "row_label"]

TITLE = "what explains the speedup"

NOTE = (
    "What explains the speedup: its factors multiply to it exactly, and one above 1 makes the method "
    "faster. Verify: time of a pass of the baseline over that of the method. Draft: share of the models' "
    "time that is not drafting. Overhead: share of all time that is the models'. These two are over the "
    "baseline's shares."
)

HEADS = ("tok/step", "verify", "draft", "overhead")


def row_label(found: Explanation, baseline: str | None) -> str:
    """The method, and what it is compared with if that is not the baseline of the table."""
    same = found.against == baseline
    return found.method if same else f"{found.method} over {found.against}"


def explanation_table(
    found: Sequence[Explanation], sampling: str, baseline: str | None, width: int
) -> Table:
    """The factors with intervals, or without where these do not fit.

    Args:
        found: of one sampling setting.
        sampling: its name.
        baseline: of the speedups.
        width: columns of the terminal.
    """
    table = Table(
        title=f"{sampling}: {TITLE}{f' over {baseline}' if baseline else ''}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=0,
        show_edge=False,
    )
    labels = [row_label(e, baseline) for e in found]
    full = [[interval_text(value) for value in _values(e)] for e in found]
    widths = [max(map(len, column)) for column in zip(*full, (*HEADS, "speedup"), strict=True)]
    fits = sum(widths) + len(widths) + min(24, max(map(len, labels))) <= width
    table.add_column("method", justify="left", overflow="fold")
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("speedup", justify="right", no_wrap=True)
    for label, found_one, texts in zip(labels, found, full, strict=True):
        if label != found_one.method:
            table.add_section()
        short = [f"{value.estimate:.2f}" for value in _values(found_one)]
        table.add_row(escape(label), *(texts if fits else short))
    return table


def explanation_markdown(found: Sequence[Explanation], sampling: str, baseline: str | None) -> str:
    """The same table as Markdown."""
    heads = ["method", *FACTORS, "speedup"]
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for e in found:
        label = row_label(e, baseline).replace("|", "\\|").replace("*", "\\*")
        lines.append([label, *map(interval_text, _values(e))])
    title = f"**{sampling}: {TITLE}{f' over {baseline}' if baseline else ''}**"
    return f"{title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _values(found: Explanation) -> list[Interval]:
    return [*found.factors.values(), found.measured]
