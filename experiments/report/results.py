"""The result table of a run: its columns, its caption, and the footnotes needed to read it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from treespec.experiments.errors import ConfigError
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.records.outcome import STAGES
from treespec.experiments.report.equality import near_tie_margin
from treespec.experiments.report.summary import MethodSummary, SamplingSummary
from treespec.experiments.report.table import NONE, Cell, Column, Finding, Table, interval
from treespec.models.pass_kinds import in_words

PREFILL_NOTE = (
    "With the prefill included, generate pays for one more pass of the target than it would outside this "
    "comparison: here the prefill of every method covers all prompt tokens but the last, and the first "
    "token comes from a pass of its own."
)


def label(row: MethodSummary) -> str:
    lossy = "" if row.method.lossless or "lossy" in row.method.name else " (lossy)"
    failed = f" ({row.errors} failed)" if row.errors else ""
    return f"{row.method.label}{lossy}{failed}{' *' if row.among_fastest else ''}"


def _stage(stage: str) -> Column[MethodSummary]:
    return Column(
        f"{stage}\nms",
        lambda row: NONE if row.stage_ms is None else f"{row.stage_ms[stage]:.1f}",
        f"{stage}, ms/step",
        moves=1,
        part="time of a step",
    )


def _half_width(row: MethodSummary) -> str:
    return f"{row.speedup.half_width:.2f}" if row.speedup and row.speedup.has_width else NONE


def _equal(row: MethodSummary) -> str:
    """Number of equal outputs over number of compared outputs; `ref` for the reference."""
    if row.equality.reference:
        return "ref"
    count = f"{row.equality.equal}/{row.equality.compared}" if row.equality.compared else NONE
    return f"{count} !" if row.equality.bugs else count


METHOD = Column[MethodSummary]("method", label, left=True)
SPEEDUP = Column[MethodSummary](
    "speedup", lambda row: interval(row.speedup), "speedup, 95 % interval"
)
EQUAL = Column[MethodSummary]("equal", _equal, "equal to plain", moves=4)

COLUMNS = (
    METHOD,
    Column[MethodSummary](
        "tok/step",
        lambda row: Cell(row.tokens_per_step.plus_minus(), value=row.tokens_per_step),
        "tokens per step",
        moves=6,
    ),
    Column[MethodSummary](
        "acc", lambda row: f"{row.accepted_per_step:.2f}", "accepted per step", moves=3
    ),
    Column[MethodSummary](
        "tok/s",
        lambda row: Cell(f"{row.tokens_per_second.estimate:.1f}", value=row.tokens_per_second),
        "tokens per second",
        moves=5,
    ),
    SPEEDUP,
    Column[MethodSummary]("±", _half_width, "half-width of that"),
    *map(_stage, STAGES),
    Column[MethodSummary](
        "waste",
        lambda row: NONE if row.wasted is None else f"{100 * row.wasted:.0f} %",
        "wasted draft tokens",
        moves=2,
    ),
    EQUAL,
)

COMPACT_COLUMNS = (
    METHOD,
    Column[MethodSummary]("tokens per step", lambda row: f"{row.tokens_per_step.estimate:.2f}"),
    Column[MethodSummary]("tokens per second", lambda row: f"{row.tokens_per_second.estimate:.1f}"),
    SPEEDUP,
)


def result_table(
    summary: SamplingSummary, columns: Sequence[Column[MethodSummary]] = COLUMNS
) -> Table:
    greedy = any(row.equality.compared for row in summary.rows)
    against = f", speedup over {summary.baseline}" if summary.baseline else ""
    return Table(
        summary.sampling,
        [
            *(column for column in columns if greedy or column is not EQUAL),
            *(_metric(name) for name in metric_names(summary) if columns is COLUMNS),
        ],
        summary.rows,
        caption=f"{summary.sampling}: {summary.prompts} prompts{against}",
        group=_group,
        colour=_group,
        tone=lambda row: "best" if row.among_fastest else "",
    )


def result_tables(summaries: Sequence[SamplingSummary], names: str = "") -> list[Table]:
    """The result tables; with `names`, the columns of these heads or full names, in this order.

    The names are separated by commas. The column of the methods always stays, as the first.
    """
    tables = [result_table(summary) for summary in summaries]
    heads = {
        " ".join(name.split()): column.head
        for table in tables
        for column in table.columns
        for name in (column.name or column.head, column.head)
    }
    picked, rest = {METHOD.head: None}, names
    while rest := rest.strip(" ,"):  # full names have commas, too
        fitting = [name for name in heads if f"{rest},".startswith(f"{name},")]
        if not fitting:
            known = ", ".join(" ".join(head.split()) for head in dict.fromkeys(heads.values()))
            raise ConfigError(
                f"--columns: there is no column {rest.split(',')[0]!r} (there are {known})"
            )
        name = max(fitting, key=len)
        picked[heads[name]], rest = None, rest.removeprefix(name)
    if not names:
        return tables
    columns = [{column.head: column for column in table.columns} for table in tables]
    return [
        replace(table, columns=[known[head] for head in picked if head in known])
        for table, known in zip(tables, columns, strict=True)
    ]


def metric_names(summary: SamplingSummary) -> list[str]:
    return list(dict.fromkeys(name for row in summary.rows for name in row.metrics))


def _metric(name: str) -> Column[MethodSummary]:
    return Column(
        name,
        lambda row: NONE if name not in row.metrics else f"{row.metrics[name].estimate:.3g}",
        moves=2,
    )


def speedup_finding(summaries: Sequence[SamplingSummary]) -> Finding | None:
    tables = [_speedup_table(summary) for summary in summaries if summary.baseline is not None]
    return Finding("Speedups over each baseline", tables, (PREFILL_NOTE,)) if tables else None


def _speedup_table(summary: SamplingSummary) -> Table:
    def over(name: str) -> Column[MethodSummary]:
        return Column(f"over {name}", lambda row: interval(row.speedups[name]))

    columns = [
        Column[MethodSummary]("method", lambda row: row.method.name, left=True),
        *(over(row.method.name) for row in summary.rows if row.method.group == "plain"),
        Column[MethodSummary](
            f"over {summary.baseline}, prefill included",
            lambda row: interval(row.speedup_with_prefill),
        ),
    ]
    return Table(summary.sampling, columns, summary.rows, colour=_group)


def _group(row: MethodSummary) -> str:
    return row.method.group


def footnotes(run: RunRecords, summaries: Sequence[SamplingSummary]) -> list[str]:
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
    notes += _tuning(run)
    notes += [
        f"{name}: {about}; the mean over the prompts."
        for name, about in (run.manifest.get("metrics") or {}).items()
        if any(name in metric_names(s) for s in summaries)
    ]
    notes.append(
        "tok/step: kept tokens over target passes, without the prefill and without tokens past the end "
        "of a text; replay and search count emitted tokens (docs/guide.md, Tokens per step). acc: "
        "tok/step minus 1."
    )
    speedups = [row.speedup for s in summaries for row in s.rows if row.speedup]
    widths = [s.half_width for s in speedups if s.bounded and s.half_width > 0]
    if widths:
        notes.append(
            f"Intervals: 95 %, paired over prompts; half-widths of the speedups "
            f"(column ±) {min(widths):.2f} to {max(widths):.2f}. Speeds exclude the prefill."
        )
    elif not speedups:
        notes.append(
            "Speeds exclude the prefill. There is no plain decoding and therefore no speedup: add "
            "{kind: generate} and {kind: plain} to the methods."
        )
    else:
        notes.append("Speeds exclude the prefill. With so few prompts there are no intervals.")
    if any(row.among_fastest for s in summaries for row in s.rows):
        notes.append(
            "* and bold: no lossless method is shown to be faster, by 95 % intervals that hold jointly for "
            "all pairs of methods."
        )
    notes += _warmup_and_repeats(run)
    if any(row.stage_ms is None for s in summaries for row in s.rows):
        notes.append("The methods of transformers are timed as a whole: no stage times.")
    if any(row.errors for s in summaries for row in s.rows):
        notes.append(
            "failed: number of prompts on which the method raised an error; they enter no other number."
        )
    return [run.short(note) for note in notes]


def settings_lines(run: RunRecords) -> list[str]:
    """What was chosen for this run, and why: its dtype and its passes; nothing that the config named."""
    settings, models = run.manifest.get("settings"), run.manifest["models"]
    lines = [] if settings is None else [f"Chosen: {settings['dtype']}, since {settings['why']}."]
    for role in ("target", "draft"):
        passes = models[role].get("passes") or {}
        if passes.get("asked") == "auto":
            lines.append(f"Passes of the {role}: {in_words(passes)}.")
    return lines


def plain_elsewhere(run: RunRecords) -> str | None:
    settings = run.manifest.get("settings") or {}
    if settings.get("plain_dtype") is None:
        return None
    ratio = settings["plain_ratio"]
    return (
        f"Caution: plain decoding by itself is about {ratio:.2f} times as fast in "
        f"{settings['plain_dtype']} here; against that, speed-ups are {1 / ratio:.2f} of those shown."
    )


def hardware_line(run: RunRecords) -> str:
    target, draft = run.manifest["models"]["target"], run.manifest["models"]["draft"]
    hardware = run.manifest["hardware"]
    names = " with ".join(dict.fromkeys((target["name"], draft["name"])))
    sizes = f"target {model_size(target)}, draft {model_size(draft)} parameters ({names})"
    place = hardware["gpu"] or f"{hardware['cpu']}, {hardware['threads']} threads"
    return f"{sizes}, {target['dtype']}, on {place}; treespec {run.manifest['treespec_version']}."


def model_size(model: Mapping[str, Any]) -> str:
    millions = model["parameters"] / 1e6
    return f"{millions:.3g} M" if millions < 999.5 else f"{millions / 1e3:.3g} B"


def tuning_prompts(candidates: Sequence[dict[str, Any]]) -> int | None:
    """Number of prompts used for tuning: that of the candidates that stayed to the end."""
    return max((entry["prompts"] for entry in candidates if "prompts" in entry), default=None)


def _baselines(summary: SamplingSummary) -> str:
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


def _warmup_and_repeats(run: RunRecords) -> Iterator[str]:
    warmup = run.manifest.get("warmup") or {}
    prompts, repeats = warmup.get("prompts"), run.manifest["config"].get("repeats") or 1
    if prompts:
        yield (
            f"Warm-up: {prompts} prompt{'s' * (prompts > 1)} by every method, {warmup['seconds']:.0f} s, "
            "not measured."
        )
    if repeats > 1:
        yield (
            f"Each prompt was run {repeats} times, with other seeds; its repeats are added up and count as "
            "one sample."
        )


def _divergences(run: RunRecords, summary: SamplingSummary) -> Iterator[str]:
    """Sentences on greedy outputs that differ from plain decoding, through rounding or through a bug."""

    def names(rows: Sequence[MethodSummary]) -> str:
        return ", ".join(row.method.name for row in rows)

    limit = f"at most {near_tie_margin(run.target_dtype):.2g} in {run.target_dtype}"
    compared = [row for row in summary.rows if row.equality.compared]
    rounding = [row for row in compared if row.equality.rounding and not row.equality.bugs]
    if rounding:
        margins = [d.margin or 0.0 for row in rounding for d in row.equality.rounding]
        yield (
            f"{summary.sampling}: {names(rounding)} departs from plain decoding by rounding: where the "
            "texts part, the target's logits of the two tokens differ by up to "
            f"{max(map(abs, margins)):.2g} ({limit})."
        )
    if bugs := [row for row in compared if row.equality.bugs]:
        yield (
            f"{summary.sampling}: ! {names(bugs)} departs from plain decoding by more than rounding "
            f"explains ({limit}), a bug."
        )


def _tuning(run: RunRecords) -> Iterator[str]:
    for method, settings in run.manifest.get("tuning", {}).get("assisted", {}).items():
        prompts = max(
            (tuning_prompts(tuned["table"]) or 0 for tuned in settings.values()), default=0
        )
        if prompts:
            chosen = "; ".join(
                f"{sampling}: length {tuned['chosen']['length']}, threshold "
                f"{tuned['chosen']['threshold']:g}"
                for sampling, tuned in settings.items()
            )
            yield f"{method}: tuned on {prompts} other prompt{'s' * (prompts > 1)} to {chosen}."
