"""`treespec profile`: measure the times that searches need."""

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
from treespec.experiments.cli.help import app, examples


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
        str | None, typer.Option("--sizes", help="Tree sizes in nodes, such as 1,2,4,8,16.")
    ] = None,
    prefixes: Annotated[
        str | None, typer.Option("--prefixes", help="Tokens before the tree, such as 64,256.")
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Number of rounds; each measures everything once.")
    ] = 9,
    plugin: Plugins = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure how long the parts of a step take on this machine.

    Times verifying, drafting, accepting and committing, by tree size and number of tokens before the tree.

    Ctrl-C ends it early: the times measured so far are written, with exit code 130.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_new, write_new
        from treespec.experiments.measure.profile.profiling import (
            integers,
            print_profile,
            profile,
        )

        require_new(out)
        measured = profile(
            load(config, overrides, plugin),
            sizes=integers("--sizes", sizes),
            prefixes=integers("--prefixes", prefixes),
            repeats=repeats,
            console=progress(quiet),
        )
        path = write_new(out, measured.model.to_json())
        if not quiet:
            print_profile(measured.model, output())
        for note in measured.notes:
            complain(note)
        typer.echo(f"{path}: {measured.rounds} rounds, laws {', '.join(measured.model.laws)}")
        if measured.interrupted:
            raise typer.Exit(INTERRUPTED)
