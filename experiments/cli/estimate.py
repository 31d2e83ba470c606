"""The command `treespec estimate`."""

from pathlib import Path
from typing import Annotated

import typer

from treespec.experiments.cli.common import AsJson, Debug, friendly, output
from treespec.experiments.cli.help import examples

__all__ = ["app"]

app = typer.Typer()


@app.command(
    "estimate",
    epilog=examples(
        "treespec estimate trace.npz --by depth --shrinkage 20 --out rates.json",
        "treespec estimate trace.npz --for expansion:3x2x1 --interval bootstrap",
        "treespec estimate trace.npz --by depth --starts expansion:3x2x1",
        "treespec estimate runs/tree_vs_chain --method '2-ary 3' --sampling T=1",
    ),
)
def estimate_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="A trace (`treespec trace`), or the folder of a run."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the estimate there, for `search` and configs."),
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="rank: one rate for all depths. depth: a row for each.")
    ] = "rank",
    depth: Annotated[int | None, typer.Option("--depth", help="Levels, with --by depth.")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks", help="Children of a node.")] = None,
    interval: Annotated[
        str, typer.Option("--interval", help="wilson, or bootstrap over texts.")
    ] = "wilson",
    isotonic: Annotated[
        bool, typer.Option("--isotonic", help="Rates that do not increase with the rank.")
    ] = False,
    shrinkage: Annotated[
        float, typer.Option("--shrinkage", help="Counts that draw each level to all levels.")
    ] = 0.0,
    tree: Annotated[
        str | None,
        typer.Option("--for", help="The tree that they are for, such as expansion:3x2x1."),
    ] = None,
    starts: Annotated[
        str | None,
        typer.Option(
            "--starts", help="Of a trace: count the steps of this tree alone, not all positions."
        ),
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="Of a run: whose steps.")] = None,
    sampling: Annotated[
        str | None, typer.Option("--sampling", help="Of a run: such as T=1.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Estimate how often the k-th child is accepted.

    With intervals and counts. What the sample cannot support is said below the table.
    """
    with friendly(debug):
        from treespec.experiments.config.files import require_new, write_new
        from treespec.experiments.search_then_run.estimate import (
            calibration_error,
            estimate,
            estimate_json,
            estimate_table,
        )
        from treespec.search.rates.counts import FEWEST_TRIALS

        if out is not None:
            require_new(out)
        estimated = estimate(
            source, method=method, sampling=sampling, tree=tree, starts=starts, by=by, depth=depth,
            ranks=ranks, interval=interval, monotone=isotonic, shrinkage=shrinkage,
        )  # fmt: skip
        if out is not None:
            write_new(out, estimated.to_json())
        error = calibration_error(source)
        if as_json:
            typer.echo(estimate_json(estimated, error))
            return
        output().print(estimate_table(estimated))
        if error is not None:
            typer.echo(f"expected calibration error {error:.2f} of the draft's probabilities")
        if by == "depth" and not (depth or tree or starts) and source.is_file():
            typer.echo(
                f"Deeper levels have fewer than {FEWEST_TRIALS} trials each; --depth N shows N levels."
            )
        for text in estimated.warnings:
            typer.echo(f"note: {text}")
        if out is not None:
            typer.echo(f"written: {out}")
