"""What `treespec doctor` prints."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from treespec.experiments.doctor.findings import Checkup, Status

__all__ = ["print_checkup"]

WIDTH = 110
COLORS = {Status.OK: "green", Status.MISSING: "dim", Status.PROBLEM: "yellow"}
PASSED, BROKEN = "passed", "FAILED"


def print_checkup(found: Checkup, console: Console) -> None:
    """Print facts with what to do, the tests, and what the times mean for trees."""
    width = min(WIDTH, console.width)
    table = _table("what is here")
    for fact in found.facts:
        style = COLORS[fact.status]
        table.add_row(f"[{style}]{fact.status}[/{style}]", escape(fact.name), escape(fact.value))
        if fact.advice:
            table.add_row("", "", f"[dim]-> {escape(fact.advice)}[/dim]")
    console.print(table, width=width)
    table = _table("self-test")
    for test in found.tests:
        word = f"[green]{PASSED}[/green]" if test.passed else f"[bold red]{BROKEN}[/bold red]"
        took = f"[dim]({test.seconds:.1f} s)[/dim]"
        table.add_row(word, escape(test.name), f"{escape(test.value)} {took}")
    console.print()
    console.print(table, width=width)
    if found.said:
        console.print()
    for sentence in found.said:
        console.print(escape(sentence), width=width, highlight=False)
    console.print()
    console.print(escape(_verdict(found)), width=width, highlight=False)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1))
    table.show_header = False
    for column in ("status", "name", "value"):
        table.add_column(column, no_wrap=column == "status", overflow="fold")
    return table


def _verdict(found: Checkup) -> str:
    problems = [fact.name for fact in found.facts if fact.status is Status.PROBLEM]
    broken = [test.name for test in found.tests if not test.passed]
    if broken:
        return f"Not well: {len(broken)} tests failed ({'; '.join(broken)})."
    rest = f" Look at: {', '.join(problems)}." if problems else ""
    return f"All is well: {len(found.tests)} tests passed.{rest}"
