"""The curves of a training as a figure: tokens per step against the tokens that a draft was trained on."""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    STAGE_COLOURS,
    WIDTH,
    clean,
    drawing,
)
from treespec.files import write_whole

__all__ = ["PANELS", "save_curves"]

COLOURS = [
    *(GROUP_COLOURS[group] for group in ("chain", "assisted", "tree")),
    *(STAGE_COLOURS[stage] for stage in ("accept", "draft", "verify", "commit")),
]
MARKERS = "o^sDvPX"

PANELS = {
    "tokens_per_step_chain_4": "chain of 4",
    "tokens_per_step_static_16": "static tree of 16 nodes",
    "tokens_per_step_best_first_16": "best-first, 16 nodes",
    "tokens_per_step_best_first_64": "best-first, 64 nodes",
}


def save_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw one panel for each tree, with a line for each draft."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter

    with drawing(1.4 * WIDTH):
        figure, axes = plt.subplots(
            2, 2, sharex=True, sharey=True, figsize=(1.4 * WIDTH, 1.1 * WIDTH)
        )
        for panel, (key, title) in zip(axes.flat, PANELS.items(), strict=True):
            for (name, curve), colour, marker in zip(
                curves.items(), cycle(COLOURS), cycle(MARKERS), strict=False
            ):
                tokens = [row["tokens"] for row in curve]
                values = [row[key] for row in curve]
                panel.plot(tokens, values, color=colour, marker=marker, label=name)
                bounds = ([row[f"{key}_{end}"] for row in curve] for end in ("low", "high"))
                low, high = bounds
                if None not in (*low, *high):
                    panel.fill_between(tokens, low, high, color=colour, alpha=0.12, linewidth=0)
            panel.set_title(title, loc="left")
            clean(panel, "y")
        for panel in axes[1]:
            panel.set_xlim(left=0)
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.set_xlabel("tokens trained on")
        axes[0, 0].set_ylim(bottom=1)
        for panel in axes[:, 0]:
            panel.set_ylabel("tokens per step")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=4)
        drawn = io.BytesIO()
        figure.savefig(drawn, format=path.suffix.removeprefix("."), dpi=150)
        plt.close(figure)
    write_whole(path, drawn.getvalue())
