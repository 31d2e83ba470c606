"""Figures whose points are single prompts, sizes of trees, or predictions beside measurements."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from treespec.experiments.report.budgets import Point
from treespec.experiments.report.figure_axes import blank, reach, stacked
from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    GROUP_MARKERS,
    MUTED,
    SMALL,
    clean,
    wrapped,
)
from treespec.experiments.report.measurements import OF_PROMPT, Measurements
from treespec.experiments.report.prediction import Prediction
from treespec.search.intervals import Interval

FAMILIES = (("chain", "assisted"), ("tree",))
"""Method groups whose fastest method is shown prompt by prompt; assisted generation drafts chains."""

NAME, SHORT = 0.75, 0.233
"""Maximum width of a line of a legend, and of names side by side, over that of the figure."""

DASHED: dict[str, Any] = {"color": MUTED, "linewidth": 1.2, "linestyle": (0, (4, 3))}


def prompt_speedups(data: Measurements) -> dict[str, NDArray[np.float64]]:
    """Speedups over plain decoding on each prompt, of the fastest lossless chain and the fastest tree.

    By name of the method; prompts are sorted by the speed of the tree over that of the chain, or by the
    speedup if there is only one of them.
    """
    if data.baseline is None:
        return {}
    names = [name for groups in FAMILIES if (name := data.fastest(data.named(*groups)))]
    plain, *speeds = (
        data.values[name, "new_tokens"] / data.values[name, OF_PROMPT]
        for name in (data.baseline, *names)
    )
    if not speeds:
        return {}
    order = np.argsort(speeds[-1] / (speeds[0] if len(speeds) > 1 else plain), kind="stable")
    return {name: (speed / plain)[order] for name, speed in zip(names, speeds, strict=True)}


def prompts_figure(measurements: Mapping[str, Measurements]) -> Figure | None:
    """One panel per sampling setting: for each prompt, a line from the chain's dot to the tree's."""
    found = {s: ratios for s, data in measurements.items() if (ratios := prompt_speedups(data))}
    if not found:
        return None
    figure, panels = stacked(len(found), 3.6 * len(found))
    for axes, (sampling, ratios) in zip(panels, found.items(), strict=True):
        _draw_prompts(axes, measurements[sampling], ratios)
    return figure


def _draw_prompts(
    axes: Axes, data: Measurements, ratios: Mapping[str, NDArray[np.float64]]
) -> None:
    groups = {m.name: m.group for m in data.methods}
    labels = {m.name: m.label for m in data.methods}
    names, values = [str(data.baseline), *ratios], np.array(list(ratios.values()))
    prompts = values.shape[1]
    (width, _), most = rcParams["figure.figsize"], rcParams["lines.markersize"]
    places, size = np.arange(1, prompts + 1), float(np.clip(33 * width / prompts, 2.4, most))
    axes.axhline(1.0, label=wrapped(names[0], NAME, SMALL), **DASHED)
    title, order_by = data.sampling, f"speedup of {labels[names[1]]}"
    if len(values) > 1:
        ahead = values[1] > values[0]
        title += f": the tree is faster on {ahead.sum()} of {prompts} prompts"
        order_by = "speed of tree over chain"
        colours = [GROUP_COLOURS[groups[names[2 if tree else 1]]] for tree in ahead]
        axes.vlines(places, *values, colors=colours, linewidth=min(1.6, size / 2), alpha=0.55)
    for name, speedups in ratios.items():
        look: dict[str, Any] = {**_look(groups[name]), "markersize": size}
        label = wrapped(labels[name], NAME, SMALL)
        axes.plot(places, speedups, linestyle="none", label=label, **look)
    axes.set_title(title, loc="left")
    axes.set_xlabel(f"prompts, by {order_by}")
    axes.set_ylabel("speedup")
    axes.set_xlim(0.3, prompts + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    # ticks that do not depend on the height: otherwise their labels outgrow the space reserved for them
    axes.yaxis.set_major_locator(MaxNLocator(5))
    # room below the lowest dot, so that its marker is whole
    axes.set_ylim(bottom=min(0.9, float(values.min() - 0.06 * np.ptp(values))))
    clean(axes, "y")
    columns = (
        1 if any("\n" in wrapped(labels[name], SHORT, SMALL) for name in names) else len(names)
    )
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, -0.2), ncols=columns, handletextpad=0.4, columnspacing=1.2,
        borderaxespad=0.0,
    )  # fmt: skip


SCALING_LOOKS = {
    "trees": {"color": GROUP_COLOURS["tree"], "marker": "^"},
    "independent chains": {"color": "#cc79a7", "marker": "D"},
    "one chain": {"color": GROUP_COLOURS["chain"], "marker": "o"},
}


def scaling_figure(scalings: Mapping[str, Mapping[str, Sequence[Point]]]) -> Figure | None:
    """One panel per sampling setting, nodes on a logarithmic axis; None if no family has a curve."""
    curves = {sampling: families for sampling, families in scalings.items() if families}
    if not curves:
        return None
    figure, panels = stacked(len(curves), 0.6 + 3.4 * len(curves), sharex=True)
    for axes, (sampling, families) in zip(panels, curves.items(), strict=True):
        for name, points in families.items():
            axes.errorbar(
                [p.nodes for p in points],
                [p.tokens.estimate for p in points],
                yerr=reach([p.tokens for p in points]),
                markersize=5.5,
                linewidth=1.4,
                elinewidth=1.0,
                label=name,
                **SCALING_LOOKS[name],
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda nodes, _: f"{nodes:g}")
        axes.set_ylabel("kept tokens per step")
        axes.set_title(sampling, loc="left")
        axes.set_ylim(bottom=1)
        clean(axes, "both")
    panels[0].legend(loc="upper left")
    panels[-1].set_xlabel("verified nodes, the root included")
    return figure


def prediction_figure(rows: Sequence[Prediction], groups: Mapping[str, str]) -> Figure | None:
    """Points around the line of equality: tokens per step and speedup, a pair of panels per setting.

    Points are numbered; a key below the panels names them. None if nothing was predicted.
    """
    if not rows:
        return None
    numbers = {name: i + 1 for i, name in enumerate(dict.fromkeys(row.method for row in rows))}
    samplings = list(dict.fromkeys(row.sampling for row in rows))
    texts = {name: f"{i}  {wrapped(name, NAME, SMALL)}" for name, i in numbers.items()}
    lines = sum(text.count("\n") + 1 for text in texts.values())
    figure = blank(0.67 * len(samplings) + 0.2 * (lines + 1), 0.43 * len(samplings))
    panels = figure.subplots(len(samplings), 2, squeeze=False)
    for (left, right), sampling in zip(panels, samplings, strict=True):
        shown = [row for row in rows if row.sampling == sampling]
        looks = [(numbers[row.method], groups[row.method]) for row in shown]
        _draw_equality(left, [(row.tokens_measured, row.tokens) for row in shown], looks)
        _draw_equality(right, [(row.speedup_measured, row.speedup) for row in shown], looks)
        left.set(xlabel="measured tokens per step", ylabel="predicted tokens per step")
        right.set(xlabel="measured speedup", ylabel="predicted speedup")
        left.set_title(sampling, loc="left")
    handles = [
        Line2D([], [], linestyle="none", label=text, **_look(groups[name]))
        for name, text in texts.items()
    ]
    figure.legend(handles=handles, loc="outside lower left", handletextpad=0.2)
    return figure


def _look(group: str) -> dict[str, Any]:
    return {
        "color": GROUP_COLOURS[group],
        "marker": GROUP_MARKERS[group],
        "markersize": rcParams["lines.markersize"] * 5 / 6,
    }


def _draw_equality(
    axes: Axes, points: Sequence[tuple[Interval, Interval]], looks: Sequence[tuple[int, str]]
) -> None:
    """Draw pairs of a measured and a predicted value, each with its number and in its group's look."""
    shown = [value for pair in points for of in pair for value in of if not isnan(value)]
    low, high = min(shown), max(shown)
    margin = 0.08 * (high - low or high or 1.0)
    limits = low - margin, high + margin
    axes.plot(limits, limits, zorder=1, **DASHED)
    for (measured, predicted), (number, group) in zip(points, looks, strict=True):
        bars = {"xerr": reach([measured]), "yerr": reach([predicted])}
        place = (measured.estimate, predicted.estimate)
        axes.errorbar(*place, **bars, **_look(group), elinewidth=0.9, linestyle="none")
        # at the upper left: away from the line of equality and from both whiskers
        axes.annotate(
            str(number),
            place,
            xytext=(-3, 3),
            textcoords="offset points",
            ha="right",
            fontsize="small",
        )
    axes.set(xlim=limits, ylim=limits)
    axes.set_aspect("equal")
    for side in (axes.xaxis, axes.yaxis):
        side.set_major_locator(MaxNLocator(min(5, int(rcParams["figure.figsize"][0]) + 1)))
    clean(axes, "both")
