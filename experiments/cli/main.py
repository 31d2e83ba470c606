"""The command line: `treespec run`, `report`, `diff`, `check-lossless`; other commands are in this folder.

Nothing heavy is imported at the top: each command imports what it needs when it is called.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treespec.experiments.cli.common import (
    FAILED,
    INTERRUPTED,
    UNREAD,
    AsJson,
    ConfigArgument,
    Debug,
    Overrides,
    Plugins,
    Quiet,
    answer,
    complain,
    echo,
    fails,
    friendly,
    json_text,
    load,
    option_of,
    output,
    progress,
)
from treespec.experiments.cli.help import app, examples

if TYPE_CHECKING:
    from treespec.experiments.records.rows import PromptRow
    from treespec.experiments.report.run import Run
    from treespec.experiments.run.runner import RunResult


FAILURES_SHOWN = 5

for _module in iter_modules([str(Path(__file__).parent)]):  # each registers its commands
    if _module.name not in ("__main__", "main"):
        import_module(f"treespec.experiments.cli.{_module.name}")


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        echo(f"treespec {version('treespec-decoding')}")
        raise typer.Exit


@app.callback()
def _treespec(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Compare token trees with chains in speculative decoding."""


@app.command(
    "run",
    rich_help_panel="Experiments",
    epilog=examples(
        "treespec run smoke --out runs/first max_new_tokens=16 seed=1",
        "treespec run speed models.device=cuda models.dtype=bfloat16",
        "treespec run budget_scaling --dry-run",
        "treespec run tree_vs_chain --settings dtype=float32,bfloat16",
        "treespec run smoke --json > summary.json",
    ),
)
def run_command(
    config: ConfigArgument,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder.")] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="First delete the results of an earlier run in the folder."),
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed prompts again.")] = False,
    dry: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what would run and the estimated time; write no results."
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            metavar="NAME=A,B",
            help="Run the best methods under all combinations: dtype=float32,bfloat16; repeatable.",
        ),
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run an experiment; the same command resumes a killed one.

    Exit code 0: everything was measured. 1: a method failed on a prompt (the error is recorded).
    2: the input is wrong, or the folder cannot be written. 130: interrupted.
    """
    with friendly(debug, "interrupted; the same command resumes where it stopped"):
        from treespec.experiments.config.files import is_file
        from treespec.experiments.config.plugged import folder_asked_for
        from treespec.experiments.measure.searched_run import dry_run, run
        from treespec.experiments.report.terminal import print_finding, say
        from treespec.experiments.run.dry_run import plan_data, print_plan
        from treespec.experiments.run.ranks import rank

        if rank():  # under torchrun, only the process of rank 0 prints
            quiet, as_json = True, False
        console = progress(quiet)
        folder = folder_asked_for(config, overrides or (), out, "runs")
        experiment = load(config, overrides, plugin, folder and folder / "manifest.json")
        options: dict[str, Any] = {
            "folder": out,
            "source": Path(config) if is_file(config) else None,
            "fresh": fresh,
            "console": console,
        }
        if settings and (dry or retry):
            from treespec.experiments.errors import ConfigError

            raise ConfigError(f"--settings cannot be used with --{'dry-run' if dry else 'retry'}")
        if dry:
            plan = dry_run(experiment, retry=retry, **options)
            if as_json:
                echo(json_text(plan_data(plan)))
            elif not quiet:
                print_plan(plan, output())
            return
        if settings:
            from treespec.experiments.measure.settings import (
                run_under_settings,
                settings_data,
                settings_finding,
            )

            found = run_under_settings(experiment, settings, **options)
            if as_json:
                echo(json_text(settings_data(found)))
            elif not quiet:
                print_finding(settings_finding(found), output())
            return
        result = run(experiment, retry=retry, **options)
        if console and result.already_finished:
            say(console, f"{result.folder} is already finished; its results:")
        _show_run(result, quiet, as_json)
        if result.failures:
            if not rank():
                _complain_of(result.failures)
            raise typer.Exit(FAILED)


@app.command(
    "report",
    rich_help_panel="Experiments",
    epilog=examples(
        "treespec report runs/tree_vs_chain",
        "treespec report runs/tree_vs_chain --tables out --columns speedup,acc",
        "treespec report runs/tree_vs_chain --json | jq '.samplings[0].verdict'",
    ),
)
def report_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables",
            help="Write to this folder every table as CSV and LaTeX, every figure as PDF in the width of "
            "a column, and BibTeX of the rules, trees and draft sources.",
        ),
    ] = None,
    columns: Annotated[
        str,
        typer.Option(
            "--columns",
            help="Columns of the result tables printed or written, such as tok/step,speedup.",
        ),
    ] = "",
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no table.")] = False,
    debug: Debug = False,
) -> None:
    """Print a run's table and rewrite its report.html.

    An unfinished run is reported as far as it got. If the folder is not marked as treespec's (older
    versions did not mark folders), the table is printed and nothing is written: exit code 2.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_run

        require_run(run)
        from treespec.experiments.errors import ForeignFolder
        from treespec.experiments.report.page import write_report
        from treespec.experiments.report.paper import write_paper
        from treespec.experiments.report.run import load_run, report_data
        from treespec.experiments.report.summary import result_tables

        loaded = load_run(run)
        result_tables(loaded.summaries, columns)  # an unknown column, before anything is written
        written = [] if tables is None else write_paper(loaded, tables, columns)
        report, foreign = None, None
        try:
            report = write_report(loaded)
        except ForeignFolder as error:
            foreign = error
        if as_json:
            echo(json_text(report_data(loaded, report)))
        elif not quiet:
            _print(loaded, report, columns)
            if written:
                echo(f"tables: {len(written)} files in {tables}")
        if foreign is not None:
            raise foreign


@app.command(
    "diff",
    rich_help_panel="Experiments",
    epilog=examples(
        "treespec diff runs/before runs/after",
        "treespec diff runs/laptop runs/server --json",
    ),
)
def diff_command(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The folder of a run.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The folder of another run.")],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare two runs on the same prompts.

    Prints ratios of B over A with 95 % intervals for every method and sampling setting that both runs have
    (matched by name), and lists the differences in config, versions and hardware.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_run

        require_run(run_a, run_b)
        from treespec.experiments.report.diff import compare_runs, print_diff
        from treespec.experiments.report.run import load_run

        diff = compare_runs(load_run(run_a), load_run(run_b))
        if as_json:
            echo(json_text(vars(diff)))
        else:
            print_diff(diff, output())


@app.command(
    "check-lossless",
    rich_help_panel="Checks",
    epilog=examples(
        "treespec check-lossless check_lossless",
        "treespec check-lossless tree_vs_chain --samples 10000 --out checks",
        "treespec check-lossless smoke samplings='[{temperature: 0.7}]' --tokens 2",
        "treespec check-lossless check_lossless --json | jq .passed",
    ),
)
def check_lossless_command(
    config: ConfigArgument,
    overrides: Overrides = None,
    samples: Annotated[
        int, typer.Option("--samples", help="Texts per method and setting above temperature 0.")
    ] = 1000,
    false_alarm: Annotated[
        float,
        typer.Option(
            "--false-alarm",
            help="Probability that any comparison fails by chance, over all comparisons.",
        ),
    ] = 1e-3,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens per text.")] = 3,
    prompts: Annotated[
        int, typer.Option("--prompts", help="Draw the texts after this many first prompts.")
    ] = 2,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write check.json to this folder; a stopped check resumes from there."
        ),
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check on a real pair that trees keep the target's law.

    Above temperature 0, tests the joint law of the first tokens at a stated false-alarm rate. At
    temperature 0, compares the texts with plain greedy decoding.

    Exit code 0: no loss was found. 1: a method that claims to be lossless is not. 2: the input is wrong.
    """
    with friendly(debug):
        from treespec.experiments.config.files import making
        from treespec.experiments.lossless.check import check_lossless, require_sizes
        from treespec.experiments.lossless.check_text import (
            check_data,
            print_check,
            require_check,
            verdict,
            write_check,
        )

        require_sizes(samples, false_alarm, tokens, prompts, named=option_of)
        experiment = load(config, overrides, plugin)
        if out is not None:
            require_check(out)
        with nullcontext() if out is None else making(out):
            check = check_lossless(
                experiment,
                samples=samples,
                false_alarm=false_alarm,
                tokens=tokens,
                prompts=prompts,
                out=out,
                console=progress(quiet),
            )
            written = None if out is None else write_check(check, out)
        if as_json:
            echo(json_text(check_data(check) | {"verdict": verdict(check)}))
        else:
            if not quiet:
                print_check(check, output())
            if written is not None:
                echo(f"written: {written}")
        if check.failed:
            if quiet:
                complain(verdict(check))
            raise typer.Exit(FAILED)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Ctrl-C ends it with exit code 130, even while the commands are being set up."""
    _open_streams()
    stdout = sys.stdout
    try:
        app(arguments, prog_name="treespec")
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer ends with 1
            sys.exit(UNREAD)
        raise
    except Exception as error:
        sys.exit(answer(error))
    finally:
        if fails(stdout):  # Python would try once more at its end, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


def _open_streams() -> None:
    """Give closed streams a place, and let terminals without Unicode show `\\u2026` for what they lack."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif name == "stdout" and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain_of(failures: "Sequence[PromptRow]") -> None:
    for row in failures[:FAILURES_SHOWN]:
        complain(f"failed: prompt {row.prompt}, {row.sampling}, {row.method}: {row.error}")
    if len(failures) > FAILURES_SHOWN:
        complain(f"... and {len(failures) - FAILURES_SHOWN} more, in prompts.parquet")
    complain(f"{len(failures)} failed; --retry runs them again")


def _show_run(result: "RunResult", quiet: bool, as_json: bool) -> None:
    from treespec.experiments.errors import NoFinishedPrompt
    from treespec.experiments.records.loading import read_manifest
    from treespec.experiments.report.page import write_report
    from treespec.experiments.report.run import load_run, report_data

    data: dict[str, Any] = {}
    try:
        run = load_run(result.folder)
        report = write_report(run)
        if as_json:
            data = report_data(run, report)
        elif not quiet:
            _print(run, report)
    except NoFinishedPrompt:  # the failures are printed next
        manifest = read_manifest(result.folder)
        data = {"folder": result.folder, "report": None, "samplings": []}
        data |= {key: manifest[key] for key in ("name", "finished")}
    if as_json:
        columns = ("prompt", "sampling", "method", "error")
        failures = [{name: getattr(row, name) for name in columns} for row in result.failures]
        more = {"already_finished": result.already_finished, "failures": failures}
        echo(json_text(data | more))


def _print(run: "Run", report: Path | None, columns: str = "") -> None:
    from treespec.experiments.report.page import print_run

    print_run(run, output(), columns)
    if report is not None:
        echo(f"report: {report}")
