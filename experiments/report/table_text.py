"""What the table of a run says: the texts of its cells, its caption and its footnotes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treespec.experiments.records.outcome import STAGES
from treespec.experiments.report.run import Run
from treespec.experiments.report.statistics import Interval
from treespec.experiments.report.summary import MethodSummary, SamplingSummary
from treespec.experiments.report.table_notes import divergence_notes, tuning_notes

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
    "model_size",
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
    Column("±", "half-width of that"),
    *(Column(stage, f"{stage}, ms/step") for stage in STAGES),
    Column("waste", "wasted draft tokens"),
    Column("equal", "equal to plain"),
)

NONE = "–"


def cells(row: MethodSummary, summary: SamplingSummary) -> list[str]:
    """The texts of one row, one per entry of `COLUMNS`."""
    stages = row.stage_ms or {}
    return [
        label(row),
        _plus_minus(row.tokens_per_step),
        f"{row.accepted_per_step:.2f}",
        f"{row.tokens_per_second.estimate:.1f}",
        NONE if row.speedup is None else interval_text(row.speedup),
        _half_width(row.speedup),
        *(f"{stages[stage]:.1f}" if stage in stages else NONE for stage in STAGES),
        NONE if row.wasted is None else f"{100 * row.wasted:.0f} %",
        _equal(row),
    ]


def label(row: MethodSummary) -> str:
    """The name of the method, with what must be said of it."""
    named = row.method.lossless or "lossy" in row.method.name
    lossy = "" if named else " (lossy)"
    failed = f" ({row.errors} failed)" if row.errors else ""
    return f"{row.method.name}{lossy}{failed}{' *' if row.among_fastest else ''}"


def caption(summary: SamplingSummary) -> str:
    """What the table holds."""
    against = f", speedup over {summary.baseline}" if summary.baseline else ""
    return f"{summary.sampling}: {summary.prompts} prompts{against}"


def columns_of(summary: SamplingSummary) -> list[int]:
    """Indices of the columns that say something: greedy equality exists only at temperature 0."""
    equality = any(row.equality.compared for row in summary.rows)
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
        notes += divergence_notes(run, s)
    notes += tuning_notes(run)
    notes.append(
        "tok/step: kept tokens over target passes, prefill excluded; what the last step emits past the "
        "budget does not count. acc: one less."
    )
    widths = [
        r.speedup.half_width for s in summaries for r in s.rows if r.speedup and r.speedup.bounded
    ]
    moving = [width for width in widths if width > 0]
    if moving:
        notes.append(
            f"Intervals: 95 %, paired bootstrap over prompts; half-widths of the speedups "
            f"(column ±) {min(moving):.2f} to {max(moving):.2f}. Speeds exclude the prefill."
        )
    else:
        notes.append("Speeds exclude the prefill. With so few prompts there are no intervals.")
    notes.append(
        "* and bold: not distinguishable from the fastest lossless method (the paired interval of the "
        "ratio contains 1; not corrected for having picked the fastest on the same prompts)."
    )
    notes += _warmup_and_repeats(run)
    if any(row.stage_ms is None for s in summaries for row in s.rows):
        notes.append("The methods of transformers are timed as a whole: no stage times.")
    if any(row.errors for s in summaries for row in s.rows):
        notes.append("failed: prompts on which the method raised an error; they enter no number.")
    return notes


def hardware_line(run: Run) -> str:
    """Models and machine in one line."""
    target, draft = run.manifest["models"]["target"], run.manifest["models"]["draft"]
    hardware = run.manifest["hardware"]
    names = " with ".join(dict.fromkeys((target["name"], draft["name"])))
    sizes = f"target {model_size(target)}, draft {model_size(draft)} parameters ({names})"
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


def _warmup_and_repeats(run: Run) -> list[str]:
    """What was decoded and not measured, and how often each prompt was."""
    warmup = run.manifest.get("warmup") or {}
    prompts, repeats = warmup.get("prompts"), run.manifest["config"].get("repeats") or 1
    notes = []
    if prompts:
        notes.append(
            f"Warm-up: {prompts} prompt{'s' * (prompts > 1)} by every method, {warmup['seconds']:.0f} s, "
            "not measured."
        )
    if repeats > 1:
        notes.append(
            f"Each prompt was run {repeats} times, with other seeds; its repeats are added up and count as "
            "one sample."
        )
    return notes


def model_size(model: Mapping[str, Any]) -> str:
    """The number of a model's parameters, in millions or billions."""
    millions = model["parameters"] / 1e6
    return f"{millions:.3g} M" if millions < 999.5 else f"{millions / 1e3:.3g} B"


def interval_text(value: Interval) -> str:
    """An estimate and its interval, if it has one."""
    if not value.bounded or value.exact:
        return f"{value.estimate:.2f}"
    return f"{value.estimate:.2f} {value.low:.2f}–{value.high:.2f}"


def _plus_minus(value: Interval) -> str:
    if not value.bounded or value.exact:
        return f"{value.estimate:.2f}"
    return f"{value.estimate:.2f}±{value.half_width:.2f}"


def _half_width(value: Interval | None) -> str:
    if value is None or not value.bounded or value.exact:
        return NONE
    return f"{value.half_width:.2f}"


def _equal(row: MethodSummary) -> str:
    """Equal outputs, of those compared; `generate` is what they are compared with."""
    found = row.equality
    if found.reference:
        return "ref"
    compared = f"{found.equal}/{found.compared}" if found.compared else NONE
    return f"{compared} !" if found.bugs else compared
