"""Trees with what was accepted written on their nodes, as SVG."""

from treespec.drawing import Look, draw_looks
from treespec.experiments.report.acceptance import NodeAcceptance
from treespec.experiments.report.statistics import Interval

__all__ = ["acceptance_svg"]

RARE, OFTEN = (0xE9, 0xEE, 0xF4), (0x5F, 0xCB, 0x9A)
"""Colours of nodes that are never and always accepted; both are light enough for dark text."""

THICKEST = 9.0
"""Width of a line whose child is always accepted."""


def acceptance_svg(nodes: NodeAcceptance) -> str:
    """The tree; on each node the share of steps that accepted it, and below it how many these were.

    Colour and line grow with the share. Pointing at a node shows its interval, and the share of the steps
    that had accepted its parent.
    """
    looks = [Look(f"{nodes.total}", note="steps", hint=f"root: {nodes.total} steps")]
    looks += [_look(nodes, node) for node in range(1, nodes.shape.size)]
    return draw_looks(nodes.shape.children, looks)


def _look(nodes: NodeAcceptance, node: int) -> Look:
    share, count = nodes.shares[node], nodes.counts[node]
    return Look(
        label=_percent(share.estimate),
        note=str(count),
        hint=_hint(nodes, node, share),
        fill=_blend(share.estimate),
        line=1 + (THICKEST - 1) * share.estimate,
    )


def _hint(nodes: NodeAcceptance, node: int, share: Interval) -> str:
    shape, above = nodes.shape, nodes.counts[nodes.shape.parents[node]]
    text = (
        f"node {node}, depth {shape.depths[node]}, child {shape.ranks[node] + 1} of its parent: accepted "
        f"in {nodes.counts[node]} of {nodes.total} steps, {100 * share.estimate:.1f} %"
    )
    if share.bounded and not share.exact:
        text += f" (95 % interval {100 * share.low:.1f} to {100 * share.high:.1f})"
    if above:
        text += f"; of the {above} that accepted its parent, {nodes.counts[node] / above:.0%}"
    return text


def _percent(share: float) -> str:
    """Whole percents, but what is rare does not look like never."""
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _blend(share: float) -> str:
    mixed = (round(a + share * (b - a)) for a, b in zip(RARE, OFTEN, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
