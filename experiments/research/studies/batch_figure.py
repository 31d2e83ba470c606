"""Draw how the speed-up of speculation falls as more texts share each pass, and the row cost behind it.

    python -m treespec.experiments.research.studies.batch_figure sweeps/batch

Reads the collected summary of a sweep over `batch` and writes `batch.svg` and `batch.png` into its folder:
above, the speed-up over plain decoding of the fastest chain and tree of each batch size, with intervals
over batches; below, the time of a pass of the target against the nodes that it verifies. While the line
below is flat, further nodes are free; once it rises in proportion, a tree of n nodes costs n times as much.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
import typer
from matplotlib.ticker import LogLocator

from treespec.errors import TreespecError
from treespec.experiments.cli.common import complain
from treespec.experiments.errors import SweepError
from treespec.experiments.report.figure_axes import stacked
from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    GROUP_MARKERS,
    GROUP_NAMES,
    MUTED,
    by_powers,
    clean,
    drawing,
    save,
)
from treespec.experiments.sweep.collect import PREFIX

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCH = f"{PREFIX}batch"


def batch_figure(summary: pl.DataFrame, sampling: str) -> "Figure":
    """The figure of one sampling setting.

    Args:
        summary: the summary of a sweep over `batch` (`treespec.experiments.sweep.collect`).
        sampling: name of the setting.

    Raises:
        SweepError: if the sweep has no axis `batch`, or no chain or tree with a speed-up.
    """
    if BATCH not in summary.columns:
        raise SweepError("the sweep has no axis `batch`: give one, such as sweep.batch=[1,2,4,8]")
    rows = summary.filter(pl.col("sampling") == sampling, pl.col("lossless")).sort(BATCH)
    groups = [g for g in ("chain", "tree") if rows.filter(group=g)["speedup"].count()]
    if not groups:
        raise SweepError(f"the sweep has no chain or tree with a speed-up under {sampling}")
    figure, (above, below) = stacked(2, 6.4)
    _speedups(above, rows, groups)
    _pass_times(below, rows, ["plain", *groups])
    return figure


def _speedups(axes: "Axes", rows: pl.DataFrame, groups: list[str]) -> None:
    for place, group in enumerate(groups):
        fastest = _fastest(rows, group)
        low, high = (fastest[f"speedup_{end}"] for end in ("low", "high"))
        bars = None
        if not (low.null_count() or high.null_count()):
            bars = [(fastest["speedup"] - low).to_list(), (high - fastest["speedup"]).to_list()]
        beside = fastest[BATCH] * 1.03 ** (2 * place - 1)  # so that whiskers do not hide each other
        axes.errorbar(beside, fastest["speedup"], yerr=bars, **_look(group))
    axes.axhline(1.0, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), label="plain decoding")
    by_powers(axes, sorted(set(rows[BATCH])), "texts in a batch")
    axes.set_ylabel("speed-up")
    axes.legend(loc="upper right")


def _pass_times(axes: "Axes", rows: pl.DataFrame, groups: list[str]) -> None:
    for group in groups:
        fastest = _fastest(rows.filter(pl.col("nodes").is_not_null()), group).sort("nodes")
        axes.errorbar(fastest["nodes"], fastest["verify_ms"], **_look(group))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.minorticks_off()
    axes.set_xlabel("nodes in a pass of the target")
    axes.set_ylabel("a pass, ms")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
    clean(axes, "y")


def _fastest(rows: pl.DataFrame, group: str) -> pl.DataFrame:
    """The fastest method of a group for each batch size."""
    own = rows.filter(pl.col("group") == group).sort("tokens_per_second", descending=True)
    return own.unique(BATCH, keep="first", maintain_order=True).sort(BATCH)


def _look(group: str) -> dict[str, Any]:
    return {
        "color": GROUP_COLOURS[group],
        "marker": GROUP_MARKERS[group],
        "linewidth": 1.4,
        "label": GROUP_NAMES[group],
    }


def draw(
    sweep: Annotated[Path, typer.Argument(help="Folder of a finished sweep over `batch`.")],
    sampling: Annotated[str | None, typer.Option(help="The setting; by default the first.")] = None,
) -> None:
    """Write batch.svg and batch.png into the sweep's folder."""
    try:
        path = sweep / "summary.parquet"
        if not path.is_file():
            raise SweepError(f"{sweep} has no summary.parquet: finish the sweep first")
        summary = pl.read_parquet(path)
        with drawing():
            figure = batch_figure(summary, sampling or summary["sampling"][0])
            typer.echo(save(figure, sweep, "batch"))
    except TreespecError as error:
        complain(str(error))
        raise typer.Exit(2) from None


if __name__ == "__main__":
    typer.run(draw)
