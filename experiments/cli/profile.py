"""The command that measures times: `profile`."""

from pathlib import Path
from typing import Annotated

import typer

from treespec.experiments.cli.common import (
    INTERRUPTED,
    ConfigArgument,
    Debug,
    Overrides,
    Plugins,
    Quiet,
    complain,
    friendly,
    load,
    output,
    progress,
)
from treespec.experiments.cli.help import examples

__all__ = ["app"]

app = typer.Typer()


@app.command(
    "profile",
    rich_help_panel="Trees",
    epilog=examples(
        "treespec profile speed --out latency.json",
        "treespec profile smoke --out small.json --sizes 1,4,16 --prefixes 64",
    ),
)
def profile_command(
    config: ConfigArgument,
    out: Annotated[Path, typer.Option("--out", help="The file to write, such as latency.json.")],
    overrides: Overrides = None,
    sizes: Annotated[
        str | None, typer.Option("--sizes", help="Nodes of trees, such as 1,2,4,8,16.")
    ] = None,
    prefixes: Annotated[
        str | None, typer.Option("--prefixes", help="Tokens before the tree, such as 64,256.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Rounds; each measures everything once.")
    ] = 9,
    plugin: Plugins = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure what the parts of a step take on this machine.

    Verifying, drafting, accepting and committing, by size of the tree and tokens before it.

    Ctrl-C ends it early: what was measured until then is written, with exit code 130.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_new, write_new
        from treespec.experiments.search_then_run.profile.commands import (
            integers,
            print_profile,
            profile,
        )

        require_new(out)
        made = profile(
            load(config, overrides, plugin),
            sizes=integers("--sizes", sizes),
            prefixes=integers("--prefixes", prefixes),
            repeats=repeats,
            console=progress(quiet),
        )
        path = write_new(out, made.model.to_json())
        if not quiet:
            print_profile(made.model, output())
        for note in made.notes:
            complain(note)
        typer.echo(f"{path}: {made.rounds} rounds, laws {', '.join(made.model.laws)}")
        if made.interrupted:
            raise typer.Exit(INTERRUPTED)
