"""The command `treespec parts`: what configs can name."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from treespec.experiments.cli.common import AsJson, Debug, Plugins, friendly, output
from treespec.experiments.cli.help import examples
from treespec.experiments.cli.json import json_text

__all__ = ["app"]

app = typer.Typer()

TITLES = {
    "rules": "acceptance rules (rule: NAME)",
    "laws": "laws: how children are chosen (law: NAME)",
    "shapes": "shapes (shape: {kind: NAME, ...})",
    "growths": "growths: trees that grow by the draft (shape: {kind: NAME, ...})",
    "sources": "draft sources (draft: {source: NAME, ...})",
    "metrics": "metrics, recorded for each prompt",
}


@app.command(
    "parts",
    rich_help_panel="Checks",
    epilog=examples("treespec parts", "treespec parts --plugin mine.py", "treespec parts --json"),
)
def parts_command(plugin: Plugins = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List what configs can name: rules, laws, shapes, growths, draft sources and metrics.

    Those of plug-ins too: of the files given, and of installed packages.
    """
    with friendly(debug):
        from treespec.experiments.config.parts import listed
        from treespec.experiments.config.plugged import plug_in

        plug_in(plugin or ())
        found: dict[str, Any] = listed()
        if as_json:
            typer.echo(json_text(found))
        else:
            for kind, rows in found.items():
                _print(TITLES[kind], rows)


def _print(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table, in which only parts of plug-ins say where they are from."""
    from treespec.experiments.report.table import Column, Table, keyed
    from treespec.experiments.report.terminal import print_table
    from treespec.plugins import OURS

    def about(row: Mapping[str, Any]) -> str:
        settings = ", ".join(row.get("settings") or ())
        return row["about"] + (f" [{settings}]" if settings else "")

    def origin(row: Mapping[str, Any]) -> str:
        return "" if row["origin"] == OURS else row["origin"]

    columns = [keyed("name", "name", left=True), Column("what it is", about, left=True)]
    if any(map(origin, rows)):
        columns.append(Column("from", origin, left=True))
    if rows:
        print_table(Table("", columns, rows, title=title), output())
