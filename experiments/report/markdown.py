"""Tables and findings in Markdown."""

from dataclasses import replace

from treespec.experiments.report.table import Finding, Table

__all__ = ["finding_markdown", "markdown"]


def markdown(table: Table) -> str:
    lines = [
        [column.name or column.head for column in table.columns],
        ["---" if column.left else "---:" for column in table.columns],
    ]
    for item, cells in zip(table.items, table.rows, strict=True):
        name, *values = (str(cell).replace("|", "\\|").replace("*", "\\*") for cell in cells)
        lines.append([f"**{name}**" if table.tone(item) == "best" else name, *values])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{table.full_title}**\n\n{text}" if table.full_title else text


def finding_markdown(finding: Finding) -> str:
    """Render a section: its title, its tables, and a list of conclusions, remarks and notes.

    A table with the same title as the section is rendered without a title.
    """
    tables = (
        replace(t, subject="") if t.full_title == finding.title else t for t in finding.tables
    )
    conclusions = [table.said for table in finding.tables if table.said]
    notes = "\n".join(f"- {text}" for text in (*conclusions, *finding.remarks, *finding.notes))
    return "\n\n".join([f"## {finding.title}", *map(markdown, tables), notes]).rstrip()
