"""Pictures of trees: lines of text for terminals, SVG for notebooks and reports."""

from collections.abc import Collection, Sequence
from html import escape

__all__ = ["draw_svg", "draw_text"]

_COLUMN, _ROW, _RADIUS = 46, 58, 15


def draw_text(children: Sequence[Sequence[int]], labels: Sequence[object]) -> str:
    """One node a line, children below their parent, in index order.

    Args:
        children: the children of each node; node 0 is the root.
        labels: what to write for each node.
    """
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
    """The tree as a self-contained SVG, root on top, leaves side by side.

    Lines follow the page (`currentColor`) and nodes are opaque with dark text, so that the picture is
    legible in light and dark mode.

    Args:
        children: the children of each node; node 0 is the root.
        labels: what to write in each node.
        highlight: nodes to fill (an accepted path, say).
    """
    place = _layout(children)
    width = (max(x for x, _ in place) + 1) * _COLUMN
    height = (max(y for _, y in place) + 1) * _ROW
    points = [(x * _COLUMN + _COLUMN / 2, y * _ROW + _ROW / 2) for x, y in place]
    edges, nodes = [], []
    for node, (x, y) in enumerate(points):
        for child in children[node]:
            cx, cy = points[child]
            on_path = node in highlight and child in highlight
            edges.append(
                f'<line x1="{x:g}" y1="{y:g}" x2="{cx:g}" y2="{cy:g}" stroke="currentColor" '
                f'stroke-width="{3 if on_path else 1}" stroke-opacity="{1 if on_path else 0.5}"/>'
            )
        text = escape(str(labels[node]))
        filled = node in highlight
        half = max(_RADIUS, 4.2 * len(str(labels[node])) + 5)
        nodes.append(
            f'<rect x="{x - half:g}" y="{y - _RADIUS}" width="{2 * half:g}" height="{2 * _RADIUS}" '
            f'rx="{_RADIUS}" fill="{"#7bd3a8" if filled else "#dbe4ee"}" stroke="#334"/>'
            f'<text x="{x:g}" y="{y + 4:g}" text-anchor="middle" fill="#112">{text}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" style="max-width:100%;height:auto" '
        f'font-family="ui-monospace,monospace" font-size="12" role="img" '
        f'aria-label="token tree of {len(children)} nodes">{"".join(edges)}{"".join(nodes)}</svg>'
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
    columns, taken = [0.0] * len(children), 0
    for node in order:
        if not children[node]:
            columns[node], taken = float(taken), taken + 1
    for node in reversed(order):  # every node after its children
        if children[node]:
            columns[node] = (columns[children[node][0]] + columns[children[node][-1]]) / 2
    return list(zip(columns, levels, strict=True))
