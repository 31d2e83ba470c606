"""Drawings of the trees of a run, with the acceptance of each node."""

from typing import Any

from markupsafe import Markup

from treespec import plugins
from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.report.acceptance import Acceptances, NodeAcceptance
from treespec.tree import TreeShape
from treespec.tree.pictures import Look, draw_looks

LAWS = {
    "deterministic": "the most probable children",
    "iid": "children drawn independently",
    "without_replacement": "children drawn without replacement",
}

MOST_NODES = 256


RARE_COLOUR, OFTEN_COLOUR = (0xE9, 0xEE, 0xF4), (0x5F, 0xCB, 0x9A)
"""Colours of nodes that are never or always accepted; both are light enough for dark text."""

THICKEST_LINE = 9.0


def drawn_trees(run: RunRecords, counts: Acceptances) -> list[dict[str, Any]]:
    return [_drawn(run, counts, method) for method in run.methods if method.kind == "tree"]


def _drawn(run: RunRecords, counts: Acceptances, method: Method) -> dict[str, Any]:
    shape = None if method.parents is None else TreeShape(method.parents)
    pictures = {}
    if shape is not None and shape.size <= MOST_NODES:
        for sampling in run.samplings:
            counted = counts.get((sampling, method.name))
            svg = shape._repr_svg_() if counted is None else acceptance_svg(counted)
            pictures[sampling] = Markup(svg)
    samplings = dict.fromkeys([*method.rule, *run.samplings])
    rules = {s: _rule(method, s) for s in samplings}
    return {
        "method": method, "shape": shape, "pictures": pictures, "rules": rules,
        "varies": _varies(method),
    }  # fmt: skip


def _varies(method: Method) -> str:
    """Why the tree of a method differs from step to step."""
    kind = (method.growth or {}).get("kind", "growth")
    if kind == "budget":
        return f"Whatever {method.source} finds, within its budget"
    part = plugins.parts("growth").get(kind)
    if part is None or part.plugged:  # a plug-in of the run need not be loaded
        return f"Grown by {kind}"
    return "Grows with the probabilities of the draft"


def _rule(method: Method, sampling: str) -> str:
    law = method.law.get(sampling, "")
    return f"{LAWS.get(law, law or 'children')}, rule {method.rule.get(sampling, 'unknown')}"


def acceptance_svg(nodes: NodeAcceptance) -> str:
    """Draw a tree with the share of steps that accepted each node and, below it, their number.

    Colour and line width increase with the share. Hovering over a node shows its interval and the share
    among the steps that accepted its parent.
    """
    looks = [Look(f"{nodes.total}", note="steps", hint=f"root: {nodes.total} steps")]
    looks += [_look(nodes, node) for node in range(1, nodes.shape.size)]
    return draw_looks(nodes.shape.children, looks)


def _look(nodes: NodeAcceptance, node: int) -> Look:
    shape, count, share = nodes.shape, nodes.counts[node], nodes.shares[node]
    above, estimate = nodes.counts[shape.parents[node]], share.estimate
    hint = (
        f"node {node}, depth {shape.depths[node]}, child {shape.ranks[node] + 1} of its parent: accepted "
        f"in {count} of {nodes.total} steps, {100 * estimate:.1f} %"
    )
    if share.has_width:
        hint += f" (95 % interval {share.scaled(100).bounds(1, between=' to ')})"
    if above:
        hint += f"; of the {above} that accepted its parent, {count / above:.0%}"
    mixed = (round(a + estimate * (b - a)) for a, b in zip(RARE_COLOUR, OFTEN_COLOUR, strict=True))
    return Look(
        label="<1 %" if 0 < estimate < 0.005 else f"{100 * estimate:.0f} %",
        note=str(count),
        hint=hint,
        fill=f"#{bytes(mixed).hex()}",
        line=1 + (THICKEST_LINE - 1) * estimate,
    )
