"""Every tree that a run drafted, with what was accepted written on its nodes."""

from dataclasses import dataclass

from markupsafe import Markup

from treespec.experiments.records.loading import Method, RunRecords
from treespec.experiments.report.acceptance import Acceptances
from treespec.experiments.report.tree_drawing import acceptance_svg
from treespec.tree import TreeShape

__all__ = ["MOST_NODES", "DrawnTree", "drawn_trees"]

LAWS = {
    "deterministic": "the most probable children",
    "iid": "children drawn independently",
    "without_replacement": "children drawn without replacement",
}

MOST_NODES = 256
"""Of a tree that is drawn; beyond it a picture shows nothing, and the page gets heavy."""


@dataclass(frozen=True)
class DrawnTree:
    """The tree of a method.

    Args:
        method: that drafted it.
        shape: of every step; None if it grows.
        pictures: by sampling setting; none of trees that grow, or are too large.
        rules: how children are chosen and decided, by sampling setting.
    """

    method: Method
    shape: TreeShape | None
    pictures: dict[str, Markup]
    rules: dict[str, str]


def drawn_trees(run: RunRecords, counts: Acceptances) -> list[DrawnTree]:
    """Every tree that was drafted, drawn once for each sampling setting."""
    return [_drawn(run, counts, method) for method in run.methods if method.kind == "tree"]


def _drawn(run: RunRecords, counts: Acceptances, method: Method) -> DrawnTree:
    shape = None if method.parents is None else TreeShape(method.parents)
    pictures = {}
    if shape is not None and shape.size <= MOST_NODES:
        for sampling in run.samplings:
            counted = counts.get((sampling, method.name))
            svg = shape._repr_svg_() if counted is None else acceptance_svg(counted)
            pictures[sampling] = Markup(svg)
    samplings = dict.fromkeys([*method.rule, *run.samplings])
    return DrawnTree(method, shape, pictures, {s: _rule(method, s) for s in samplings})


def _rule(method: Method, sampling: str) -> str:
    law = method.law.get(sampling, "")
    return f"{LAWS.get(law, law or 'children')}, rule {method.rule.get(sampling, 'unknown')}"
