"""The section of the report that draws the trees, with what was accepted on each node."""

from collections.abc import Mapping
from html import escape

from treespec.experiments.report.acceptance import NodeAcceptance
from treespec.experiments.report.html import section
from treespec.experiments.report.measurements import samplings_of
from treespec.experiments.report.run import Method, Run
from treespec.experiments.report.tree_drawing import acceptance_svg
from treespec.tree import TreeShape

__all__ = ["tree_section"]

Counts = Mapping[tuple[str, str], NodeAcceptance]

LAWS = {
    "deterministic": "the most probable children",
    "iid": "children drawn independently",
    "without_replacement": "children drawn without replacement",
}

LARGEST = 256
"""Nodes of the largest tree that is drawn; beyond it a picture shows nothing, and the page gets heavy."""

NOTE = (
    "On each node: the share of all steps that accepted it, and below it how many steps these were. A line "
    "is the thicker, and a node the greener, the more often it was accepted. Point at a node for its 95 % "
    "interval over prompts and for its share of the steps that accepted its parent."
)


def tree_section(run: Run, counts: Counts) -> str:
    """Every tree that was drafted, drawn once for each sampling setting.

    Args:
        run: whose report it is.
        counts: as `count_all` gives them.
    """
    parts = [_tree(run, counts, m) for m in run.methods if m.kind == "tree"]
    if not parts:
        return ""
    return section(
        "Trees", f'<p class="muted">{escape(NOTE)}</p><div class="trees">{"".join(parts)}</div>'
    )


def _tree(run: Run, counts: Counts, method: Method) -> str:
    lossy = "" if method.lossless else " Lossy."
    name = f'<h3 class="{method.group}">{escape(method.name)}</h3>'
    if method.parents is None:
        facts = f"Grows by what the draft says: another tree each step. {_rules(method)}.{lossy}"
        return f"<div>{name}<p>{facts}</p></div>"
    shape = TreeShape(method.parents)
    facts = f"{shape.size - 1} draft tokens, depth {shape.depth}.{lossy}"
    if shape.size > LARGEST:
        return f"<div>{name}<p>{facts} Trees of more than {LARGEST} nodes are not drawn.</p></div>"
    pictures = []
    for sampling in samplings_of(run):
        found = counts.get((sampling, method.name))
        svg = shape._repr_svg_() if found is None else acceptance_svg(found)
        # wide trees scroll rather than shrink until nothing can be read
        pictures.append(
            f'<figure><div class="scroll">{svg}</div>'
            f"<figcaption><strong>{escape(sampling)}</strong>: {escape(_rule(method, sampling))}"
            "</figcaption></figure>"
        )
    return (
        f'<div>{name}<p class="muted">{facts}</p><div class="pair">{"".join(pictures)}</div></div>'
    )


def _rule(method: Method, sampling: str) -> str:
    law = method.law.get(sampling, "")
    return f"{LAWS.get(law, law or 'children')}, rule {method.rule.get(sampling, 'unknown')}"


def _rules(method: Method) -> str:
    return escape("; ".join(f"{s}: {_rule(method, s)}" for s in method.rule))
