"""The figures of a run. Each function draws one figure; `draw_figures` writes all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from treespec.experiments.report.figure_axes import (
    FILLS,
    ROW_INCHES,
    MethodAxis,
    lanes,
    legend,
    panels,
    reach,
    stacked,
)
from treespec.experiments.report.figure_style import (
    GROUP_COLOURS,
    GROUP_MARKERS,
    INK,
    MUTED,
    PAGE,
    STAGE_COLOURS,
    Keep,
    clean,
    drawing,
    save,
    wrapped,
    write_file,
)
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.point_figures import (
    prediction_figure,
    prompts_figure,
    scaling_figure,
)
from treespec.experiments.report.run import Run
from treespec.experiments.report.summary import MethodSummary, SamplingSummary

MARKER: dict[str, Any] = {"markeredgewidth": 1.4, "linestyle": "none"}
WHISKER: dict[str, Any] = {"ecolor": INK, "elinewidth": 1.2, "capsize": 2.0, "fmt": "none"}


def draw_figures(run: Run, folder: Path, keep: Keep = write_file) -> dict[str, Path]:
    return {name: save(figure, folder, name, keep) for name, figure in drawn(run)}


def drawn(run: Run, *size: float) -> Iterator[tuple[str, Figure]]:
    """The figures for which the run has data, by name; `size` as in `drawing`."""
    with drawing(*size):
        for name, spec in DRAWINGS.items():
            if (figure := spec.draw(run)) is not None:
                yield name, figure


def speedup_figure(summaries: Sequence[SamplingSummary]) -> Figure | None:
    """Speedup over plain decoding with its interval: a row per method, a marker per sampling setting."""
    shown = [s for s in summaries if s.baseline is not None]
    if not shown:
        return None
    axis = MethodAxis.of(shown)
    figure, (axes,) = stacked(1, ROW_INCHES * (1.25 * axis.rows + 2.6))
    axis.apply(axes)
    axes.axvline(1.0, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    for lane, fill, summary in zip(lanes(len(shown)), FILLS, shown, strict=False):
        for row in summary.rows:
            if row.speedup is not None:
                axes.errorbar(
                    row.speedup.estimate,
                    axis.places[row.method.name] + lane,
                    xerr=reach([row.speedup]),
                    fillstyle=fill,
                    elinewidth=1.4,
                    color=GROUP_COLOURS[row.method.group],
                    marker=GROUP_MARKERS[row.method.group],
                    **MARKER,
                )
    axes.xaxis.set_major_locator(MaxNLocator(7))
    figure.supxlabel("speedup over the faster plain baseline, 95 % interval")
    legend(axes, [], shown)
    return figure


def size_figure(run: Run) -> Figure | None:
    """Kept tokens per step, and time of a pass of the target, against the number of draft tokens.

    Trees that differ from step to step stand at their mean. Methods without that number are named.
    """
    summaries = _shown(run)
    rows = [
        (i, row, _draft_tokens(run.measurements[s.sampling], row))
        for i, s in enumerate(summaries[: len(FILLS)])
        for row in s.rows
    ]
    sized = [(i, row, size) for i, row, size in rows if size is not None]
    if not sized:
        return None
    figure, (top, bottom) = stacked(2, 5.6, sharex=True, height_ratios=[3, 2])
    largest = max(size for _, _, size in sized)
    # small offsets keep settings of the same size visible
    offsets = [lane * max(largest, 1) / 20 for lane in lanes(len(summaries))]
    for i, row, size in sized:
        group, place = row.method.group, size + offsets[i]
        look: dict[str, Any] = {
            "fillstyle": FILLS[i],
            "color": GROUP_COLOURS[group],
            "marker": GROUP_MARKERS[group],
            **MARKER,
        }
        value = row.tokens_per_step
        top.errorbar(place, value.estimate, yerr=reach([value]), elinewidth=1.2, **look)
        name, totals = row.method.name, run.measurements[summaries[i].sampling].totals
        verify = totals.ratio([(name, "verify_s")], [(name, "steps")]).scaled(1e3)
        bottom.errorbar(place, verify.estimate, yerr=reach([verify]), elinewidth=1.2, **look)
    top.set_ylabel("kept tokens per step")
    bottom.set_ylabel("verify, ms per step")
    varies = any(row.method.draft_tokens is None for _, row, _ in sized)
    mean = "; the mean where it varies" if varies else ""
    lines = [f"draft tokens per step (size of the tree without its root{mean})"]
    unsized = (row.method for _, row, size in rows if size is None)
    if left_out := dict.fromkeys(m.label for m in unsized if m.group != "plain"):
        lines.append(f"not shown, drafts not recorded: {', '.join(left_out)}")
    bottom.set_xlabel("\n".join(wrapped(line, 0.85) for line in lines))
    for axes in (top, bottom):
        clean(axes, "both")
        axes.margins(y=0.12)
        axes.set_ylim(bottom=0)
    figure.align_ylabels()
    groups = {row.method.group for _, row, _ in sized}
    legend(top, [group for group in GROUP_COLOURS if group in groups], summaries)
    return figure


def stages_figure(summaries: Sequence[SamplingSummary]) -> Figure | None:
    """Milliseconds per step by stage, as stacked bars, with one panel per sampling setting."""
    if not summaries:
        return None
    axis = MethodAxis.of(summaries)
    figure, axes_of = panels([s.sampling for s in summaries], axis, extra=2.6)
    hollow: dict[str, Any] = {"fill": False, "edgecolor": MUTED, "hatch": "////", "linewidth": 0.8}
    for summary in summaries:
        axes = axes_of[summary.sampling]
        for row in summary.rows:
            place, left = axis.places[row.method.name], 0.0
            for stage, width in (row.stage_ms or {}).items():
                axes.barh(place, width, left=left, height=0.72, color=STAGE_COLOURS[stage])
                left += width
            if row.stage_ms is None:
                axes.barh(place, row.step_ms, height=0.72, **hollow)
            axes.errorbar(row.step_ms, place, xerr=reach([row.step_time]), **WHISKER)
    figure.supxlabel("milliseconds per step")
    handles = [Patch(facecolor=colour, label=stage) for stage, colour in STAGE_COLOURS.items()]
    if any(row.stage_ms is None for s in summaries for row in s.rows):
        handles.append(Patch(label="not divided", **hollow))
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=1.2)
    return figure


def accepted_figure(
    summaries: Sequence[SamplingSummary],
    shares: Mapping[str, Mapping[str, NDArray[np.float64]]],
) -> Figure | None:
    """Draft tokens kept per step: stacked `accepted_shares` per method, a panel per sampling setting."""
    axis = MethodAxis.of(summaries, recorded=True)
    shown = {sampling: methods for sampling, methods in shares.items() if methods}
    if not axis.groups or not shown:
        return None
    most = max(len(share) for methods in shown.values() for share in methods.values())
    scale = colormaps["viridis_r"](np.linspace(0.08, 0.88, max(most - 1, 1)))
    colours = ["#c9cdd3", *map(to_hex, scale)][:most]
    figure, axes_of = panels(list(shown), axis, extra=3.0)
    for sampling, methods in shown.items():
        axes = axes_of[sampling]
        for name, share in methods.items():
            left = 0.0
            for colour, width in zip(colours, 100 * share, strict=False):
                axes.barh(
                    axis.places[name],
                    width,
                    left=left,
                    height=0.78,
                    color=colour,
                    edgecolor=PAGE,
                    linewidth=0.7,
                )
                left += width
        axes.set_xlim(0, 100)
    figure.supxlabel("share of steps, %")
    bar = figure.colorbar(
        ScalarMappable(BoundaryNorm(np.arange(most + 1) - 0.5, most), ListedColormap(colours)),
        ax=list(axes_of.values()),
        location="top",
        aspect=42,
        ticks=range(most),
        label="draft tokens kept in a step",
    )
    bar.ax.tick_params(length=0)
    bar.minorticks_off()
    bar.outline.set_visible(False)  # pyrefly: ignore
    return figure


def _draft_tokens(data: Measurements, row: MethodSummary) -> float | None:
    """Draft tokens per step; None unless they and the time of a pass were recorded."""
    if row.stage_ms is None:
        return None
    if row.method.draft_tokens is not None:
        return row.method.draft_tokens
    drafted = data.total(row.method.name, "drafted")
    return None if drafted is None else drafted / (data.total(row.method.name, "steps") or 1.0)


def _shown(run: Run) -> list[SamplingSummary]:
    return [summary for summary in run.summaries if summary.rows]


@dataclass(frozen=True)
class Drawing:
    draw: Callable[[Run], Figure | None]
    caption: str


DRAWINGS = {
    "speedup": Drawing(
        lambda run: speedup_figure(_shown(run)),
        "Tokens per second over those of the faster plain baseline, with 95 % intervals. The intervals "
        "of two methods may overlap although their ratio is clear, because they share the prompts: "
        "compare methods by the table of comparisons.",
    ),
    "prompts": Drawing(
        lambda run: prompts_figure(run.measurements),
        "The best tree against the best chain, prompt by prompt, as tokens per second over those "
        "of the baseline (dashed); each line takes the colour of the faster one. Both were chosen on "
        "these prompts, which favours the family with more methods; the verdict corrects for that.",
    ),
    "size": Drawing(
        size_figure,
        "The benefit of a larger tree (kept tokens per target pass) and its cost (time of a target "
        "pass) against the number of draft tokens, with 95 % intervals.",
    ),
    "stages": Drawing(
        lambda run: stages_figure(_shown(run)),
        "Where the time of a step goes. A method is faster than another if its tokens per step "
        "exceed the other's by a larger factor than its bar does. Whiskers: 95 % intervals of the "
        "whole step, over prompts.",
    ),
    "accepted": Drawing(
        lambda run: accepted_figure(_shown(run), run.accepted_shares),
        "How many draft tokens the steps keep. The wider the grey part, the more passes yielded a "
        "single token, as in plain decoding. Tokens that the last step emits past the budget do not "
        "count.",
    ),
    "scaling": Drawing(
        lambda run: scaling_figure(run.scaling),
        "Kept tokens per step against the nodes of a tree, by family, on a logarithmic axis, with "
        "95 % intervals.",
    ),
    "prediction": Drawing(
        lambda run: prediction_figure(
            [replace(row, method=run.short(row.method)) for row in run.predictions],
            {m.label: m.group for m in run.methods},
        ),
        "Predictions of the search before the run against measurements of the run; the two are equal "
        "on the dashed line. Intervals are 95 %, over texts; the interval of a predicted speedup is "
        "that of its tokens only. Below the line the search predicted too little, above it too much.",
    ),
}
"""The figures by name, in the order of the report; `records.folder.FIGURES` has the same names."""
