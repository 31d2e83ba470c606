"""The command `treespec sweep`: a grid of experiments, on this machine or on a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from treespec.experiments.cli.common import (
    FAILED,
    INTERRUPTED,
    AsJson,
    ConfigArgument,
    Debug,
    ExecutorName,
    Plugins,
    Quiet,
    SlurmOptions,
    Workers,
    complain,
    echo,
    friendly,
    json_text,
    output,
    progress,
)
from treespec.experiments.cli.help import app, examples


@app.command(
    "sweep",
    rich_help_panel="Experiments",
    epilog=examples(
        "treespec sweep smoke 'sweep.seed=[0,1,2]'",
        "treespec sweep context_length --executor local --workers 2",
        "treespec sweep smoke 'sweep.models.dtype=[float32,bfloat16]' --retries 3",
        "treespec sweep draft_quality --executor slurm --slurm partition=gpu",
        "treespec sweep smoke 'sweep.seed=[0,1]' --json > summary.json",
    ),
)
def sweep_command(
    config: ConfigArgument,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Override keys: models.dtype=float32 sweep.seed=[0,1,2]."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The sweep's folder; sweeps/<name> by default.")
    ] = None,
    executor: ExecutorName = "process",
    workers: Workers = None,
    retries: Annotated[
        int,
        typer.Option("--retries", help="How often to retry a job that fails.", min=0, max=100),
    ] = 1,
    slurm: SlurmOptions = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="On Ctrl-C, cancel the SLURM jobs too.")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="First delete the results of an earlier sweep in the folder."),
    ] = False,
    allow_versions: Annotated[
        bool,
        typer.Option(
            "--allow-versions",
            help="Allow code and packages that differ from those the sweep was planned with.",
        ),
    ] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run every experiment of a config's grid (`sweep:`).

    The same command resumes a killed sweep: it keeps finished jobs and retries failed ones.

    Exit code 0: everything was measured. 1: a job failed (the error is recorded). 2: the input is wrong.
    130: interrupted.
    """
    with friendly(debug):
        from treespec.experiments.config.files import config_text

        config_text(config)
        from treespec.experiments.config.places import place_of
        from treespec.experiments.config.plugged import folder_asked_for, plug_in
        from treespec.experiments.errors import SweepError
        from treespec.experiments.report.terminal import say
        from treespec.experiments.run.models import calm_transformers
        from treespec.experiments.sweep.executors import Executor, InProcess, LocalWorkers
        from treespec.experiments.sweep.grid import load_grid
        from treespec.experiments.sweep.slurm import Slurm, parse_settings
        from treespec.experiments.sweep.sweep import Interrupted, require_workers, run_sweep
        from treespec.experiments.sweep.sweep_table import print_collected

        require_workers(executor, workers)
        if executor != "slurm" and (slurm or cancel):
            raise SweepError("--slurm and --cancel need --executor slurm")
        parameters = parse_settings(slurm or [])
        planned = folder_asked_for(config, overrides or (), out, "sweeps")
        plug_in(plugin or (), planned and planned / "sweep.json")
        grid = load_grid(config, overrides or ())
        folder = out or place_of(grid.base.get("output"), grid.name, "sweeps")
        calm_transformers()

        def make(logs: Path) -> Executor:
            if executor == "process":
                return InProcess(allow_versions=allow_versions)
            if executor == "local":
                return LocalWorkers(workers or 1, allow_versions=allow_versions)
            return Slurm(
                logs / "slurm",
                parameters,
                workers=workers,
                allow_versions=allow_versions,
                cancel=cancel,
            )

        console = progress(quiet)
        try:
            result = run_sweep(
                grid,
                folder,
                make,
                retries=retries,
                fresh=fresh,
                allow_versions=allow_versions,
                console=console,
            )
        except Interrupted as stopped:
            complain(f"interrupted: {stopped}; the same `treespec sweep` resumes where it stopped")
            raise typer.Exit(INTERRUPTED) from None
        if console and result.already_finished:
            say(console, f"{folder} is already finished; its results:")
        if as_json:
            echo(json_text(result.collected.data(folder)))
        elif not quiet:
            print_collected(result.collected, output())
            echo(f"collected: {folder / 'summary.parquet'}, {folder / 'prompts.parquet'}")
        if failed := result.collected.failed:
            if quiet or as_json:
                complain(f"failed: {failed[0].name}: {failed[0].error}")
            complain(
                f"{len(failed)} of {len(result.collected.outcomes)} jobs failed; the same command "
                "retries them"
            )
            raise typer.Exit(FAILED)
