"""Figures of parallel guessing, of the cost of a pass, and of the speedup by batch size."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    INK,
    MUTED,
    PAGE,
    STAGE_COLOURS,
    by_powers,
    clean,
    panels_beside,
)
from treespec.experiments.teaching.batch_speedup import BatchSpeedup
from treespec.experiments.teaching.memory_wall import PassCost
from treespec.experiments.teaching.parallel_guessing import Guessing, PairLaw

SHADES = ("#93c4de", "#5a9fcd", "#2b7bba", "#0b559f", "#08306b")
"""Colours from few to many tokens."""

FLOOR = "#d55e00"

MOST_TICKS = 8
"""Maximum number of tick labels; more would touch."""


def pair_figure(law: PairLaw, names: Sequence[str]) -> Figure:
    """The joint law of two tokens, the law of two independent guesses, and their difference."""
    joint, guessed = law.joint.numpy(), law.independent.numpy()
    panels = (
        ("what the target writes", joint, "Blues"),
        ("two independent guesses", guessed, "Blues"),
        ("guesses − target", guessed - joint, "RdBu_r"),
    )
    most = max(joint.max(), guessed.max())
    with panels_beside(len(panels), 9.0, 3.2) as (figure, places):
        for axes, (title, values, colours) in zip(places, panels, strict=True):
            low = -most if colours == "RdBu_r" else 0.0
            axes.imshow(values, cmap=colours, vmin=low, vmax=most)
            for (row, column), value in np.ndenumerate(values):
                dark = abs(value) > 0.6 * most
                text = f"{value:+.2f}" if colours == "RdBu_r" else f"{value:.2f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=9,
                          color=PAGE if dark else INK)  # fmt: skip
            axes.set_xticks(range(len(names)), names)
            axes.set_yticks(range(len(names)), names)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(title, loc="left", fontsize=10.5)
            axes.set(xlabel="second token", ylabel="first token")
    return figure


def guessing_figure(swept: Guessing) -> Figure:
    """Left: the error of the law of unverified guesses. Right: the number of guesses kept if verified."""
    with panels_beside(2, 9.0, 3.6) as (figure, (left, right)):
        shades = SHADES[-len(swept.tokens) :]
        for row, (count, colour) in enumerate(zip(swept.tokens, shades, strict=True)):
            for axes, values in ((left, swept.unverified), (right, swept.accepted)):
                axes.plot(swept.dependence, values[row], color=colour, marker="o", markersize=4,
                          label=f"{count} tokens")  # fmt: skip
        worst = float(swept.verified.max())
        left.axhline(worst, color=GROUP_COLOURS["tree"], linewidth=3, zorder=3)
        left.text(1, 0.02, f"the same guesses, verified: at most {worst:.0e}", ha="right",
                  va="bottom", fontsize=9.5, color=GROUP_COLOURS["tree"])  # fmt: skip
        left.set(ylabel="total variation from the target's law", ylim=(-0.015, 1))
        left.set_title("guesses taken as they are", loc="left", fontsize=10.5)
        right.set(ylabel="guesses kept, expected", ylim=(0, None))
        right.set_title("the price of repairing them", loc="left", fontsize=10.5)
        for axes in (left, right):
            axes.set_xlabel("dependence of a token on the one before")
            clean(axes, "y")
        left.legend(title="guessed at once", loc="upper left")
    return figure


def wall_figure(cost: PassCost) -> Figure:
    """Left: the time of a pass and its floor. Right: both per token."""
    with panels_beside(2, 9.0, 3.8) as (figure, (left, right)):
        nodes, median = np.array(cost.nodes), 1e3 * cost.median_s
        reach = np.abs(1e3 * cost.quartiles_s - median)
        fine = np.geomspace(nodes[0], nodes[-1], 200)
        memory, compute = (1e3 * np.interp(fine, nodes, s) for s in (cost.bytes_s, cost.flops_s))
        floor = np.maximum(memory, compute)
        for axes, divisor, fine_divisor in ((left, 1, 1), (right, nodes, fine)):
            axes.fill_between(fine, floor / fine_divisor, color=MUTED, alpha=0.13, linewidth=0)
            axes.plot(fine, memory / fine_divisor, color=FLOOR, linestyle=(0, (4, 2)), linewidth=1.4,
                      label="floor: reading the weights")  # fmt: skip
            axes.plot(fine, compute / fine_divisor, color=FLOOR, linestyle=(0, (1, 1.5)),
                      linewidth=1.6, label="floor: arithmetic")  # fmt: skip
            axes.errorbar(nodes, median / divisor, yerr=reach / divisor,
                          color=STAGE_COLOURS["commit"], marker="o", markersize=5, linewidth=1.6,
                          elinewidth=1.2, label="measured")  # fmt: skip
            by_powers(axes, cost.nodes, "tokens of the pass")
        left.set(ylabel="milliseconds of a pass", ylim=(0, None))
        right.set(ylabel="milliseconds of a token", yscale="log")
        figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def batch_figure(speedups: Mapping[str, BatchSpeedup], fixed: str) -> Figure:
    """Speedup over plain decoding against the batch size, with one panel per scenario."""
    width = 1.0 + 3.6 * len(speedups)
    with panels_beside(len(speedups), width, 3.9, sharey=True) as (figure, panels):
        for axes, (title, speedup) in zip(panels, speedups.items(), strict=True):
            _draw_batches(axes, speedup, fixed)
            axes.set_title(title, loc="left", fontsize=10.5)
        panels[0].set_ylabel("predicted speedup over plain decoding")
        panels[0].set_ylim(bottom=0)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _draw_batches(axes: Axes, speedup: BatchSpeedup, fixed: str) -> None:
    """Draw one panel; the numbers are the nodes of the best tree."""
    lines = (
        ("best tree (its nodes)", speedup.tree, GROUP_COLOURS["tree"], "^", "-"),
        ("best chain", speedup.chain, GROUP_COLOURS["chain"], "o", "-"),
        (fixed, speedup.fixed, GROUP_COLOURS["tree"], "v", (0, (4, 2))),
    )
    for label, values, colour, marker, style in lines:
        axes.plot(speedup.batches, values, color=colour, marker=marker, markersize=4.5,
                  linestyle=style, fillstyle="none" if style != "-" else "full", label=label)  # fmt: skip
    for batch, value, nodes in zip(speedup.batches, speedup.tree, speedup.nodes, strict=True):
        if np.isfinite(value):
            axes.annotate(str(nodes), (batch, value), xytext=(0, 5), textcoords="offset points",
                          ha="center", fontsize=8, color=GROUP_COLOURS["tree"])  # fmt: skip
    axes.axhline(1, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), label="plain decoding")
    if speedup.stops is not None:
        axes.axvspan(speedup.stops, speedup.batches[-1], color=MUTED, alpha=0.13, linewidth=0)
    every = 2 if len(speedup.batches) > MOST_TICKS else 1
    by_powers(axes, speedup.batches[::every], "texts at once")
