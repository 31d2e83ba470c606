"""What is said around the result table of a run: settings, hardware, and footnotes needed to read it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from treespec.experiments.config.model_draft import NO_DRAFT
from treespec.experiments.config.samplings import reads_path
from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.equality import near_tie_margin
from treespec.experiments.report.summary import MethodSummary, SamplingSummary, metric_names
from treespec.models.pass_kinds import in_words


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
    if run.batch > 1:
        notes.append(
            f"Batches of {run.batch}: tok/s counts the tokens of all texts of a batch, tok/s a text those "
            "of one text in the rounds that it took part in. Times are those of a round, a pass of the "
            "target over nodes of all texts that have not ended. Wasted: nodes of a pass that are neither "
            "a root nor kept."
        )
    speedups = [row.speedup for s in summaries for row in s.rows if row.speedup]
    widths = [s.half_width for s in speedups if s.bounded and s.half_width > 0]
    if widths:
        notes.append(
            f"Intervals: 95 %, paired over {'batches' if run.batch > 1 else 'prompts'}; half-widths of "
            f"the speedups (column ±) {min(widths):.2f} to {max(widths):.2f}. Speeds exclude the prefill."
        )
    elif not speedups:
        notes.append(
            "Speeds exclude the prefill. There is no plain decoding and therefore no speedup: add "
            "{kind: generate} and {kind: plain} to the methods."
        )
    else:
        notes.append("Speeds exclude the prefill. With so few prompts there are no intervals.")
    if along := [s["name"] for s in run.manifest.get("samplings") or () if reads_path(s)]:
        notes.append(
            f"Under {'; '.join(along)}, logits are processed along the path to each node that is visited: "
            "acceptance runs rule by rule, not in a kernel."
        )
    if any(row.among_fastest for s in summaries for row in s.rows):
        notes.append(
            "* and bold: no lossless method is shown to be faster, by 95 % intervals that hold jointly for "
            "all pairs of methods."
        )
    if any(row.off_target is not None for s in summaries for row in s.rows):
        notes.append(
            "off target: the share of tokens that must differ from what the target would have chosen, that "
            "is, the mean total variation between the law of a token and the target's row, over the "
            "visited rows. For typical acceptance of drawn children it is an upper bound."
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


def conditions(run: RunRecords) -> str:
    """What the verdict of a run depends on: models and how they run, machine, prompts and temperatures."""
    models, config = run.manifest["models"], run.manifest["config"]
    target, draft, hardware = models["target"], models["draft"], run.manifest["hardware"]
    drafts = {} if draft["name"] == NO_DRAFT else {"draft": draft}
    pair = [f"{role} {model_size(m)}" for role, m in {"target": target, **drafts}.items()]
    names = " with ".join(dict.fromkeys(m["name"] for m in (target, *drafts.values())))
    others = {**drafts, **models.get("others", {}), **models.get("parts", {})}
    ways = {
        role: model["passes"]["kind"]
        for role, model in {"target": target, **others}.items()
        if (model.get("passes") or {}).get("kind")
    }
    apart, passes = "", ""
    if len(set(ways.values())) > 1:
        each = ", ".join(f"{role} {way}" for role, way in ways.items())
        apart = f"Target and drafts run in different ways: {each}. "
    elif ways:
        passes = f", {next(iter(ways.values()))} passes"
    attention = f", {target['attention']} attention" if target.get("attention") else ""
    threads = hardware["threads"]
    place = hardware["gpu"] or f"{hardware['cpu']}, {threads} thread{'s' * (threads != 1)}"
    prompts, count = config.get("prompts") or {}, run.prompts["prompt"].n_unique()
    kind = prompts.get("path") or prompts.get("kind")
    categories = sorted(set(run.prompts["category"].drop_nulls()))
    return (
        f"{apart}{', '.join(pair)} parameters ({names}), {target['dtype']}{passes}{attention}, on {place}; "
        f"{count} prompt{'s' * (count != 1)}"
        + (f" in batches of {run.batch}" if run.batch > 1 else "")
        + (f" of {kind}" if kind else "")
        + (f" ({', '.join(categories)})" if categories else "")
        + f"; {', '.join(run.samplings)}; treespec {run.manifest['treespec_version']}."
    )


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
