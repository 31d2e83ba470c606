"""The command about records of runs: `treespec diff`."""

from pathlib import Path
from typing import Annotated

import typer

from treespec.experiments.cli.common import AsJson, Debug, friendly, output
from treespec.experiments.cli.help import examples
from treespec.experiments.cli.json import json_text

__all__ = ["app"]

app = typer.Typer()


@app.command(
    "diff",
    epilog=examples(
        "treespec diff runs/before runs/after",
        "treespec diff runs/laptop runs/server --json",
    ),
)
def diff_command(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The folder of a run.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The folder of another.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare two runs on the same prompts.

    Ratios of B over A with intervals, and what differs between them.

    Methods are compared by name and sampling setting, with 95 % intervals. Differences of config, versions
    and hardware are listed.
    """
    with friendly(debug):
        from treespec.experiments.report.diff import compare_runs, print_diff
        from treespec.experiments.report.run import load_run

        diff = compare_runs(load_run(run_a), load_run(run_b))
        if as_json:
            typer.echo(json_text(vars(diff)))
        else:
            print_diff(diff, output())
