"""`treespec doctor`: report what this machine can do, and test it."""

from contextlib import suppress
from typing import Annotated

import typer

from treespec.experiments.cli.common import FAILED, AsJson, output, progress
from treespec.experiments.cli.help import app, examples
from treespec.experiments.cli.json import json_text


@app.command(
    "doctor",
    rich_help_panel="Checks",
    epilog=examples(
        "treespec doctor",
        "treespec doctor --quick",
        "treespec doctor --json > machine.json",
    ),
)
def doctor_command(
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip the self-test, except for loading the pair.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check what this machine can do, in half a minute.

    Reports on Python, torch, GPUs, kernels, compilers and SLURM. Then compares a text with `generate`,
    measures how small a difference between two methods shows here, compares all implementations of tree
    attention, and measures the cost of verifying 16 nodes.

    Exit code 0: all tests passed. 1: a test failed.
    """
    from treespec.experiments.doctor import examine, print_checkup
    from treespec.experiments.run.progress import Reporter

    with suppress(ImportError):  # the checks report a missing package
        from treespec.experiments.run.models import calm_transformers

        calm_transformers()
    with Reporter(progress(quiet=False)).task("checking this machine") as say:
        checkup = examine(quick, say)
    if as_json:
        typer.echo(json_text({"ok": checkup.ok, **vars(checkup)}))
    else:
        print_checkup(checkup, output())
    if not checkup.ok:
        raise typer.Exit(FAILED)
