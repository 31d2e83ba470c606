"""Axes that list methods by group, and legends of groups and sampling settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    GROUP_MARKERS,
    GROUP_NAMES,
    INK,
    LETTERS,
    clean,
    wrapped,
)
from treespec.experiments.report.summary import SamplingSummary
from treespec.search.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILLS: tuple[Literal["full", "none", "left", "right", "top", "bottom"], ...] = (
    "full",
    "none",
    "left",
    "right",
    "top",
    "bottom",
)

ROW_INCHES = 0.27

NAME = 0.317
"""Maximum width of a name beside an axis, over that of the figure."""

LINE = 0.62


@dataclass(frozen=True)
class MethodAxis:
    """An axis with a row for every method, from the top, and a gap before each new group."""

    groups: Mapping[str, str]
    labels: Mapping[str, str]

    @classmethod
    def of(cls, summaries: Sequence[SamplingSummary], *, recorded: bool = False) -> "MethodAxis":
        """All methods of these summaries, ordered by group; with `recorded`, only those of kind `tree`."""
        methods = {row.method.name: row.method for s in summaries for row in s.rows}
        groups = {name: m.group for name, m in methods.items() if not recorded or m.kind == "tree"}
        order = list(GROUP_COLOURS)
        in_order = sorted(groups.items(), key=lambda item: order.index(item[1]))
        return cls(dict(in_order), {n: wrapped(methods[n].label, NAME) for n, _ in in_order})

    @cached_property
    def places(self) -> dict[str, float]:
        places: dict[str, float] = {}
        end, previous = 0.0, None
        for name, group in self.groups.items():
            height = self._height(name)
            if previous is not None and group != previous:
                end += 0.6
            places[name] = end + height / 2 - 0.5
            end += height
            previous = group
        return places

    @property
    def rows(self) -> float:
        name, place = list(self.places.items())[-1]
        return place + self._height(name) / 2 + 0.9

    def _height(self, name: str) -> float:
        return 1 + LINE * self.labels[name].count("\n")

    def apply(self, axes: "Axes") -> None:
        axes.set_yticks(list(self.places.values()), list(self.labels.values()))
        for tick, group in zip(axes.get_yticklabels(), self.groups.values(), strict=False):
            tick.set(color=GROUP_COLOURS[group], linespacing=1.0)
        axes.set_ylim(self.rows - 0.7, -0.7)
        clean(axes)


def panels(
    names: Sequence[str], axis: MethodAxis, extra: float
) -> "tuple[Figure, dict[str, Axes]]":
    """A figure with one panel per sampling setting, two side by side, sharing the axis of methods.

    `extra` is additional height, in rows, for what stands above and below the panels.
    """
    rows_of_panels = -(-len(names) // 2)
    figure = blank(ROW_INCHES * (rows_of_panels * (axis.rows + 1.5) + extra))
    grid = figure.subplots(
        rows_of_panels, min(2, len(names)), sharex=True, sharey=True, squeeze=False
    )
    for unused in grid.flat[len(names) :]:
        unused.set_visible(False)
    axes_of = dict(zip(names, grid.flat, strict=False))
    for name, axes in axes_of.items():
        axis.apply(axes)
        axes.set_title(wrapped(name, NAME), loc="left")
    return figure, axes_of


def stacked(count: int, height: float, **layout: Any) -> "tuple[Figure, list[Axes]]":
    figure = blank(height)
    return figure, list(figure.subplots(count, 1, squeeze=False, **layout)[:, 0])


def blank(height: float, share: float = 0.0) -> "Figure":
    """A figure of the width of `drawing`, with a height that grows and shrinks with its letters.

    `height` is in inches, for letters of the usual size; `share` of the width is added to it.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    width, _ = rcParams["figure.figsize"]
    return Figure(figsize=(width, height * rcParams["font.size"] / LETTERS + share * width))


def lanes(count: int) -> list[float]:
    return [0.0] if count == 1 else [float(x) for x in np.linspace(-0.2, 0.2, count)]


def reach(values: Sequence[Interval]) -> list[list[float]] | None:
    """Error bars: the lengths of the intervals below and above their estimates; None without bounds."""
    if not all(value.bounded for value in values):
        return None
    return [
        [max(0.0, value.estimate - value.low) for value in values],
        [max(0.0, value.high - value.estimate) for value in values],
    ]


def legend(axes: "Axes", groups: Sequence[str], summaries: Sequence[SamplingSummary]) -> None:
    """Draw the legend above the axes: groups by colour and, in a second row, sampling settings by fill."""
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 1.4}
    group_handles = [
        Line2D(
            [], [], marker=GROUP_MARKERS[g], color=GROUP_COLOURS[g], label=GROUP_NAMES[g], **look
        )
        for g in groups
    ]
    setting_handles = [
        Line2D([], [], marker="o", fillstyle=fill, color=INK, label=s.sampling, **look)
        for fill, s in zip(FILLS, summaries, strict=False)
    ]
    rows = [row for row in (group_handles, setting_handles if len(summaries) > 1 else []) if row]
    if not rows:
        return
    columns = max(map(len, rows))
    blank = Line2D([], [], linestyle="none", label=" ")
    axes.legend(
        handles=[*chain.from_iterable(zip_longest(*rows, fillvalue=blank))],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        handletextpad=0.2,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
