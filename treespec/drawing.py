"""Pictures of trees: lines of text for terminals, SVG for notebooks and reports."""

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from html import escape
from typing import Any
from unicodedata import east_asian_width

from treespec.door import instance, integer, sequence
from treespec.errors import InvalidTree

__all__ = [
    "ACCEPTED",
    "BONUS",
    "DRAFTED",
    "Look",
    "captioned",
    "columns",
    "draw_looks",
    "draw_step",
    "draw_svg",
    "draw_text",
]

DRAFTED, ACCEPTED, BONUS = "#dbe4ee", "#7bd3a8", "#f6c66b"
"""Colours of nodes. All are light: text on them is dark, on light and dark pages alike."""

_COLUMN, _ROW, _RADIUS = 46, 58, 15
_NOTE = 8
"""What a second line adds to a node's height."""


@dataclass(frozen=True)
class Look:
    """How a node is drawn.

    Args:
        label: written in the node.
        note: written below it, smaller.
        hint: shown when one points at the node.
        fill: colour of the node; its text is dark.
        line: width of the line from the parent; up to 1 it is faint.
        dashed: the line from the parent, and the outline.
    """

    label: str
    note: str = ""
    hint: str = ""
    fill: str = DRAFTED
    line: float = 1.0
    dashed: bool = False


def draw_text(children: Sequence[Sequence[int]], labels: Sequence[object]) -> str:
    """One node a line, children below their parent, in index order.

    Args:
        children: the children of each node; node 0 is the root.
        labels: what to write for each node.
    """
    _require_tree(children, labels, "labels")
    lines = [str(labels[0])]
    stack = [(child, "") for child in reversed(children[0])]
    last = {siblings[-1] for siblings in children if siblings}
    while stack:
        node, indent = stack.pop()
        lines.append(f"{indent}{'└─ ' if node in last else '├─ '}{labels[node]}")
        indent += "   " if node in last else "│  "
        stack += [(child, indent) for child in reversed(children[node])]
    return "\n".join(lines)


def draw_svg(
    children: Sequence[Sequence[int]],
    labels: Sequence[object],
    highlight: Collection[int] = (),
) -> str:
    """The tree as a self-contained SVG, root on top, leaves side by side. It shrinks with the page.

    Args:
        children: the children of each node; node 0 is the root.
        labels: what to write in each node.
        highlight: nodes to fill (an accepted path, say).
    """
    _require_tree(children, labels, "labels")
    looks = _on_path(children, [str(label) for label in labels], highlight)
    svg = draw_looks(children, looks)
    return svg.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)


def draw_step(
    children: Sequence[Sequence[int]],
    labels: Sequence[object],
    path: Sequence[int],
    bonus: object,
    *,
    letters: int = 0,
) -> str:
    """A drafted tree, the accepted path in colour, and the bonus token as one node more at its end.

    Levels stand side by side, so that a path reads as text does.

    Args:
        children: the children of each node; node 0 is the root.
        labels: what to write in each node.
        path: accepted nodes, from the root.
        bonus: what to write in the node of the bonus token; it comes last among the text elements.
        letters: least width of every node.
    """
    _require_tree(children, labels, "labels")
    path = _nodes(path, len(children))
    if not path:
        raise InvalidTree("path = [] is empty, but starts at node 0")
    grown = [list(siblings) for siblings in children]
    grown[path[-1]].append(len(grown))
    grown.append([])
    looks = _on_path(children, [str(label) for label in labels], path)
    looks.append(Look(str(bonus), fill=BONUS, line=3.0, dashed=True))
    return draw_looks(grown, looks, across=True, letters=letters)


def draw_looks(
    children: Sequence[Sequence[int]],
    looks: Sequence[Look],
    *,
    across: bool = False,
    letters: int = 0,
) -> str:
    """The tree as a self-contained SVG in its natural size.

    Lines follow the page (`currentColor`) and nodes are opaque with dark text, so that the picture is
    legible in light and dark mode.

    Args:
        children: the children of each node; node 0 is the root.
        looks: of the nodes.
        across: levels go to the right instead of down.
        letters: least width of every node.
    """
    _require_tree(children, looks, "looks")
    for node, look in enumerate(looks):
        instance(f"looks[{node}]", look, Look, "a Look")
    half = [_half_width(look, letters) for look in looks]
    tall = float(_RADIUS + (_NOTE if any(look.note for look in looks) else 0))
    if across:
        step_x, step_y = 2 * max(half) + 22.0, 2 * tall + 8.0
        place = [(y, x) for x, y in _layout(children)]
    else:
        step_x, step_y = max(_COLUMN, 2 * max(half) + 8.0), _ROW + 2.0 * (tall - _RADIUS)
        place = [(x, y) for x, y in _layout(children)]
    points = [((x + 0.5) * step_x, (y + 0.5) * step_y) for x, y in place]
    width = (max(x for x, _ in place) + 1) * step_x
    height = (max(y for _, y in place) + 1) * step_y
    lines = [
        _line(points[node], points[child], looks[child])
        for node, siblings in enumerate(children)
        for child in siblings
    ]
    boxes = [
        _box(point, look, reach, tall)
        for point, look, reach in zip(points, looks, half, strict=True)
    ]
    texts = [_text(point, look) for point, look in zip(points, looks, strict=True)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" '
        f'font-family="ui-monospace,monospace" font-size="12" role="img" '
        f'aria-label="token tree of {len(children)} nodes">'
        f'<g stroke="currentColor">{"".join(lines)}</g><g stroke="#334">{"".join(boxes)}</g>'
        f'<g text-anchor="middle" fill="#112" pointer-events="none">{"".join(texts)}</g></svg>'
    )


def captioned(svg: str, caption: str) -> str:
    """HTML of a picture that scrolls where it is wider than the page, and what it shows."""
    instance("caption", caption, str, "text")
    instance("svg", svg, str, "text")
    return (
        f'<div style="overflow-x:auto">{svg}</div>'
        f'<div style="font-size:.9em;opacity:.75;margin:.3em 0">{escape(caption)}</div>'
    )


def columns(text: str) -> int:
    """How many letters wide a text is in a monospaced font: East Asian wide characters count twice."""
    instance("text", text, str, "text")
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _require_tree(children: Any, labels: Any, what: str) -> None:
    """Refuse what is not a tree with something to write for each node.

    Raises:
        InvalidTree: naming the node.
    """
    rows = sequence("children", children, "the children of each node", InvalidTree)
    seen = [0] * len(rows)
    for node, row in enumerate(rows):
        for child in sequence(f"children[{node}]", row, "nodes", InvalidTree):
            place = integer(f"a child of node {node}", child, 1, InvalidTree)
            if place >= len(rows) or seen[place]:
                raise InvalidTree(
                    f"children[{node}] names node {place}, which is not there or has a parent"
                )
            seen[place] = 1
    given = labels if isinstance(labels, str) else sequence(what, labels, what, InvalidTree)
    if not rows or len(given) != len(rows):
        raise InvalidTree(
            f"{what} and children must have one entry for each node, and there must be one"
        )


def _nodes(path: Any, size: int) -> tuple[int, ...]:
    """The nodes of a path, or of any collection, as plain integers."""
    given = tuple(path) if isinstance(path, Set) else sequence("path", path, "nodes", InvalidTree)
    nodes = tuple(integer("a node of the path", node, 0, InvalidTree) for node in given)
    if max(nodes, default=0) >= size:
        raise InvalidTree(f"node {max(nodes)} is on the path, but the nodes are 0..{size - 1}")
    return nodes


def _on_path(
    children: Sequence[Sequence[int]], labels: Sequence[str], path: Collection[int]
) -> list[Look]:
    """Looks of nodes of which those of a path stand out, with the lines between them."""
    path = frozenset(_nodes(path, len(children)))
    lower = {child for node in path for child in children[node] if child in path}
    return [
        Look(
            label,
            fill=ACCEPTED if node in path else DRAFTED,
            line=3.0 if node in lower else 1.0,
        )
        for node, label in enumerate(labels)
    ]


def _half_width(look: Look, letters: int) -> float:
    wide = 4.2 * max(columns(look.label), letters) + 5
    return max(float(_RADIUS), wide if look.label or letters else 0.0, 3.2 * len(look.note) + 5)


def _line(start: tuple[float, float], end: tuple[float, float], look: Look) -> str:
    (x1, y1), (x2, y2) = start, end
    width = f' stroke-width="{look.line:g}"' if look.line > 1 else ' stroke-opacity=".5"'
    dashes = ' stroke-dasharray="4 3"' if look.dashed else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"{width}{dashes}/>'


def _box(point: tuple[float, float], look: Look, half: float, tall: float) -> str:
    x, y = point
    dashes = ' stroke-dasharray="4 3"' if look.dashed else ""
    box = (
        f'<rect x="{x - half:g}" y="{y - tall:g}" width="{2 * half:g}" height="{2 * tall:g}" '
        f'rx="{_RADIUS}" fill="{look.fill}"{dashes}'
    )
    return f"{box}><title>{escape(look.hint)}</title></rect>" if look.hint else f"{box}/>"


def _text(point: tuple[float, float], look: Look) -> str:
    x, y = point
    if not look.note:
        return f'<text x="{x:g}" y="{y + 4:g}">{escape(look.label)}</text>'
    return (
        f'<text x="{x:g}" y="{y - 2:g}">{escape(look.label)}</text>'
        f'<text x="{x:g}" y="{y + 13:g}" font-size="10">{escape(look.note)}</text>'
    )


def _layout(children: Sequence[Sequence[int]]) -> list[tuple[float, int]]:
    """Column and level of each node: leaves take the next column, parents stand over their children."""
    levels, order, stack = [0] * len(children), [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        for child in reversed(children[node]):
            levels[child] = levels[node] + 1
            stack.append(child)
    across, taken = [0.0] * len(children), 0
    for node in order:
        if not children[node]:
            across[node], taken = float(taken), taken + 1
    for node in reversed(order):  # every node after its children
        if children[node]:
            across[node] = (across[children[node][0]] + across[children[node][-1]]) / 2
    return list(zip(across, levels, strict=True))
