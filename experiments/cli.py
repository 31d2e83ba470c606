"""The command line: `treespec run`, `report`, `check-lossless`, `search`, `export`, `configs`.

Nothing heavy is imported here: each command imports what it needs when it is called.
"""

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from experiments.records import PromptRow

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]

PIPED_WIDTH = 120
"""Columns of a table that goes to a file or a pipe."""

USER_ERROR = 2
FAILED = 1
INTERRUPTED = 130

FAILURES_SHOWN = 5


@app.callback()
def _treespec() -> None:
    """Compare token trees with chains in speculative decoding."""


@app.command("run")
def run_command(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped config.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as models.dtype=float32 seed=1."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete the results of an earlier run there first.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress, no table.")] = False,
    debug: Debug = False,
) -> None:
    """Run an experiment. The same command goes on where a killed run stopped.

    Exit code 0: all is measured. 1: a method failed on a prompt (it is recorded). 2: the input is wrong.
    """
    with _friendly(debug):
        from rich.console import Console

        from experiments.config_file import load_config
        from experiments.errors import RunFolderError
        from experiments.runner import run

        _calm_transformers()
        console = None if quiet else Console(stderr=True)
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
    with _friendly(debug):
        from experiments.errors import RunFolderError

        if not (run / "manifest.json").is_file():
            raise RunFolderError(f"{run} is no folder of a run: it has no manifest.json")
        _show(run, quiet)


@app.command("check-lossless")
def check_lossless_command(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped config.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as models.dtype=float32 seed=1."),
    ] = None,
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
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress, no table.")] = False,
    debug: Debug = False,
) -> None:
    """Check on a real pair that the trees of a config keep the law of plain decoding.

    Above temperature 0 the joint law of the first tokens is tested, at a stated false-alarm rate; at
    temperature 0 the texts are compared with plain greedy decoding.

    Exit code 0: no loss was found. 1: a method that claims to be lossless is not. 2: the input is wrong.
    """
    with _friendly(debug):
        from rich.console import Console

        from experiments.check_lossless import check_lossless
        from experiments.check_lossless_text import print_check, verdict, write_check
        from experiments.config_file import load_config

        _calm_transformers()
        check = check_lossless(
            load_config(config, overrides or ()),
            samples=samples,
            false_alarm=false_alarm,
            tokens=tokens,
            prompts=prompts,
            exact=not against_samples,
            console=None if quiet else Console(stderr=True),
        )
        if not quiet:
            piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
            print_check(check, Console(width=PIPED_WIDTH if piped else None))
        if out is not None:
            typer.echo(f"written: {write_check(check, out)}")
        if check.failed:
            if quiet:
                _complain(verdict(check))
            raise typer.Exit(FAILED)


@app.command("search")
def search_command(
    rates: Annotated[
        str, typer.Argument(help="Of the first, second, ... child: 0.6,0.2,0.1; levels apart by ;")
    ],
    size: Annotated[int, typer.Option("--size", help="Nodes, the root included.")] = 16,
    depth: Annotated[int | None, typer.Option("--depth", help="Edges from the root.")] = None,
    branching: Annotated[int | None, typer.Option("--branching", help="Children at most.")] = None,
    into: Annotated[str, typer.Option("--to", help="Format to show the tree in.")] = "medusa",
    debug: Debug = False,
) -> None:
    """Find the tree that keeps most tokens, from how often the k-th child is accepted."""
    with _friendly(debug):
        from experiments.tree_commands import search

        typer.echo(search(rates, size, depth, branching, into))


@app.command("export")
def export_command(
    tree: Annotated[str, typer.Argument(help="A file, or a tree as text.")],
    into: Annotated[str, typer.Option("--to", help="Format: vllm, eagle, sglang, ...")],
    form: Annotated[str | None, typer.Option("--from", help="Format of the tree.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write.")] = None,
    debug: Debug = False,
) -> None:
    """Write a tree in another tool's words, and say what these leave out."""
    with _friendly(debug):
        from experiments.tree_commands import export

        printed, report = export(tree, into, form, out)
        typer.echo(printed)
        typer.echo(report, err=True)


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
        _complain(f"failed: prompt {row.prompt}, {row.sampling}, {row.method}: {row.error}")
    if len(failures) > FAILURES_SHOWN:
        _complain(f"... and {len(failures) - FAILURES_SHOWN} more, in prompts.parquet")
    _complain(f"{len(failures)} failed; --retry runs them again")


def _show(folder: Path, quiet: bool) -> None:
    from rich.console import Console

    from experiments.report import write_report
    from experiments.table import print_table

    report = write_report(folder)
    if not quiet:
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        print_table(folder, Console(width=PIPED_WIDTH if piped else None))
        typer.echo(f"report: {report}")


def _calm_transformers() -> None:
    """No progress bars and advice of transformers between ours."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@contextmanager
def _friendly(debug: bool) -> Iterator[None]:
    """One clear message instead of a traceback; `--debug` shows the traceback too."""
    from treespec.errors import TreespecError

    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        _complain("interrupted; `treespec run` goes on where it stopped")
        raise typer.Exit(INTERRUPTED) from None
    except TreespecError as error:
        if debug:
            traceback.print_exc()
        _complain(f"error: {error}")
        raise typer.Exit(USER_ERROR) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        hint = "" if debug else " (--debug shows where)"
        _complain(f"error: {type(error).__name__}: {error}{hint}")
        raise typer.Exit(FAILED) from None


def _complain(text: str) -> None:
    print(text, file=sys.stderr)
