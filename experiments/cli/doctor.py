"""The command `treespec doctor`."""

from contextlib import suppress
from typing import Annotated

import typer

from treespec.experiments.cli.common import FAILED, AsJson, output, progress
from treespec.experiments.cli.help import examples
from treespec.experiments.cli.json import json_text

__all__ = ["app"]

app = typer.Typer()


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
        bool, typer.Option("--quick", help="Leave out the self-test, but for loading the pair.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what this machine can do, and test it in half a minute.

    Python, torch, GPUs, kernels, energy meters, SLURM; then an exact proof, a text compared with
    `generate`, how small a difference between two methods shows here, all implementations of tree
    attention, and what verifying 16 nodes costs.

    Exit code 0: all tests passed. 1: a test failed.
    """
    from treespec.experiments.doctor import examine, print_checkup
    from treespec.experiments.run.progress import Reporter

    with suppress(ImportError):  # the checks report that it is missing
        from treespec.experiments.run.models import calm_transformers

        calm_transformers()
    with Reporter(progress(quiet=False)).task("looking around") as say:
        checkup = examine(quick, say)
    if as_json:
        data = {"ok": checkup.ok, "facts": checkup.facts, "tests": checkup.tests}
        typer.echo(json_text({**data, "speeds": checkup.speeds, "said": checkup.said}))
    else:
        print_checkup(checkup, output())
    if not checkup.ok:
        raise typer.Exit(FAILED)
