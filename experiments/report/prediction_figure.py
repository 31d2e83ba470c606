"""Predictions of the search against measurements of the run, as points around the line of equality."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import cos, hypot, isnan, pi, sin

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from treespec.experiments.report.figure_axes import WIDTH, reach
from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    GROUP_MARKERS,
    INK,
    MUTED,
    PAGE,
    SMALL,
    clean,
    wrapped,
)
from treespec.experiments.report.prediction import Prediction
from treespec.search.intervals import Interval

__all__ = ["places_of_labels", "prediction_figure"]

NAME, SHORT = 4.5, 2.2
"""Maximum width of a line of the key, and of names in two columns, in inches."""

LETTER, LINE = 5.4, 9.0
"""Width and height of a digit at the size of the labels, in points."""

RADII, DIRECTIONS = (9.0, 14.0, 20.0, 28.0, 38.0), 16
"""Candidate positions of a label: distances from its dot in points, and number of directions at each."""


def prediction_figure(rows: Sequence[Prediction], groups: Mapping[str, str]) -> Figure | None:
    """Draw tokens per step and speedup over plain decoding as a pair of panels per sampling setting.

    Dots are numbered; a key below the panels names them.

    Args:
        rows: predictions under all settings.
        groups: group of each method, by name.

    Returns:
        None if nothing was predicted.
    """
    if not rows:
        return None
    numbers = {name: i + 1 for i, name in enumerate(dict.fromkeys(row.method for row in rows))}
    samplings = list(dict.fromkeys(row.sampling for row in rows))
    texts = {
        name: f"{i}  {wrapped(name, NAME, SMALL)}".replace("\n", "\n     ")
        for name, i in numbers.items()
    }
    columns = 1 if any("\n" in wrapped(name, SHORT, SMALL) for name in numbers) else 2
    lines = sum(text.count("\n") + 1 for text in texts.values()) / columns
    figure = Figure(figsize=(WIDTH, 3.25 * len(samplings) + 0.2 * (lines + 1)))
    panels = figure.subplots(len(samplings), 2, squeeze=False)
    drawn = []
    for (left, right), sampling in zip(panels, samplings, strict=True):
        shown = [row for row in rows if row.sampling == sampling]
        for axes, quantity, points in (
            (left, "tokens per step", [(row.tokens_measured, row.tokens) for row in shown]),
            (right, "speedup", [(row.speedup_measured, row.speedup) for row in shown]),
        ):
            _draw(axes, points, [groups[row.method] for row in shown])
            axes.set_xlabel(f"measured {quantity}")
            axes.set_ylabel(f"predicted {quantity}")
            drawn.append((axes, points, [numbers[row.method] for row in shown]))
        left.set_title(sampling, loc="left", fontsize=10.5)
    handles = [
        Line2D(
            [], [], linestyle="none", marker=GROUP_MARKERS[groups[name]],
            color=GROUP_COLOURS[groups[name]], markersize=5.0, label=text,
        )
        for name, text in texts.items()
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, handletextpad=0.2)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels are placed for the current layout
    for axes, points, labels in drawn:
        _label(axes, points, labels)
    return figure


Points = Sequence[tuple[Interval, Interval]]
"""Pairs of a measured and a predicted value."""


def _draw(axes: Axes, points: Points, groups: Sequence[str]) -> None:
    shown = [interval for pair in points for interval in pair]
    values = [v for i in shown for v in (i.estimate, i.low, i.high) if not isnan(v)]
    low, high = min(values), max(values)
    margin = 0.08 * (high - low or high or 1.0)
    limits = low - margin, high + margin
    axes.plot(limits, limits, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    for (measured, predicted), group in zip(points, groups, strict=True):
        axes.errorbar(
            measured.estimate,
            predicted.estimate,
            xerr=reach([measured]),
            yerr=reach([predicted]),
            color=GROUP_COLOURS[group],
            marker=GROUP_MARKERS[group],
            markersize=5.0,
            elinewidth=0.9,
            linestyle="none",
        )
    axes.set(xlim=limits, ylim=limits)
    axes.set_aspect("equal")
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_locator(MaxNLocator(5))
    clean(axes, "both")


def _label(axes: Axes, points: Points, labels: Sequence[int]) -> None:
    """Number the dots; a label that is further away gets a line to its dot."""
    scale = 72 / axes.figure.dpi  # pixels to points
    pixels = axes.transData.transform([(x.estimate, y.estimate) for x, y in points]) * scale
    inside = [scale * edge for edge in axes.get_window_extent().extents]
    dots = [(float(x), float(y)) for x, y in pixels]
    for (x, y), label, (dx, dy) in zip(
        points, labels, places_of_labels(dots, list(map(str, labels)), inside), strict=True
    ):
        far = hypot(dx, dy) > RADII[0] + 1
        axes.annotate(
            str(label),
            (x.estimate, y.estimate),
            xytext=(dx, dy),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8.5,
            color=INK,
            bbox={"facecolor": PAGE, "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkB": 2.0}
            if far
            else None,
        ).set_in_layout(False)


def places_of_labels(
    dots: Sequence[tuple[float, float]], texts: Sequence[str], inside: Sequence[float]
) -> list[tuple[float, float]]:
    """Place labels so that they cover neither each other nor a dot, as far as there is room.

    Each label in turn takes the nearest free position around its dot, or the one that covers the least.

    Args:
        dots: positions of the dots, in points from the left and from the bottom.
        texts: text of each label.
        inside: left, bottom, right and top of the area for labels.

    Returns:
        Centre of each label, in points relative to its dot.
    """
    taken = [(x - 3.5, y - 3.5, x + 3.5, y + 3.5) for x, y in dots]
    places = []
    for (x, y), text in zip(dots, texts, strict=True):
        width, best = LETTER * len(text), None
        for radius, turn in product(RADII, range(DIRECTIONS)):
            # start at the upper left: away from the line of equality and from both whiskers
            angle = 2 * pi * (turn * 5 % DIRECTIONS + 6) / DIRECTIONS
            dx, dy = radius * cos(angle), radius * sin(angle)
            box = (x + dx - width / 2, y + dy - LINE / 2, x + dx + width / 2, y + dy + LINE / 2)
            covered = _overlap(box, taken) + width * LINE - _overlap(box, [inside])
            if best is None or covered < best[0] - 1e-9:
                best = covered, (dx, dy), box
            if covered <= 1e-9:
                break
        assert best is not None
        places.append(best[1])
        taken.append(best[2])
    return places


def _overlap(box: Sequence[float], others: Sequence[Sequence[float]]) -> float:
    """Total area of the intersections of a box with others: left, bottom, right and top of each."""
    one, many = np.asarray(box), np.asarray(others)
    sides = np.minimum(one[2:], many[:, 2:]) - np.maximum(one[:2], many[:, :2])
    return float(sides.clip(min=0).prod(axis=1).sum())
