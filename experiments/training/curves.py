"""The curves of a training as a figure: what a draft is worth against the tokens that it was trained on."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    STAGE_COLOURS,
    WIDTH,
    clean,
    drawing,
)
from treespec.files import write_whole

Curve = Sequence[Mapping[str, Any]]
"""Measurements of one training, one line each."""

COLOURS = [
    *(GROUP_COLOURS[group] for group in ("chain", "assisted", "tree")),
    *(STAGE_COLOURS[stage] for stage in ("accept", "draft", "verify", "commit")),
]
MARKERS = "o^sDvPX"

PANELS = {
    "tokens_per_step_chain_4": "chain of 4",
    "tokens_per_step_best_first_16": "best-first, 16 nodes",
    "tokens_per_step_best_first_64": "best-first, 64 nodes",
}
"""Trees of the metric that are shown, at temperature 0."""
OVERLAP = {"overlap": "one drawn child, T = 1"}
"""The expected acceptance of a child that is drawn at temperature 1."""
BAND_OF_ONE = "with 95 % intervals over answers"
BAND_OF_SEEDS = "mean over seeds, from the lowest to the highest"


@dataclass(frozen=True)
class Line:
    """A line of the figure with its band.

    Args:
        tokens: that the draft was trained on.
        values, low, high: at these tokens; NaN where there is no band.
    """

    tokens: Float[np.ndarray, " n"]
    values: Float[np.ndarray, " n"]
    low: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]

    @classmethod
    def of(cls, curves: Sequence[Curve], key: str) -> "Line":
        """One training with its interval over answers, or the mean of several, with their range.

        Seeds fill batches differently, so their measurements stand a few tokens apart: all are read at
        those of the first.
        """
        tokens = np.array([row["tokens"] for row in curves[0]], float)
        if len(curves) == 1:
            ends = [
                np.array([row[name] for row in curves[0]], float)
                for name in (key, f"{key}_low", f"{key}_high")
            ]
            return cls(tokens, *ends)
        values = np.array(
            [
                np.interp(tokens, [row["tokens"] for row in curve], [row[key] for row in curve])
                for curve in curves
            ]
        )
        return cls(tokens, values.mean(0), values.min(0), values.max(0))


def save_curves(curves: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """Draw a line for each draft: a panel for each tree at temperature 0, and one at temperature 1.

    Args:
        curves: by draft, one for each seed.
        path: of the figure; its name ends in its format.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter

    shown = PANELS | OVERLAP
    with drawing(1.4 * WIDTH):
        figure, axes = plt.subplots(2, 2, sharex=True, figsize=(1.4 * WIDTH, 1.1 * WIDTH))
        for panel, (key, title) in zip(axes.flat, shown.items(), strict=True):
            for (name, of_seeds), colour, marker in zip(
                curves.items(), cycle(COLOURS), cycle(MARKERS), strict=False
            ):
                line = Line.of(of_seeds, key)
                panel.plot(line.tokens, line.values, color=colour, marker=marker, label=name)
                if not np.isnan([line.low, line.high]).any():
                    band = {"color": colour, "alpha": 0.12, "linewidth": 0}
                    panel.fill_between(line.tokens, line.low, line.high, **band)
            panel.set_title(title, loc="left")
            panel.set_ylabel("tokens per step" if key in PANELS else "expected acceptance")
            clean(panel, "y")
        for panel in axes[1]:
            panel.set_xlim(left=0)
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.set_xlabel("tokens trained on")
        trees = axes.flat[: len(PANELS)]
        highest = max(panel.get_ylim()[1] for panel in trees)
        for panel in trees:
            panel.set_ylim(1, highest)
        axes.flat[len(PANELS)].set_ylim(bottom=0)
        lines = axes[0, 0].get_legend_handles_labels()
        of_bands = BAND_OF_SEEDS if any(len(one) > 1 for one in curves.values()) else BAND_OF_ONE
        figure.legend(*lines, loc="outside upper left", ncols=4, title=of_bands, alignment="left")
        drawn = io.BytesIO()
        figure.savefig(drawn, format=path.suffix.removeprefix("."), dpi=150)
        plt.close(figure)
    write_whole(path, drawn.getvalue())
