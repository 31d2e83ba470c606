"""Tables in Markdown."""

from treespec.experiments.report.table import Table

__all__ = ["markdown"]


def markdown(table: Table) -> str:
    """The table under its title; the best rows have their names in bold."""
    lines = [
        [column.name or column.head for column in table.columns],
        ["---" if column.left else "---:" for column in table.columns],
    ]
    for item, cells in zip(table.items, table.rows, strict=True):
        name, *values = (_escape(str(cell)) for cell in cells)
        lines.append([f"**{name}**" if table.tone(item) == "best" else name, *values])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.full_title}**\n\n{text}" if table.full_title else text


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")
