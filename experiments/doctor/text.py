"""Print the findings of `treespec doctor`."""

from rich.console import Console

from treespec.experiments.doctor.findings import Checkup, Fact, Status, Trial
from treespec.experiments.report.table import Cell, Column, Table
from treespec.experiments.report.terminal import print_table, say

__all__ = ["print_checkup"]

WIDTH = 110
TONES = {Status.OK: "", Status.MISSING: "faint", Status.PROBLEM: "doubtful"}


FACTS = (
    Column[Fact]("status", lambda fact: fact.status, left=True),
    Column[Fact]("what", lambda fact: fact.name, left=True),
    Column[Fact](
        "found",
        lambda fact: Cell(fact.value, below=f"-> {fact.advice}" if fact.advice else ""),
        left=True,
    ),
)

TESTS = (
    Column[Trial]("status", lambda test: "passed" if test.passed else "FAILED", left=True),
    Column[Trial]("what", lambda test: test.name, left=True),
    Column[Trial]("result", lambda test: Cell(test.value, f"({test.seconds:.1f} s)"), left=True),
)


def print_checkup(checkup: Checkup, console: Console) -> None:
    """Print facts with advice, the tests, what the times mean for trees, and a verdict."""
    width = min(WIDTH, console.width)
    facts = Table("this machine", FACTS, checkup.facts, tone=lambda fact: TONES[fact.status])
    tests = Table("self-test", TESTS, checkup.tests, tone=lambda test: "" if test.passed else "bad")
    print_table(facts, console, width)
    print_table(tests, console, width)
    for sentence in (*checkup.said, _verdict(checkup)):
        console.print()
        say(console, sentence, width=width)


def _verdict(checkup: Checkup) -> str:
    problems = [fact.name for fact in checkup.facts if fact.status is Status.PROBLEM]
    failed = [test.name for test in checkup.tests if not test.passed]
    if failed:
        tests = "test" if len(failed) == 1 else "tests"
        return f"Something is wrong: {len(failed)} {tests} failed ({'; '.join(failed)})."
    passed = f"{len(checkup.tests)} {'test' if len(checkup.tests) == 1 else 'tests'} passed"
    if problems:
        return f"treespec works: {passed}. Problems to look at: {', '.join(problems)}."
    return f"Everything is fine: {passed}."
