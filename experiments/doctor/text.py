"""What `treespec doctor` prints."""

from rich.console import Console

from treespec.experiments.doctor.findings import Checkup, Fact, Status, Trial
from treespec.experiments.report.table import Cell, Column, Table
from treespec.experiments.report.terminal import print_table, say

__all__ = ["print_checkup"]

WIDTH = 110
TONES = {Status.OK: "", Status.MISSING: "faint", Status.PROBLEM: "doubtful"}


def _fact(fact: Fact) -> Cell:
    return Cell(fact.value, below=f"-> {fact.advice}" if fact.advice else "")


FACTS = (
    Column[Fact]("status", lambda fact: fact.status, left=True),
    Column[Fact]("what", lambda fact: fact.name, left=True),
    Column[Fact]("found", _fact, left=True),
)

TESTS = (
    Column[Trial]("status", lambda test: "passed" if test.passed else "FAILED", left=True),
    Column[Trial]("what", lambda test: test.name, left=True),
    Column[Trial]("result", lambda test: Cell(test.value, f"({test.seconds:.1f} s)"), left=True),
)


def print_checkup(checkup: Checkup, console: Console) -> None:
    """Print facts with what to do, the tests, and what the times mean for trees."""
    width = min(WIDTH, console.width)
    facts = Table("what is here", FACTS, checkup.facts, tone=lambda fact: TONES[fact.status])
    tests = Table("self-test", TESTS, checkup.tests, tone=lambda test: "" if test.passed else "bad")
    print_table(facts, console, width)
    print_table(tests, console, width)
    for sentence in (*checkup.said, _verdict(checkup)):
        console.print()
        say(console, sentence, width=width)


def _verdict(checkup: Checkup) -> str:
    problems = [fact.name for fact in checkup.facts if fact.status is Status.PROBLEM]
    broken = [test.name for test in checkup.tests if not test.passed]
    if broken:
        return f"Not well: {len(broken)} tests failed ({'; '.join(broken)})."
    passed = f"{len(checkup.tests)} tests passed"
    if problems:
        return f"treespec works: {passed}. Look at: {', '.join(problems)}."
    return f"All is well: {passed}."
