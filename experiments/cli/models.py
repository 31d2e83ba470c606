"""`treespec models`: real models that can be fetched from a Python package index."""

from typing import Annotated

import typer

from treespec.experiments.cli.common import (
    AsJson,
    Debug,
    Quiet,
    echo,
    friendly,
    json_text,
    progress,
)
from treespec.experiments.cli.help import app, examples

_models = typer.Typer(no_args_is_help=True)
app.add_typer(
    _models,
    name="models",
    help="Fetch a real model by name, or list what there is.",
    rich_help_panel="Experiments",
    epilog=examples("treespec models get smollm2", "treespec models list"),
)


def complete_name(incomplete: str) -> list[str]:
    """Names of models that begin with this text, for shell completion."""
    from treespec.models.known_models import KNOWN

    return [name for name in KNOWN if name.startswith(incomplete)]


@_models.command("get", epilog=examples("treespec models get smollm2"))
def get_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="As `treespec models list` says.",
            autocompletion=complete_name,
        ),
    ],
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fetch a model with pip, convert it, and keep it in the user's cache.

    Nothing is fetched if it is there. Configs and --target then take its name.
    """
    with friendly(debug):
        from treespec.experiments.run.progress import Reporter
        from treespec.models.fetching import get

        with Reporter(progress(quiet)).task(f"getting {name}") as say:
            folder = get(name, say)
        if not quiet:
            echo(f"{name} is in {folder}")


@_models.command("list", epilog=examples("treespec models list", "treespec models list --json"))
def list_command(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the models that can be fetched, and where they are."""
    with friendly(debug):
        from treespec.models.known_models import KNOWN, folder_of

        rows = [
            {
                "name": name,
                "wheel": model.wheel,
                "megabytes": model.megabytes,
                "folder": folder if (folder := folder_of(name)).is_dir() else None,
            }
            for name, model in KNOWN.items()
        ]
        if as_json:
            echo(json_text({"models": rows}))
            return
        for row in rows:
            place = row["folder"] or f"not here: treespec models get {row['name']}"
            echo(f"{row['name']:12} {row['wheel']}, {row['megabytes']} MB; {place}")
