"""The fraction of the roofline that the kernel reaches, over the size of the tree."""

import io
from collections.abc import Sequence
from pathlib import Path

from treespec.experiments.benchmarks.gpu.goals import FRACTION, KernelRow
from treespec.experiments.report.figure_style import INK, MUTED, PAGE, by_powers, panels_beside
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
    points = [(r.heads, r.prefix, r.rows, r.fraction) for r in rows if r.fraction is not None]
    if not points:
        return None
    each_heads, each_prefix, each_count, fractions = zip(*points, strict=True)
    heads, prefixes, ticks = (sorted(set(each)) for each in (each_heads, each_prefix, each_count))
    width = 3.1 * len(heads) + 1.3
    with panels_beside(len(heads), width, 3.4, sharey=True) as (figure, panels):
        for axes, shown in zip(panels, heads, strict=True):
            for i, prefix in enumerate(prefixes):
                line = [point[2:] for point in points if point[:2] == (shown, prefix)]
                axes.plot(
                    *zip(*line, strict=True), marker="o",
                    color=SHADES[-len(prefixes) :][i], markersize=4.5, label=f"{prefix:,}",
                )  # fmt: skip
            axes.axhline(FRACTION, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
            by_powers(axes, ticks, "nodes T")
            axes.set_title(f"Hq/Hkv/D = {shown}", loc="left", fontsize=10.5, color=INK)
        panels[0].set_ylim(0, max(1.0, *fractions) * 1.03)
        panels[0].set_ylabel("fraction of the roofline")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, title="prefix", loc="outside right center", fontsize=8.5)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=160, facecolor=PAGE)
    return write_whole(path, picture.getvalue())
