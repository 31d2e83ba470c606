"""Pictures of trees: lines of text for terminals, SVG for notebooks and reports."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

DRAFTED, ACCEPTED, BONUS = "#dbe4ee", "#7bd3a8", "#f6c66b"
"""Colours of nodes. All are light, because the text in nodes is dark on light and dark pages alike."""

_COLUMN, _ROW, _RADIUS = 46, 58, 15
_NOTE = 8
"""Height that a second line adds to a node."""


@dataclass(frozen=True)
class Look:
    """How a node is drawn.

    Args:
        label: text in the node.
        note: smaller text below the label.
        hint: tooltip of the node.
        fill: colour of the node; its text is dark.
        line: width of the line from the parent; lines of width 1 or less are faint.
        dashed: whether the outline and the line from the parent are dashed.
    """

    label: str
    note: str = ""
    hint: str = ""
    fill: str = DRAFTED
    line: float = 1.0
    dashed: bool = False


def draw_text(children: Sequence[Sequence[int]], labels: Sequence[object]) -> str:
    """The tree as text: one node per line, children below their parent, in index order."""
    lines = [str(labels[0])]
    stack = [(child, "") for child in reversed(children[0])]
    youngest = {siblings[-1] for siblings in children if siblings}
    while stack:
        node, indent = stack.pop()
        lines.append(f"{indent}{'└─ ' if node in youngest else '├─ '}{labels[node]}")
        indent += "   " if node in youngest else "│  "
        stack += [(child, indent) for child in reversed(children[node])]
    return "\n".join(lines)


def draw_svg(
    children: Sequence[Sequence[int]],
    labels: Sequence[object],
    highlight: Collection[int] = (),
) -> str:
    """The tree as a self-contained SVG, root on top, leaves side by side. It shrinks with the page."""
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
    """A drafted tree with the accepted path in colour and the bonus token as an extra node at its end.

    Levels are drawn from left to right, so that a path reads like text.

    `children`: the children of each node; node 0 is the root. `bonus`: the label of the bonus token's node;
    it comes last among the text elements.
    """
    with_bonus = [list(siblings) for siblings in children]
    with_bonus[path[-1]].append(len(with_bonus))
    with_bonus.append([])
    looks = _on_path(children, [str(label) for label in labels], path)
    looks.append(Look(str(bonus), fill=BONUS, line=3.0, dashed=True))
    return draw_looks(with_bonus, looks, across=True, letters=letters)


def draw_looks(
    children: Sequence[Sequence[int]],
    looks: Sequence[Look],
    *,
    across: bool = False,
    letters: int = 0,
) -> str:
    """The tree as a self-contained SVG at its natural size.

    Lines take the page's text colour (`currentColor`) and nodes are opaque with dark text, so that the
    picture is legible in light and dark mode."""
    half_widths = [_half_width(look, letters) for look in looks]
    half_height = float(_RADIUS + (_NOTE if any(look.note for look in looks) else 0))
    if across:
        step_x, step_y = 2 * max(half_widths) + 22.0, 2 * half_height + 8.0
        cells = [(level, column) for column, level in layout(children)]
    else:
        step_x = max(_COLUMN, 2 * max(half_widths) + 8.0)
        step_y = _ROW + 2.0 * (half_height - _RADIUS)
        cells = layout(children)
    points = [((x + 0.5) * step_x, (y + 0.5) * step_y) for x, y in cells]
    width = (max(x for x, _ in cells) + 1) * step_x
    height = (max(y for _, y in cells) + 1) * step_y
    lines = [
        _line(points[node], points[child], looks[child])
        for node, siblings in enumerate(children)
        for child in siblings
    ]
    boxes = [
        _box(point, look, half_width, half_height)
        for point, look, half_width in zip(points, looks, half_widths, strict=True)
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
    """HTML of a picture with a caption; the picture scrolls if it is wider than the page."""
    return (
        f'<div style="overflow-x:auto">{svg}</div>'
        f'<div style="font-size:.9em;opacity:.75;margin:.3em 0">{escape(caption)}</div>'
    )


def columns(text: str) -> int:
    """Width of a text in a monospaced font, in characters: East Asian wide characters count twice."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def layout(children: Sequence[Sequence[int]]) -> list[tuple[float, int]]:
    """Column and level of each node: each leaf takes the next column, parents are centred over children.

    `children`: the children of each node of a tree; node 0 is the root.
    """
    levels, order, stack = [0] * len(children), [], [0]
    while stack:
        node = stack.pop()
        order.append(node)
        for child in reversed(children[node]):
            levels[child] = levels[node] + 1
            stack.append(child)
    column, leaves = [0.0] * len(children), 0
    for node in order:
        if not children[node]:
            column[node], leaves = float(leaves), leaves + 1
    for node in reversed(order):  # every node after its children
        if children[node]:
            column[node] = (column[children[node][0]] + column[children[node][-1]]) / 2
    return list(zip(column, levels, strict=True))


def _on_path(
    children: Sequence[Sequence[int]], labels: Sequence[str], path: Collection[int]
) -> list[Look]:
    """Looks of all nodes, with the nodes of a path and the lines between them highlighted."""
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
    label_width = 4.2 * max(columns(look.label), letters) + 5 if look.label or letters else 0.0
    return max(float(_RADIUS), label_width, 3.2 * len(look.note) + 5)


def _line(start: tuple[float, float], end: tuple[float, float], look: Look) -> str:
    (x1, y1), (x2, y2) = start, end
    width = f' stroke-width="{look.line:g}"' if look.line > 1 else ' stroke-opacity=".5"'
    dashes = ' stroke-dasharray="4 3"' if look.dashed else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"{width}{dashes}/>'


def _box(point: tuple[float, float], look: Look, half_width: float, half_height: float) -> str:
    x, y = point
    dashes = ' stroke-dasharray="4 3"' if look.dashed else ""
    box = (
        f'<rect x="{x - half_width:g}" y="{y - half_height:g}" '
        f'width="{2 * half_width:g}" height="{2 * half_height:g}" '
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
