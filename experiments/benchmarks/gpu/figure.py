"""The fraction of the roofline that the kernel reaches, over the size of the tree."""

import io
from collections.abc import Sequence
from pathlib import Path

from treespec.experiments.benchmarks.gpu.goals import FRACTION, KernelRow
from treespec.experiments.report.figure_style import INK, MUTED, PAGE, clean, drawing
from treespec.search.whole_file import write_whole

__all__ = ["draw"]

SHADES = ("#c6dbef", "#93c4de", "#5a9fcd", "#2b7bba", "#0b559f", "#08306b")
"""From short prefixes to long ones."""


def draw(rows: Sequence[KernelRow], path: Path) -> Path | None:
    """Write the figure: a panel for each choice of heads, a line for each prefix.

    Args:
        rows: of the table.
        path: of the PNG.

    Returns:
        The path, or None if there is nothing to draw.
    """
    from matplotlib.figure import Figure

    drawn = [row for row in rows if row.fraction is not None]
    if not drawn:
        return None
    heads = list(dict.fromkeys(row.heads for row in drawn))
    prefixes = sorted({row.prefix for row in drawn})
    with drawing():
        figure = Figure(figsize=(3.1 * len(heads) + 1.3, 3.4))
        panels = figure.subplots(1, len(heads), sharey=True, squeeze=False)[0]
        for axes, own in zip(panels, heads, strict=True):
            for i, prefix in enumerate(prefixes):
                line = [r for r in drawn if r.heads == own and r.prefix == prefix]
                axes.plot(
                    [row.rows for row in line], [row.fraction for row in line], marker="o",
                    color=SHADES[-len(prefixes) :][i], markersize=4.5, label=f"{prefix:,}",
                )  # fmt: skip
            axes.axhline(FRACTION, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
            axes.set_xscale("log", base=2)
            ticks = sorted({row.rows for row in drawn})
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.minorticks_off()
            axes.set_title(f"Hq/Hkv/D = {own}", loc="left", fontsize=10.5, color=INK)
            axes.set_xlabel("nodes T")
            clean(axes, "y")
        panels[0].set_ylim(0, max(1.0, *(row.fraction or 0 for row in drawn)) * 1.03)
        panels[0].set_ylabel("fraction of the roofline")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, title="prefix", loc="outside right center", fontsize=8.5)
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=160, facecolor=PAGE)
    return write_whole(path, picture.getvalue())
