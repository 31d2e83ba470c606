"""What the table of a run says: the texts of its cells, its caption and its footnotes."""

from dataclasses import dataclass

from experiments.loading import Run
from experiments.statistics import Interval
from experiments.summary import STAGES, MethodSummary, SamplingSummary, near_tie_margin

__all__ = [
    "COLUMNS",
    "Column",
    "caption",
    "cells",
    "columns_of",
    "footnotes",
    "hardware_line",
    "interval_text",
    "label",
]


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Args:
        head: for the terminal, short.
        name: in full.
    """

    head: str
    name: str


COLUMNS = (
    Column("method", "method"),
    Column("tok/step", "tokens per step"),
    Column("acc", "accepted per step"),
    Column("tok/s", "tokens per second"),
    Column("speedup", "speedup, 95 % interval"),
    *(Column(stage, f"{stage}, ms/step") for stage in STAGES),
    Column("waste", "wasted draft tokens"),
    Column("equal", "equal to plain"),
)

NONE = "–"


def cells(row: MethodSummary, summary: SamplingSummary) -> list[str]:
    """The texts of one row, one per entry of `COLUMNS`."""
    stages = row.stage_ms or {}
    compared = f"{row.equal}/{row.compared}" if row.compared else NONE
    return [
        label(row),
        _plus_minus(row.tokens_per_step),
        f"{row.accepted_per_step:.2f}",
        f"{row.tokens_per_second.estimate:.1f}",
        NONE if row.speedup is None else interval_text(row.speedup),
        *(f"{stages[stage]:.1f}" if stage in stages else NONE for stage in STAGES),
        NONE if row.wasted is None else f"{100 * row.wasted:.0f} %",
        compared if all(d.near_tie for d in row.divergences) else f"{compared} !",
    ]


def label(row: MethodSummary) -> str:
    """The name of the method, with what must be said of it."""
    lossy = "" if row.method.lossless else " (lossy)"
    failed = f" ({row.errors} failed)" if row.errors else ""
    return f"{row.method.name}{lossy}{failed}{' *' if row.among_fastest else ''}"


def caption(summary: SamplingSummary) -> str:
    """What the table holds."""
    against = f", speedup over {summary.baseline}" if summary.baseline else ""
    return f"{summary.sampling}: {summary.prompts} prompts{against}"


def columns_of(summary: SamplingSummary) -> list[int]:
    """Indices of the columns that say something: greedy equality exists only at temperature 0."""
    equality = any(row.compared for row in summary.rows)
    return [i for i in range(len(COLUMNS)) if equality or COLUMNS[i].head != "equal"]


def footnotes(run: Run, summaries: tuple[SamplingSummary, ...]) -> list[str]:
    """What must be known to read the table: sample, baselines, errors, divergences, intervals."""
    notes = [] if run.finished else ["The run is not finished: these are the prompts so far."]
    for s in summaries:
        if s.prompts < s.attempted or s.failed:
            notes.append(
                f"{s.sampling}: {s.prompts} of {s.attempted} prompts were finished by all methods and "
                "are compared."
            )
        notes += [
            f"{s.sampling}: {name} finished no prompt: {why}" for name, why in s.failed.items()
        ]
        notes += [_baselines(s)] if s.baseline else []
        notes += _divergences(run, s)
    widths = [
        r.speedup.half_width for s in summaries for r in s.rows if r.speedup and r.speedup.bounded
    ]
    moving = [width for width in widths if width > 0]
    if moving:
        notes.append(
            f"Intervals: 95 %, paired bootstrap over prompts; half-widths of the speedups "
            f"{min(moving):.2f} to {max(moving):.2f}. ± is that of tokens per step. "
            "Prefill is excluded."
        )
    else:
        notes.append("Prefill is excluded. With so few prompts there are no intervals.")
    notes.append(
        "* and bold: not distinguishable from the fastest lossless method (the paired interval of the "
        "ratio contains 1; not corrected for having picked the fastest on the same prompts)."
    )
    if any(row.errors for s in summaries for row in s.rows):
        notes.append("failed: prompts on which the method raised an error; they enter no number.")
    return notes


def hardware_line(run: Run) -> str:
    """Models and machine in one line."""
    target, draft = run.manifest["models"]["target"], run.manifest["models"]["draft"]
    hardware = run.manifest["hardware"]
    sizes = " with ".join(f"{m['name']} ({m['parameters'] / 1e6:.3g} M)" for m in (target, draft))
    place = hardware["gpu"] or f"{hardware['cpu']}, {hardware['threads']} threads"
    return f"{sizes}, {target['dtype']}, on {place}; treespec {run.manifest['treespec_version']}."


def _baselines(summary: SamplingSummary) -> str:
    """Both plain baselines, and which one speedups are quoted against."""
    speeds = [
        f"{row.method.name} {row.tokens_per_second.estimate:.1f} tok/s"
        for row in summary.rows
        if row.method.group == "plain"
    ]
    if len(speeds) < 2:
        return (
            f"{summary.sampling}: speedup is over {speeds[0]}, the only plain baseline of this run."
        )
    return f"{summary.sampling}: speedup is over {summary.baseline}, the faster of {' and '.join(speeds)}."


def _divergences(run: Run, summary: SamplingSummary) -> list[str]:
    """Greedy outputs that differ from plain decoding, with the margins."""
    notes = []
    for row in summary.rows:
        if row.divergences:
            margins = ", ".join(
                "unknown" if d.margin is None else f"{d.margin:.3g}" for d in row.divergences
            )
            rounding = all(d.near_tie for d in row.divergences)
            what = (
                f"near-ties (at most {near_tie_margin(run):g}): rounding"
                if rounding
                else f"! more than the {near_tie_margin(run):g} that rounding explains: a bug"
            )
            notes.append(
                f"{summary.sampling}: {row.method.name} equals plain decoding on {row.equal} of "
                f"{row.compared} prompts; the top-2 margins where it does not: {margins}; {what}."
            )
    return notes


def interval_text(value: Interval) -> str:
    """An estimate and its interval, if it has one."""
    if not value.bounded or value.exact:
        return f"{value.estimate:.2f}"
    return f"{value.estimate:.2f} {value.low:.2f}–{value.high:.2f}"


def _plus_minus(value: Interval) -> str:
    if not value.bounded or value.exact:
        return f"{value.estimate:.2f}"
    return f"{value.estimate:.2f}±{value.half_width:.2f}"
