"""HTML that the sections of a report are made of."""

from collections.abc import Sequence
from html import escape

from treespec.experiments.report.statistics import Interval
from treespec.experiments.report.summary import MethodSummary

__all__ = ["interval_html", "name_html", "section", "table"]


def section(title: str, body: str) -> str:
    """A section with its heading."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    text: Sequence[int] = (),
    head: bool = True,
) -> str:
    """A table of cells that are HTML already; the columns `text` are set flush left.

    Without a head it is a list of facts, whose cells may break into lines.
    """

    def line(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="left">{v}</{tag}>' if i in text else f"<{tag}>{v}</{tag}>"
            for i, v in enumerate(values)
        )

    kind = ""
    if not head:
        kind = ' class="facts"'
    elif heads[0] == "method":  # the names stay when a narrow page scrolls
        kind = ' class="named"'
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = f"<thead><tr>{line('th', [escape(h) for h in heads])}</tr></thead>" if head else ""
    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table{kind}>{title}{top}<tbody>{body}</tbody></table></div>'


def name_html(row: MethodSummary) -> str:
    """The name of a method in the colour of its group."""
    return f'<span class="{row.method.group}">{escape(row.method.name)}</span>'


def interval_html(value: Interval | None) -> str:
    """An estimate, and its interval in small letters."""
    if value is None:
        return "–"
    if not value.bounded or value.exact:
        return f"{value.estimate:.2f}"
    return f"{value.estimate:.2f} <small>{value.low:.2f}–{value.high:.2f}</small>"
