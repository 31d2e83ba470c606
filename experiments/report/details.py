"""What the result of a run rests on: equality, samples, tuning, errors, machine and config."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import polars as pl

from treespec.experiments.records.loading import RunRecords
from treespec.experiments.report.equality import Divergence, near_tie_margin
from treespec.experiments.report.results import model_size, tuning_prompts
from treespec.experiments.report.run import Run
from treespec.experiments.report.summary import MethodSummary, SamplingSummary
from treespec.experiments.report.table import NONE, Column, Finding, Table

__all__ = ["config", "equality", "errors", "facts", "samples", "tunings"]

MOST_ROWS = 200
"""Rows of a table of single prompts; the rest is only counted."""

MOST_LETTERS = 900
"""Characters of a text that is shown."""

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


@dataclass(frozen=True)
class Equalities:
    """Whether greedy outputs equal plain decoding.

    Args:
        equal: outputs that do.
        compared: outputs of both.
        table: the places where one does not, the first of them.
        splits: how many there are.
        limit: gap up to which one counts as rounding.
        dtype: of the target.
    """

    equal: int
    compared: int
    table: Table
    splits: int
    limit: float
    dtype: str


def equality(run: Run) -> Equalities | None:
    """Whether greedy outputs equal plain decoding, and every place where one does not."""
    compared = [(s, row) for s in run.summaries for row in s.rows if row.equality.compared]
    if not compared:
        return None
    splits = [(row, s.sampling, d) for s, row in compared for d in row.equality.divergences]
    return Equalities(
        sum(row.equality.equal for _, row in compared),
        sum(row.equality.compared for _, row in compared),
        Table("", EQUALITY_COLUMNS, splits[:MOST_ROWS], colour=lambda row: row[0].method.group),
        len(splits),
        near_tie_margin(run),
        run.target_dtype,
    )


@dataclass(frozen=True)
class Text:
    """A text that is shown.

    Args:
        name: of the methods that wrote it.
        same: its beginning, which all texts beside it share.
        differs: what follows.
        cut: whether there is more.
    """

    name: str
    same: str
    differs: str
    cut: bool


@dataclass(frozen=True)
class Sample:
    """One prompt under a sampling setting, continued by several methods.

    Args:
        sampling: name of the setting.
        prompt: its id.
        before: its text, or the end of it; empty if the run did not keep it.
        said: how the texts compare.
        texts: the continuations.
    """

    sampling: str
    prompt: str
    before: str
    said: str
    texts: tuple[Text, ...]


def samples(run: Run) -> list[Sample]:
    """One prompt continued by plain decoding, the fastest chain and the fastest tree, side by side."""
    return [
        _sample(run, s, run.measurements[s.sampling].prompts[0]) for s in run.summaries if s.prompts
    ]


def _sample(run: RunRecords, summary: SamplingSummary, prompt: int) -> Sample:
    rows = run.prompts.filter(pl.col("sampling") == summary.sampling, pl.col("prompt") == prompt)
    texts = dict(zip(rows["method"], rows["text"], strict=True))
    shown = [
        name
        for groups in (("plain",), ("chain", "assisted"), ("tree",))
        if (name := _fastest(summary, groups))
    ]
    same = [name for name in shown if texts[name] == texts[shown[0]]]
    shown = [name for name in shown if name not in same[1:]]
    letters = zip(*(texts[name] for name in shown), strict=False)
    alike = sum(1 for _ in takewhile(lambda place: len(set(place)) == 1, letters))
    settings = {entry["name"]: entry for entry in run.manifest["samplings"]}
    if settings[summary.sampling].get("temperature") != 0:
        alike = MOST_LETTERS  # sampled texts may differ everywhere
        said = "drawn anew by each method: different texts, the same law"
    else:
        said = "the same text" if len(shown) == 1 else "what differs is marked"
    return Sample(
        summary.sampling,
        str(rows["prompt_id"][0]),
        _end(run.prompt_text(prompt)),
        said,
        tuple(
            Text(
                ", ".join(same) if name == shown[0] else name,
                texts[name][: min(alike, MOST_LETTERS)],
                texts[name][alike:MOST_LETTERS],
                len(texts[name]) > MOST_LETTERS,
            )
            for name in shown
        ),
    )


def _end(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"…{text[-MOST_LETTERS:]}"


def _fastest(summary: SamplingSummary, groups: Sequence[str]) -> str | None:
    rows = [row for row in summary.rows if row.method.group in groups and row.method.lossless]
    best = max(rows, key=lambda row: row.tokens_per_second.estimate, default=None)
    return None if best is None else best.method.name


def tunings(run: RunRecords) -> list[Table]:
    """How assisted generation was tuned: the candidates, or why each of them failed."""
    return [
        _tuning(f"{method}, {sampling}", tuned)
        for method, settings in run.manifest.get("tuning", {}).get("assisted", {}).items()
        for sampling, tuned in settings.items()
    ]


def _tuning(subject: str, tuned: Mapping[str, Any]) -> Table:
    chosen = tuned["chosen"]
    title = f"{subject}: length {chosen['length']}, confidence threshold {chosen['threshold']:g}"
    if used := tuning_prompts(tuned["table"]):
        title += f" (tuned on {used} prompt{'s' * (used > 1)})"
    columns = [
        Column[Mapping]("length", lambda entry: str(entry["length"])),
        Column[Mapping]("threshold", lambda entry: f"{entry['threshold']:g}"),
    ]
    if tuned["table"]:
        columns += [
            Column("tokens per second", lambda entry: f"{entry['tokens_per_second']:.1f}"),
            Column("prompts", lambda entry: str(entry.get("prompts", NONE))),
            Column("", lambda entry: "chosen" * _is(entry, chosen), left=True),
        ]
        return Table(subject, columns, tuned["table"], title=title)
    failed = tuned.get("errors") or []
    columns.append(Column("error", lambda entry: str(entry["error"]), left=True))
    said = "Every candidate failed." if failed else "Nothing to choose."
    return Table(subject, columns, failed, title=title, said=said)


def _is(entry: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    return all(entry[key] == chosen[key] for key in ("length", "threshold"))


def errors(run: RunRecords) -> Finding | None:
    """Every prompt on which a method failed, in turns or by itself."""
    alone = pl.format("by itself, under the meters: {}", pl.col("alone_error"))
    failed = run.prompts.with_columns(pl.coalesce("error", alone))
    rows = failed.filter(failed["error"].is_not_null()).to_dicts()

    def column(head: str, name: str) -> Column[dict[str, Any]]:
        return Column(head, lambda row: str(row[name]), left=True)

    columns = [
        column(name.partition("_")[0], name)
        for name in ("method", "sampling", "prompt_id", "error")
    ]
    table = Table("", columns, rows[:MOST_ROWS], said=f"{len(rows)} in all.")
    return Finding("Errors", [table]) if rows else None


def facts(run: RunRecords) -> dict[str, str]:
    """Machine, versions, and when."""
    m = run.manifest
    hardware, warmup = m["hardware"], m.get("warmup") or {}
    return {
        "machine": f"{hardware['machine']}, {hardware['cpu']}, {hardware['cores']} cores, "
        f"{_count(hardware['threads'], 'thread')}, {hardware['memory_gib']:g} GiB",
        "GPU": hardware["gpu"] or "none",
        **{f"{role} model": _model(m["models"][role]) for role in ("target", "draft")},
        **_drafting(m["models"]),
        "versions": ", ".join(
            f"{name} {version}" for name, version in m["versions"].items() if version
        ),
        "treespec": f"{m['treespec_version']}, git {m['git_hash'] or 'unknown'}",
        "seed": m["seed"],
        "warm-up": f"{_count(warmup['prompts'], 'prompt')}, {warmup['seconds']:.1f} s, not measured"
        if warmup
        else "none",
        "started": m["created"],
        "finished": m["finished"] or "not yet",
        "sessions": str(len(m.get("sessions") or [1])),
        "config hash": m["config_hash"][:16],
    }


def config(run: RunRecords) -> str:
    """The whole config as YAML."""
    import yaml

    return yaml.safe_dump(run.manifest["config"], sort_keys=False, allow_unicode=True)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _drafting(models: Mapping[str, Any]) -> dict[str, str]:
    """What methods draft with besides the pair's draft model: its own models, and parts of the target."""
    others = {
        f"draft model {name}": _model(model) for name, model in models.get("others", {}).items()
    }
    parts = {
        f"part of the target {i}": f"{name}, {part['passes']['kind']} passes"
        if part["passes"].get("asked") is None
        else name + _passes(part["passes"])
        for i, (name, part) in enumerate(models.get("parts", {}).items(), start=1)
    }
    return others | parts


def _model(model: Mapping[str, Any]) -> str:
    said = f"{model['name']}, {model_size(model)} parameters, {model['architecture']}, {model['dtype']}"
    return said + _passes(model.get("passes") or {})


def _passes(passes: Mapping[str, Any]) -> str:
    """How its passes were run, where anything was asked for."""
    if passes.get("asked") is None:
        return ""
    said = f", {passes['kind']} passes"
    if passes["kind"] == "compiled":
        packed = passes["packed_bytes"] / 2**20
        said += f" (compiled in {passes['seconds']:.0f} s, not measured"
        copies = f"copies of weights: {packed:.0f} MiB for all methods"
        said += f"; {copies if packed else 'no copies of weights besides'}"
        said += f"; {unpacked})" if (unpacked := passes.get("unpacked")) else ")"
    return said + (f" ({passes['why']})" if passes.get("why") else "")
