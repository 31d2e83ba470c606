"""Tables in LaTeX, with the rules of the package booktabs."""

from treespec.experiments.report.table import Cell, Table

__all__ = ["escaped", "table_latex"]

_LETTERS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''",
    "–": "--", "—": "---", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "−": "$-$",
    "²": r"\textsuperscript{2}", "≤": r"$\le$", "≥": r"$\ge$", "…": r"\dots{}", "\u00a0": "~",
    "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip
"""What has a meaning in LaTeX, also after the end of a row, and what old engines do not know."""


def table_latex(table: Table) -> str:
    """A `tabular` to put into a table of one's own; the title stands above it as a comment.

    The best rows are bold, intervals small; groups of rows have a little space between them.
    """
    title = " ".join(table.full_title.split())
    lines = [f"% {title}"] if title else []
    lines += [
        r"% \usepackage{booktabs}",
        r"\begin{tabular}{" + "".join("l" if c.left else "r" for c in table.columns) + "}",
        r"\toprule",
        _row([escaped(" ".join((c.name or c.head).split())) for c in table.columns]),
        r"\midrule",
    ]
    for i, (item, cells) in enumerate(zip(table.items, table.rows, strict=True)):
        if table.opens(i):
            lines.append(r"\addlinespace")
        best = table.tone(item) == "best"
        lines.append(_row([_bold(_cell(cell)) if best else _cell(cell) for cell in cells]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    """A text in which no letter has a meaning in LaTeX; line ends become blanks.

    Example:
        >>> escaped("top_p 90 %")
        'top\\\\_p 90 \\\\%'
    """
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return "".join(_LETTERS.get(letter, letter) for letter in shown)


def _row(texts: list[str]) -> str:
    return " & ".join(texts) + r" \\"


def _cell(cell: Cell) -> str:
    small = [escaped(part) for part in (cell.detail, cell.below and f"({cell.below})") if part]
    text = escaped(cell.text)
    return " ".join([text, rf"{{\footnotesize {' '.join(small)}}}"]) if small else text


def _bold(text: str) -> str:
    return rf"\textbf{{{text}}}" if text else ""
