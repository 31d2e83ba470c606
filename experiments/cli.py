"""The command line: `treespec run`, `report`, `check-lossless`, `search`, `profile`, `trace`, and more.

Nothing heavy is imported here: each command imports what it needs when it is called.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments import cli_search
from experiments.cli_common import (
    FAILED,
    ConfigArgument,
    Debug,
    Overrides,
    Quiet,
    calm_transformers,
    complain,
    friendly,
    output,
    progress,
)

if TYPE_CHECKING:
    from experiments.records import PromptRow

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_search.app)

FAILURES_SHOWN = 5


@app.callback()
def _treespec() -> None:
    """Compare token trees with chains in speculative decoding."""


@app.command("run")
def run_command(
    config: ConfigArgument,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the results of an earlier run there first.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run an experiment. The same command goes on where a killed run stopped.

    Exit code 0: all is measured. 1: a method failed on a prompt (it is recorded). 2: the input is wrong.
    """
    with friendly(debug):
        from experiments.config_file import load_config
        from experiments.errors import RunFolderError
        from experiments.runner import run

        calm_transformers()
        console = progress(quiet)
        result = run(
            load_config(config, overrides or ()),
            folder=out,
            fresh=fresh,
            retry=retry,
            console=console,
        )
        if console and result.already_finished:
            console.print(f"{result.folder} is finished already; its results:", highlight=False)
        try:
            _show(result.folder, quiet)
        except RunFolderError:
            if not result.failures:  # otherwise nothing succeeded, and what follows says why
                raise
        if result.failures:
            _complain_of(result.failures)
            raise typer.Exit(FAILED)


@app.command("report")
def report_command(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No table.")] = False,
    debug: Debug = False,
) -> None:
    """Print a run's table and write its report.html anew."""
    with friendly(debug):
        from experiments.errors import RunFolderError

        if not (run / "manifest.json").is_file():
            raise RunFolderError(f"{run} is no folder of a run: it has no manifest.json")
        _show(run, quiet)


@app.command("check-lossless")
def check_lossless_command(
    config: ConfigArgument,
    overrides: Overrides = None,
    samples: Annotated[
        int, typer.Option("--samples", help="Texts of each method and setting above temperature 0.")
    ] = 1000,
    false_alarm: Annotated[
        float,
        typer.Option(
            "--false-alarm",
            help="Probability that anything fails by chance, all comparisons together.",
        ),
    ] = 1e-3,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of each of these texts.")] = 3,
    prompts: Annotated[
        int, typer.Option("--prompts", help="Prompts that they are drawn after, the first ones.")
    ] = 2,
    against_samples: Annotated[
        bool,
        typer.Option(
            "--against-samples", help="Compare with samples of plain decoding, not its exact law."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write check.json there.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check on a real pair that the trees of a config keep the law of plain decoding.

    Above temperature 0 the joint law of the first tokens is tested, at a stated false-alarm rate; at
    temperature 0 the texts are compared with plain greedy decoding.

    Exit code 0: no loss was found. 1: a method that claims to be lossless is not. 2: the input is wrong.
    """
    with friendly(debug):
        from experiments.check_lossless import check_lossless
        from experiments.check_lossless_text import print_check, verdict, write_check
        from experiments.config_file import load_config

        calm_transformers()
        check = check_lossless(
            load_config(config, overrides or ()),
            samples=samples,
            false_alarm=false_alarm,
            tokens=tokens,
            prompts=prompts,
            exact=not against_samples,
            console=progress(quiet),
        )
        if not quiet:
            print_check(check, output())
        if out is not None:
            typer.echo(f"written: {write_check(check, out)}")
        if check.failed:
            if quiet:
                complain(verdict(check))
            raise typer.Exit(FAILED)


@app.command("configs")
def configs_command() -> None:
    """List the shipped configs."""
    from experiments.config_file import shipped

    for name, path in shipped().items():
        first = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()
        typer.echo(f"{name:20} {first}")


def main() -> None:
    """The console script."""
    app()


def _complain_of(failures: "Sequence[PromptRow]") -> None:
    for row in failures[:FAILURES_SHOWN]:
        complain(f"failed: prompt {row.prompt}, {row.sampling}, {row.method}: {row.error}")
    if len(failures) > FAILURES_SHOWN:
        complain(f"... and {len(failures) - FAILURES_SHOWN} more, in prompts.parquet")
    complain(f"{len(failures)} failed; --retry runs them again")


def _show(folder: Path, quiet: bool) -> None:
    from experiments.loading import load_run
    from experiments.prediction_text import print_predictions
    from experiments.report import write_report
    from experiments.table import print_table

    report = write_report(folder)
    if not quiet:
        console = output()
        print_table(folder, console)
        print_predictions(load_run(folder), console)
        typer.echo(f"report: {report}")
