"""Speedups prompt by prompt: prompts are the sampling unit, and a mean hides how they differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from treespec.experiments.report.figure_axes import stacked
from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    GROUP_MARKERS,
    MUTED,
    SMALL,
    clean,
    wrapped,
)
from treespec.experiments.report.measurements import OF_PROMPT, Measurements

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAMILIES = {"chain": ("chain", "assisted"), "tree": ("tree",)}
"""Method groups of each family, whose fastest method is shown; assisted generation drafts chains."""

BELOW_LOWEST = 0.06
"""Room below the lowest dot, so that its marker is whole, as a share of the range of the dots."""

NAME, SHORT = 4.5, 1.4
"""Maximum width of a line of the legend, and of names side by side, in inches."""


@dataclass(frozen=True, eq=False)
class PromptSpeedups:
    """The fastest lossless chain and tree over plain decoding on each compared prompt, by family."""

    baseline: str
    methods: Mapping[str, str]
    groups: Mapping[str, str]
    ratios: Mapping[str, NDArray[np.float64]]

    @property
    def order(self) -> NDArray[np.int64]:
        """Indices that sort the prompts by the speed of the tree over that of the chain.

        With a single family, they sort by its speedup.
        """
        chain, tree = self.ratios.get("chain"), self.ratios.get("tree")
        if chain is not None and tree is not None:
            return np.argsort(tree / chain, kind="stable")
        return np.argsort(next(iter(self.ratios.values())), kind="stable")

    @property
    def trees_ahead(self) -> int | None:
        if len(self.ratios) < 2:
            return None
        return int((self.ratios["tree"] > self.ratios["chain"]).sum())


def prompt_speedups(data: Measurements) -> PromptSpeedups | None:
    if data.baseline is None:
        return None
    plain = data.values[data.baseline, "new_tokens"] / data.values[data.baseline, OF_PROMPT]
    fastest = {family: data.fastest(data.named(*groups)) for family, groups in FAMILIES.items()}
    methods = {family: name for family, name in fastest.items() if name is not None}
    if not methods:
        return None
    known = {m.name: m.group for m in data.methods}
    return PromptSpeedups(
        data.baseline,
        methods,
        {family: known[name] for family, name in methods.items()},
        {
            family: data.values[name, "new_tokens"] / data.values[name, OF_PROMPT] / plain
            for family, name in methods.items()
        },
    )


def prompts_figure(speedups: Mapping[str, PromptSpeedups]) -> "Figure | None":
    """One panel per sampling setting: for each prompt, a line from the chain's dot to the tree's."""
    if not speedups:
        return None
    figure, panels = stacked(len(speedups), 3.6 * len(speedups))
    for axes, (sampling, shown) in zip(panels, speedups.items(), strict=True):
        _draw(axes, sampling, shown)
    return figure


def _draw(axes: "Axes", sampling: str, shown: PromptSpeedups) -> None:
    from matplotlib.ticker import MaxNLocator

    order = shown.order
    places = np.arange(1, len(order) + 1)
    size = float(np.clip(200 / len(order), 2.4, 6.0))
    ratios = {family: values[order] for family, values in shown.ratios.items()}
    axes.axhline(
        1.0, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), label=_label(shown.baseline)
    )
    title, order_by = sampling, f"speedup of the {next(iter(ratios))}"
    if shown.trees_ahead is not None:
        title += f": the tree is faster on {shown.trees_ahead} of {len(order)} prompts"
        order_by = "speed of tree over chain"
        chain, tree = ratios["chain"], ratios["tree"]
        colours = [
            GROUP_COLOURS[shown.groups["tree" if ahead else "chain"]] for ahead in tree > chain
        ]
        axes.vlines(places, chain, tree, colors=colours, linewidth=min(1.6, size / 2), alpha=0.55)
    for family, values in ratios.items():
        group = shown.groups[family]
        axes.plot(
            places,
            values,
            linestyle="none",
            color=GROUP_COLOURS[group],
            marker=GROUP_MARKERS[group],
            markersize=size,
            label=_label(shown.methods[family]),
        )
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.set_xlabel(f"prompts, by {order_by}")
    axes.set_ylabel("speedup")
    axes.set_xlim(0.3, len(order) + 0.7)
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    # ticks that do not depend on the height: otherwise their labels outgrow the space reserved for them
    axes.yaxis.set_major_locator(MaxNLocator(5))
    low = min(float(values.min()) for values in ratios.values())
    high = max(float(values.max()) for values in ratios.values())
    axes.set_ylim(bottom=min(0.9, low - BELOW_LOWEST * (high - low)))
    clean(axes, "y")
    names = (shown.baseline, *shown.methods.values())
    columns = 1 if any("\n" in wrapped(name, SHORT, SMALL) for name in names) else len(names)
    axes.legend(
        loc="upper left", bbox_to_anchor=(0, -0.2), ncols=columns, handletextpad=0.4, columnspacing=1.2,
        borderaxespad=0.0,
    )  # fmt: skip


def _label(name: str) -> str:
    return wrapped(name, NAME, SMALL)
