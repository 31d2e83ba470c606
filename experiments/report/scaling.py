"""Growth of tokens per step with the number of verified nodes, by family of trees, as data and as a figure.

Sequoia (arXiv:2402.12374, figure 1) claims that the tokens per step of its trees keep growing with the
budget, roughly as its logarithm, while one chain and k independent chains saturate: a chain because each
further node is reached less often by a constant factor, k chains because their first tokens soon repeat
those of other chains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treespec.experiments.records.loading import Method
from treespec.experiments.report.figure_axes import reach, stacked
from treespec.experiments.report.figure_style import GROUP_COLOURS, clean
from treespec.experiments.report.measurements import Measurements
from treespec.search.intervals import Interval
from treespec.tree import TreeShape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_SIZES = 4
"""Fewest sizes of a family for a curve."""

COLOURS = {
    "trees": GROUP_COLOURS["tree"],
    "independent chains": "#cc79a7",
    "one chain": GROUP_COLOURS["chain"],
}
MARKERS = {"trees": "^", "independent chains": "D", "one chain": "o"}


@dataclass(frozen=True)
class Point:
    """A tree on the curve of its family: nodes, root included, and kept tokens per step."""

    nodes: int
    tokens: Interval


def scaling(data: Measurements) -> dict[str, list[Point]]:
    """Tokens per step by number of nodes, for families of static trees with at least `LEAST_SIZES` sizes.

    Families: `one chain`, `independent chains` (sharing only the root), and `trees` (all others). Among
    trees of a family with the same number of nodes, the one that keeps the most tokens counts. Trees
    searched for another setting are left out.
    """
    if not data.prompts:
        return {}
    families: dict[str, dict[int, Point]] = {}
    for method in data.methods:
        if method.kind != "tree" or method.parents is None or not meant_for(method, data.sampling):
            continue
        point = Point(
            len(method.parents),
            data.totals.ratio([(method.name, "new_tokens")], [(method.name, "steps")]),
        )
        family = families.setdefault(_family(TreeShape(method.parents)), {})
        rivals = (family.get(point.nodes, point), point)
        family[point.nodes] = max(rivals, key=lambda rival: rival.tokens.estimate)
    return {
        name: [points[nodes] for nodes in sorted(points)]
        for name in COLOURS
        if len(points := families.get(name, {})) >= LEAST_SIZES
    }


def scaling_figure(scalings: Mapping[str, Mapping[str, Sequence[Point]]]) -> "Figure | None":
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
                color=COLOURS[name],
                marker=MARKERS[name],
                markersize=5.5,
                linewidth=1.4,
                elinewidth=1.0,
                label=name,
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda nodes, _: f"{nodes:g}")
        axes.set_ylabel("kept tokens per step")
        axes.set_title(sampling, loc="left", fontsize=10.5)
        axes.set_ylim(bottom=1)
        clean(axes, "both")
    panels[0].legend(loc="upper left")
    panels[-1].set_xlabel("verified nodes, the root included")
    return figure


def _family(shape: TreeShape) -> str:
    if shape.is_chain:
        return "one chain"
    branches_at_root_only = all(len(children) <= 1 for children in shape.children[1:])
    equal_paths = len({shape.depths[leaf] for leaf in shape.leaves}) == 1
    return "independent chains" if branches_at_root_only and equal_paths else "trees"


def meant_for(method: Method, sampling: str) -> bool:
    """Whether the method was not searched or calibrated for another setting, by its name."""
    return " for T=" not in method.name or method.name.endswith(f" for {sampling}")
