"""Trees against chains at equal budgets, as a table in the terminal and in the report."""

from html import escape

from rich import box
from rich.console import Console
from rich.markup import escape as plain
from rich.table import Table

from treespec.experiments.report.budgets import Budget, budgets
from treespec.experiments.report.html import interval_html, section, table
from treespec.experiments.report.run import Run

__all__ = ["budget_section", "print_budgets"]

HEADS = ("equal", "best tree", "best chain", "compared by", "tree over chain", "")

NOTE = (
    "Nodes count the root, and are the most of a tree that grows; a static tree of depth d takes d passes "
    "of the draft, and chains may be shorter than N nodes. Each side is chosen on one half "
    "of the prompts and measured on the other. Intervals are 95 %, paired over prompts."
)


def print_budgets(run: Run, console: Console) -> None:
    """A table for each sampling setting; nothing if only time can be held equal."""
    rows = budgets(run)
    if all(row.name == "time" for row in rows):
        return
    for sampling in dict.fromkeys(row.sampling for row in rows):
        shown = Table(
            *HEADS, title=f"tree against chain at equal budgets, {sampling}", box=box.SIMPLE
        )
        for row in rows:
            if row.sampling == sampling:
                ratio = row.duel.ratio
                interval = f" ({ratio.low:.2f}-{ratio.high:.2f})" if ratio.bounded else ""
                shown.add_row(
                    *map(plain, _names(row)), f"{ratio.estimate:.2f}{interval}", _said(row)
                )
        console.print(shown)
    console.print(f"[dim]{plain(NOTE)}[/dim]", highlight=False)


def budget_section(run: Run) -> str:
    """The same for the report; empty if the run does not hold a tree and a chain."""
    rows = budgets(run)
    parts = []
    for sampling in dict.fromkeys(row.sampling for row in rows):
        cells = [
            [*map(escape, _names(row)), interval_html(row.duel.ratio), escape(_said(row))]
            for row in rows
            if row.sampling == sampling
        ]
        parts.append(table(HEADS, cells, sampling, text=(1, 2, 3, 5)))
    note = f'<p class="muted">{escape(NOTE)}</p>'
    return section("Trees against chains at equal budgets", "".join(parts) + note) if parts else ""


def _names(row: Budget) -> list[str]:
    return [row.name, row.duel.left.label, row.duel.right.label, row.measure]


def _said(row: Budget) -> str:
    winner = row.duel.winner
    return "not decided" if winner is None else f"{winner.family} better"
