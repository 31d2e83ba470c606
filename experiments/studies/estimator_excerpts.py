"""Tables of the simulated errors of the slowdown estimator, as the docstring of `report.slowdown` has them.

After a new run of `studies.interleaved_estimator`, replace the tables there by

    python -c "from treespec.experiments.studies.estimator_excerpts import excerpts; print(excerpts())"

A test compares them with the latest files.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import indent

from treespec.experiments.studies.interleaved_estimator import MACHINES
from treespec.experiments.studies.results_page import SECTIONS

__all__ = ["EXCERPT", "excerpt", "excerpts"]

EXCERPT: Mapping[str, Sequence[str]] = {
    "A/A": ("quiet", "bursts", "drift", "stalls", "steady"),
    "5 % dearer": ("quiet", "bursts"),
    "several classes": ("quiet", "bursts"),
    "rare dear steps": ("quiet", "bursts", "drift", "stalls", "steady"),
    "rare dear steps chill caches": ("quiet", "bursts"),
    "caches grow": ("quiet", "bursts"),
    "A/A, no other method": ("bursts",),
    "feels 0.8 of it": ("bursts", "drift", "steady"),
}
"""Machines of each world that the docstring of `report.slowdown` shows."""

_EXCERPT_COLUMNS = {
    "prompts": ("by prompts, sd", ".2f"),
    "totals": ("totals, sd", ".2f"),
    "nearest": ("nearest, or totals, sd", ".2f"),
    "adjusted": ("adjusted, sd", ".2f"),
    "bias": ("adjusted, bias", "+.2f"),
    "half-width": ("adjusted, half-width", ".2f"),
    "coverage": ("adjusted, coverage", ".1f"),
}
_WIDTH = 6
"""Least width of a column of numbers."""


def excerpt(path: Path) -> str:
    """The rows of `EXCERPT` in percent, as a table of aligned text, followed by where they come from.

    Args:
        path: path of a result file of this study. Files that are older than a world or a way lack its rows
            or its column, and so does the table.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    figures = data["figures"]
    kinds = {(row["world"], row["machine"]): row for row in figures["kinds"]}
    columns = {
        head: column
        for head, column in _EXCERPT_COLUMNS.items()
        if all(column[0] in row for row in kinds.values())
    }
    worlds, machines = max(map(len, EXCERPT)), max(map(len, ("machine", *MACHINES)))
    heads = "  ".join(f"{head:>{_WIDTH}}" for head in columns)
    lines = [f"{'methods':{worlds}}  {'machine':{machines}}  {heads}"]
    for world, shown in EXCERPT.items():
        rows = [kinds[world, machine] for machine in shown if (world, machine) in kinds]
        for i, row in enumerate(rows):
            cells = [
                format(100 * row[key], spec).rjust(max(len(head), _WIDTH))
                for head, (key, spec) in columns.items()
            ]
            name = "" if i else world  # a world is named once
            lines.append(f"{name:{worlds}}  {row['machine']:{machines}}  {'  '.join(cells)}")
    origin = (
        f"{figures['experiments']:,} runs per row, measured {data['measured'][:10]}, "
        f"commit {data['git_hash'][:7]}:"
    )
    return "\n".join([*lines, origin, path.name])


def excerpts() -> str:
    """The tables of the docstring of `report.slowdown`, from the latest files: made up, then recorded."""
    sections = ("interleaved_estimator", "interleaved_estimator, recorded")
    return "\n\n".join(indent(excerpt(SECTIONS[name].paths[0]), "    ") for name in sections)
