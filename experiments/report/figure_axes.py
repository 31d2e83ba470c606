"""Axes that list methods by group, and the legend of groups and sampling settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    GROUP_MARKERS,
    GROUP_NAMES,
    INK,
    clean,
    wrapped,
)
from treespec.experiments.report.summary import SamplingSummary
from treespec.search.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["FILLS", "ROW_INCHES", "WIDTH", "MethodAxis", "lanes", "legend", "panels", "reach"]

FILLS: tuple[Literal["full", "none", "left", "right", "top", "bottom"], ...] = (
    "full",
    "none",
    "left",
    "right",
    "top",
    "bottom",
)
"""Marker fill by sampling setting."""

WIDTH = 6.0
"""Inches. Narrow, so that letters stay legible when a phone shrinks the picture."""

ROW_INCHES = 0.27
"""Inches that a method takes."""

NAME = 1.9
"""Inches of a line of a method's name on an axis; longer names go on below."""

LINE = 0.62
"""Rows that each further line of a name takes."""


@dataclass(frozen=True)
class MethodAxis:
    """A place for every method, from the top, with a gap before each new group.

    Args:
        groups: the group of each method, by name, in the order of the axis.
    """

    groups: Mapping[str, str]

    @classmethod
    def of(cls, summaries: Sequence[SamplingSummary], *, recorded: bool = False) -> "MethodAxis":
        """All methods of these summaries, ordered by group; with `recorded`, those that draft."""
        methods = {row.method.name: row.method for s in summaries for row in s.rows}
        kept = {name: m.group for name, m in methods.items() if not recorded or m.kind == "tree"}
        order = list(GROUP_COLOURS)
        return cls(dict(sorted(kept.items(), key=lambda item: order.index(item[1]))))

    @cached_property
    def labels(self) -> dict[str, str]:
        """The names as they are written: long ones on several lines."""
        return {name: wrapped(name, NAME) for name in self.groups}

    @cached_property
    def places(self) -> dict[str, float]:
        """Where on the axis each method stands."""
        places, end, before = {}, 0.0, None
        for name, group in self.groups.items():
            half = self._height(name) / 2
            end += 0.6 * (before is not None and group != before)
            places[name], end, before = end + half - 0.5, end + 2 * half, group
        return places

    @property
    def rows(self) -> float:
        """Length of the axis, in methods."""
        name, place = list(self.places.items())[-1]
        return place + self._height(name) / 2 + 0.9

    def _height(self, name: str) -> float:
        """Rows that a method takes."""
        return 1 + LINE * self.labels[name].count("\n")

    def apply(self, axes: "Axes") -> None:
        """Write the names, in the colours of their groups."""
        axes.set_yticks(list(self.places.values()), list(self.labels.values()))
        for tick, group in zip(axes.get_yticklabels(), self.groups.values(), strict=False):
            tick.set(color=GROUP_COLOURS[group], linespacing=1.0)
        axes.set_ylim(self.rows - 0.7, -0.7)
        clean(axes)


def panels(
    names: Sequence[str], axis: MethodAxis, extra: float
) -> "tuple[Figure, dict[str, Axes]]":
    """A figure with one panel per sampling setting, two side by side, that share the axis of methods.

    Args:
        names: of the sampling settings.
        axis: of the methods.
        extra: rows of room for what stands above and below.
    """
    from matplotlib.figure import Figure

    lines = -(-len(names) // 2)
    figure = Figure(figsize=(WIDTH, ROW_INCHES * (lines * (axis.rows + 1.5) + extra)))
    grid = figure.subplots(lines, min(2, len(names)), sharex=True, sharey=True, squeeze=False)
    for unused in grid.flat[len(names) :]:
        unused.set_visible(False)
    axes_of = dict(zip(names, grid.flat, strict=False))
    for name, axes in axes_of.items():
        axis.apply(axes)
        axes.set_title(wrapped(name, NAME), loc="left", fontsize=10.5)
    return figure, axes_of


def lanes(count: int) -> list[float]:
    """Offsets of the sampling settings around the place of a method."""
    return [0.0] if count == 1 else [float(x) for x in np.linspace(-0.2, 0.2, count)]


def reach(values: Sequence[Interval]) -> list[list[float]] | None:
    """How far the intervals reach below and above their estimates; None unless all have bounds."""
    if not all(value.bounded for value in values):
        return None
    return [
        [max(0.0, value.estimate - value.low) for value in values],
        [max(0.0, value.high - value.estimate) for value in values],
    ]


def legend(axes: "Axes", groups: Sequence[str], summaries: Sequence[SamplingSummary]) -> None:
    """What colours mean, and below it what fills mean, above the axes."""
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"linestyle": "none", "markersize": 6.5, "markeredgewidth": 1.4}
    first = [
        Line2D(
            [], [], marker=GROUP_MARKERS[g], color=GROUP_COLOURS[g], label=GROUP_NAMES[g], **look
        )
        for g in groups
    ]
    second = [
        Line2D([], [], marker="o", fillstyle=fill, color=INK, label=s.sampling, **look)
        for fill, s in zip(FILLS, summaries, strict=False)
    ]
    lines = [line for line in (first, second if len(summaries) > 1 else []) if line]
    if not lines:
        return
    columns = max(map(len, lines))

    def blank() -> "Line2D":
        return Line2D([], [], linestyle="none", label=" ")

    padded = [[*line, *(blank() for _ in range(columns - len(line)))] for line in lines]
    axes.legend(
        handles=[handle for column in zip(*padded, strict=True) for handle in column],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        handletextpad=0.2,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
