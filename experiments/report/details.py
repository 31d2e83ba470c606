"""Details behind the results of a run: equality, samples, tuning, errors, machine and config."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import polars as pl

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.equality import Divergence, near_tie_margin
from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.results import model_size, tuning_prompts
from treespec.experiments.report.summary import MethodSummary, SamplingSummary
from treespec.experiments.report.table import NONE, Column, Finding, Table, keyed

MOST_ROWS = 200

MOST_LETTERS = 900

_Split = tuple[MethodSummary, str, Divergence]

EQUALITY_COLUMNS = (
    Column[_Split]("method", lambda row: row[0].method.name, left=True),
    Column[_Split]("sampling", lambda row: row[1], left=True),
    Column[_Split]("prompt", lambda row: row[2].prompt, left=True),
    Column[_Split]("first differing token", lambda row: str(row[2].position)),
    Column[_Split](
        "gap, logits",
        lambda row: "lengths differ" if row[2].margin is None else f"{row[2].margin:.4g}",
    ),
    Column[_Split](
        "",
        lambda row: "near-tie: rounding" if row[2].near_tie else "not rounding: a bug",
        left=True,
    ),
)


def equality(summaries: Sequence[SamplingSummary], dtype: str) -> Finding | None:
    compared = [(s, row) for s in summaries for row in s.rows if row.equality.compared]
    if not compared:
        return None
    splits = [(row, s.sampling, d) for s, row in compared for d in row.equality.divergences]
    said = (
        f"{sum(row.equality.equal for _, row in compared)} of "
        f"{sum(row.equality.compared for _, row in compared)} greedy outputs equal those of transformers' "
        "generate, id by id."
    )
    if len(splits) > MOST_ROWS:
        said += f" The first {MOST_ROWS} of {len(splits)} differences are shown."
    note = (
        "The gap is the margin in logits by which the target, in a plain pass where the texts part, "
        f"preferred the token of generate. Up to {near_tie_margin(dtype):.2g} ({dtype}) it counts as "
        "rounding: a pass over a tree sums in another order than a pass over one token."
    )
    table = Table(
        "", EQUALITY_COLUMNS, splits[:MOST_ROWS], said=said, colour=lambda row: row[0].method.group
    )
    title = "Equality with plain decoding at temperature 0"
    return Finding(title, [table], [note] if splits else [])


def samples(run: RunRecords, measurements: Mapping[str, Measurements]) -> list[dict[str, Any]]:
    """One prompt per sampling setting, continued by plain decoding and by the fastest chain and tree."""
    return [_sample(run, data) for data in measurements.values() if data.prompts]


def _sample(run: RunRecords, data: Measurements) -> dict[str, Any]:
    rows = run.prompts.filter(sampling=data.sampling, prompt=data.prompts[0])
    texts = dict(zip(rows["method"], rows["text"], strict=True))
    shown = [
        name
        for groups in (("plain",), ("chain", "assisted"), ("tree",))
        if (name := data.fastest(data.named(*groups)))
    ]
    same_as_first = [name for name in shown if texts[name] == texts[shown[0]]]
    shown = [name for name in shown if name not in same_as_first[1:]]
    letters = zip(*(texts[name] for name in shown), strict=False)
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, letters))
    settings = {entry["name"]: entry for entry in run.manifest["samplings"]}
    if settings[data.sampling].get("temperature") != 0:
        common = MOST_LETTERS  # sampled texts may differ everywhere: mark nothing
        said = "sampled independently by each method: different texts from the same distribution"
    else:
        said = "the same text" if len(shown) == 1 else "differences are marked"
    before = run.prompt_text(data.prompts[0])
    return {
        "sampling": data.sampling,
        "prompt": str(rows["prompt_id"][0]),
        "before": before if len(before) <= MOST_LETTERS else f"…{before[-MOST_LETTERS:]}",
        "said": said,
        "texts": [
            {
                "name": run.short(", ".join(same_as_first) if name == shown[0] else name),
                "same": texts[name][: min(common, MOST_LETTERS)],
                "differs": texts[name][common:MOST_LETTERS],
                "cut": len(texts[name]) > MOST_LETTERS,
            }
            for name in shown
        ],
    }


def tuning(run: RunRecords) -> Finding | None:
    tables = [
        _tuning(f"{method}, {sampling}", tuned)
        for method, settings in run.manifest.get("tuning", {}).get("assisted", {}).items()
        for sampling, tuned in settings.items()
    ]
    note = (
        "Tuned by tokens per second on prompts that are not measured. Candidates that fall far behind are "
        "dropped, so they see fewer prompts than the others."
    )
    return Finding("Tuning of assisted generation", tables, [note]) if tables else None


def _tuning(subject: str, tuned: Mapping[str, Any]) -> Table:
    chosen = tuned["chosen"]
    title = f"{subject}: length {chosen['length']}, confidence threshold {chosen['threshold']:g}"
    if used := tuning_prompts(tuned["table"]):
        title += f" (tuned on {used} prompt{'s' * (used > 1)})"
    columns = [
        keyed("length", "length"),
        keyed("threshold", "threshold", "g"),
    ]
    if tuned["table"]:
        columns += [
            keyed("tokens per second", "tokens_per_second", ".1f"),
            Column("prompts", lambda entry: str(entry.get("prompts", NONE))),
            Column(
                "",
                lambda entry: (
                    "chosen" * all(entry[k] == chosen[k] for k in ("length", "threshold"))
                ),
                left=True,
            ),
        ]
        reason = tuned.get("totals_because")
        said = f"{reason[0].upper()}{reason[1:]}." if reason else ""
        return Table(subject, columns, tuned["table"], title, said=said)
    failed = tuned.get("errors") or []
    columns.append(keyed("error", "error", left=True))
    said = "Every candidate failed." if failed else "There was nothing to tune."
    return Table(subject, columns, failed, title, said=said)


def errors(run: RunRecords) -> Finding | None:
    alone = pl.format("decoding alone, with meters: {}", pl.col("alone_error"))
    fresh = pl.format("fresh drafts: {}", pl.col("fresh_error"))
    failed = run.prompts.with_columns(pl.coalesce("error", alone, fresh))
    rows = failed.filter(failed["error"].is_not_null()).to_dicts()
    columns = [
        keyed(name.partition("_")[0], name, left=True)
        for name in ("method", "sampling", "prompt_id", "error")
    ]
    table = Table("", columns, rows[:MOST_ROWS], said=f"{len(rows)} in all.")
    return Finding("Errors", [table]) if rows else None


def facts(run: RunRecords) -> dict[str, str]:
    m = run.manifest
    hardware, warmup = m["hardware"], m.get("warmup") or {}
    return {
        "machine": f"{hardware['machine']}, {hardware['cpu']}, {hardware['cores']} cores, "
        f"{hardware['threads']} thread{'s' * (hardware['threads'] != 1)}, {hardware['memory_gib']:g} GiB",
        "GPU": hardware["gpu"] or "none",
        **{f"{role} model": _model(m["models"][role]) for role in ("target", "draft")},
        **_drafting(m["models"]),
        "versions": ", ".join(
            f"{name} {version}" for name, version in m["versions"].items() if version
        ),
        "treespec": f"{m['treespec_version']}, git {m['git_hash'] or 'unknown'}",
        "seed": m["seed"],
        "warm-up": f"{warmup['prompts']} prompt{'s' * (warmup['prompts'] != 1)}, "
        f"{warmup['seconds']:.1f} s, not measured"
        if warmup
        else "none",
        "started": m["created"],
        "finished": m["finished"] or "not yet",
        "sessions": str(len(m.get("sessions") or [1])),
        "config hash": m["config_hash"][:16],
    }


def config(run: RunRecords) -> str:
    import yaml

    return yaml.safe_dump(plain_data(run.manifest["config"]), sort_keys=False, allow_unicode=True)


def _drafting(models: Mapping[str, Any]) -> dict[str, str]:
    """The draft sources besides the draft model of the pair: models, parts of the target, and heads."""
    further_models = {
        f"draft model {name}": _model(model) for name, model in models.get("others", {}).items()
    }
    target_parts = {
        f"part of the target {i}": f"{name}, {part['passes']['kind']} passes"
        if part["passes"].get("asked") is None
        else name + _passes(part["passes"])
        for i, (name, part) in enumerate(models.get("parts", {}).items(), start=1)
    }
    heads = {f"head {name}": head["contract"] for name, head in models.get("heads", {}).items()}
    return further_models | target_parts | heads


def _model(model: Mapping[str, Any]) -> str:
    text = f"{model['name']}, {model_size(model)} parameters, {model['architecture']}, {model['dtype']}"
    return text + _passes(model.get("passes") or {})


def _passes(passes: Mapping[str, Any]) -> str:
    if passes.get("asked") is None:
        return ""
    text = f", {passes['kind']} passes"
    if passes["kind"] == "compiled":
        packed = passes["packed_bytes"] / 2**20
        text += f" (compiled in {passes['seconds']:.0f} s, not measured"
        copies = f"copies of weights: {packed:.0f} MiB for all methods"
        text += f"; {copies if packed else 'no additional copies of weights'}"
        text += f"; {unpacked})" if (unpacked := passes.get("unpacked")) else ")"
    elif uncompiled := passes.get("uncompiled"):
        text += f" (layers not compiled: {uncompiled})"
    return text + (f" ({passes['why']})" if passes.get("why") else "")
