"""The command `treespec parts`: what configs can name."""

from typing import Any

import typer

from treespec.experiments.cli.common import AsJson, Debug, Plugins, friendly, output
from treespec.experiments.cli.help import examples
from treespec.experiments.cli.json import json_text

__all__ = ["app"]

app = typer.Typer()


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
        from treespec.experiments.config.parts import listed, print_parts
        from treespec.experiments.config.plugged import plug_in

        plug_in(plugin or ())
        found: dict[str, Any] = listed()
        if as_json:
            typer.echo(json_text(found))
        else:
            print_parts(found, output())
