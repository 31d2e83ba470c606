"""The comparison of two runs, for people."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from treespec.experiments.report.diff import RunDiff
from treespec.experiments.report.statistics import Interval
from treespec.experiments.report.table_text import interval_text
from treespec.experiments.report.verdict import LEAST_PROMPTS

__all__ = ["print_diff"]

LISTED = 20
"""Differences of configs and methods that are listed before the rest is only counted."""


def print_diff(diff: RunDiff, console: Console) -> None:
    """Print warnings, ratios, and what differs.

    Args:
        diff: of two runs.
        console: where to.
    """

    def say(text: str, style: str = "") -> None:
        console.print(escape(text), style=style, highlight=False)

    say(f"A: {diff.a}")
    say(f"B: {diff.b}")
    for warning in _warnings(diff):
        say(f"WARNING: {warning}", "bold yellow")
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for head in ("method", "prompts", "tok/s, B over A", "tok/step, B over A", "same text", ""):
        table.add_column(
            head, justify="left" if head in ("method", "") else "right", overflow="fold"
        )
    sampling = None
    for entry in diff.methods:
        if entry.sampling != sampling:
            table.add_section()
            sampling = entry.sampling
        table.add_row(
            escape(f"{entry.sampling}: {entry.method}"),
            str(entry.prompts),
            interval_text(entry.speed),
            interval_text(entry.tokens_per_step),
            f"{entry.same_tokens}/{entry.texts}",
            _decided(entry.speed, entry.prompts),
        )
    console.print()
    console.print(table)
    for title, lines in (
        ("Not compared", diff.not_compared),
        ("Config, A -> B", diff.config),
        ("Trees and rules of methods of one name, A -> B", diff.trees),
        ("Only in A", diff.only_a),
        ("Only in B", diff.only_b),
    ):
        if lines:
            say(f"\n{title}:")
            for line in lines[:LISTED]:
                say(f"  {line}")
            if len(lines) > LISTED:
                say(f"  ... and {len(lines) - LISTED} more")
    if not diff.config:
        say("\nThe configs are the same.")
    say(
        "\nRatios are of totals over the common prompts, prefill excluded, with 95 % intervals of the "
        "paired bootstrap over prompts. They know how prompts differ, not how the machine differed from "
        "one run to the other: methods of one run take turns on the same machine, two runs do not.",
        "dim",
    )


def _warnings(diff: RunDiff) -> list[str]:
    """What makes the ratios something else than one expects."""
    found = []
    if not diff.same_prompts:
        found.append(
            "the runs measured other prompts, or tokenized them otherwise: those with the same id are "
            "compared, whose text may differ"
        )
    found += [f"{folder} is not finished: its prompts so far" for folder in diff.unfinished]
    if diff.hardware:
        found.append(f"the hardware differs: {'; '.join(diff.hardware)}")
    if diff.versions:
        found.append(f"the versions differ: {'; '.join(diff.versions)}")
    return found


def _decided(ratio: Interval, prompts: int) -> str:
    if prompts < LEAST_PROMPTS:
        return f"fewer than {LEAST_PROMPTS} prompts"
    if ratio.contains(1.0):
        return "not decided"
    return "B is faster" if ratio.estimate > 1 else "A is faster"
