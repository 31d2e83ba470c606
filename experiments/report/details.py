"""The sections of the report that show what the result rests on, each from data to HTML.

Everything that a model or a user wrote is escaped.
"""

from collections.abc import Sequence
from html import escape
from itertools import takewhile
from typing import Any

from treespec.experiments.report.equality import near_tie_margin, target_dtype
from treespec.experiments.report.html import name_html, section, table
from treespec.experiments.report.measurements import measure
from treespec.experiments.report.run import Run
from treespec.experiments.report.summary import SamplingSummary
from treespec.experiments.report.table_notes import tuning_prompts
from treespec.experiments.report.table_text import model_size

__all__ = [
    "environment_section",
    "equality_section",
    "error_section",
    "samples_section",
    "tuning_section",
]

MOST_ROWS = 200
"""Rows of a table of single prompts; what is more is counted."""


def equality_section(run: Run, summaries: Sequence[SamplingSummary]) -> str:
    """Whether greedy outputs equal plain decoding, and every place where one does not."""
    compared = [(s, row) for s in summaries for row in s.rows if row.equality.compared]
    if not compared:
        return ""
    equal = sum(row.equality.equal for _, row in compared)
    total = sum(row.equality.compared for _, row in compared)
    text = (
        f"<p>{equal} of {total} greedy outputs equal those of transformers' <code>generate</code>, "
        "id by id.</p>"
    )
    rows = [
        [
            name_html(row),
            escape(s.sampling),
            escape(d.prompt),
            str(d.position),
            "lengths differ" if d.margin is None else f"{d.margin:.4g}",
            "near-tie: rounding" if d.near_tie else "not rounding: a bug",
        ]
        for s, row in compared
        for d in row.equality.divergences
    ]
    if rows:
        heads = ["method", "sampling", "prompt", "first differing token", "gap, logits", ""]
        if len(rows) > MOST_ROWS:
            text += f"<p>The first {MOST_ROWS} of {len(rows)}:</p>"
        text += table(heads, rows[:MOST_ROWS], text=(1, 2, 5)) + (
            f'<p class="muted">The gap is by how many logits the target, in a plain pass where the texts '
            f"part, preferred the token of <code>generate</code>. Up to {near_tie_margin(run):.2g} "
            f"({escape(target_dtype(run))}) it counts as rounding: a tree's pass adds in another order "
            "than a pass over one token.</p>"
        )
    return section("Equality with plain decoding at temperature 0", text)


def samples_section(run: Run, summaries: Sequence[SamplingSummary], length: int = 900) -> str:
    """One prompt continued by plain decoding, the fastest chain and the fastest tree, side by side."""
    import polars as pl

    parts = []
    for s in summaries:
        compared = measure(run, s.sampling).prompts
        if not compared:
            continue
        rows = run.prompts.filter(pl.col("sampling") == s.sampling, pl.col("prompt") == compared[0])
        texts = dict(zip(rows["method"], rows["text"], strict=True))
        shown = [
            name
            for group in (("plain",), ("chain", "assisted"), ("tree",))
            if (name := _fastest(s, group))
        ]
        same = [name for name in shown if texts[name] == texts[shown[0]]]
        shown = [name for name in shown if name not in same[1:]]
        heads = {name: name for name in shown} | {shown[0]: ", ".join(same)}
        letters = zip(*(texts[name] for name in shown), strict=False)
        alike = sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, letters))
        greedy = any(row.equality.compared for row in s.rows)
        if not greedy:  # sampled texts differ everywhere, by right
            alike = length
        columns = "".join(
            f"<div><h3>{escape(heads[name])}</h3>"
            f"<pre>{_marked(texts[name], alike, length)}</pre></div>"
            for name in shown
        )
        if greedy:
            said = "the same text" if len(shown) == 1 else "what differs is marked"
        else:
            said = "drawn anew by each method: other texts, the same law"
        parts.append(
            f"<h3>{escape(s.sampling)}, {escape(str(rows['prompt_id'][0]))} <small>({said})</small></h3>"
            f'<div class="texts">{columns}</div>'
        )
    return section("One prompt, continued", "".join(parts)) if parts else ""


def tuning_section(run: Run) -> str:
    """How assisted generation was tuned."""
    parts = []
    for method, settings in run.manifest.get("tuning", {}).get("assisted", {}).items():
        for sampling, tuned in settings.items():
            chosen = tuned["chosen"]
            pick = (chosen["length"], chosen["threshold"])
            rows = [
                [
                    str(entry["length"]),
                    f"{entry['threshold']:g}",
                    f"{entry['tokens_per_second']:.1f}",
                    str(entry.get("prompts", "–")),
                    "chosen" if (entry["length"], entry["threshold"]) == pick else "",
                ]
                for entry in tuned["table"]
            ]
            title = f"{method}, {sampling}: length {pick[0]}, confidence threshold {pick[1]:g}"
            body = (
                table(["length", "threshold", "tokens per second", "prompts", ""], rows, text=(4,))
                if rows
                else _untuned(tuned)
            )
            if used := tuning_prompts(tuned["table"]):
                title += f" (tuned on {used} prompt{'s' * (used > 1)})"
            parts.append(f"<details><summary>{escape(title)}</summary>{body}</details>")
    note = (
        '<p class="muted">Tuned by tokens per second on prompts that are not measured. A candidate that '
        "falls far behind is dropped, so that it saw fewer prompts than the others.</p>"
    )
    return section("Tuning of assisted generation", note + "".join(parts)) if parts else ""


def error_section(run: Run) -> str:
    """Every prompt on which a method failed."""
    rows = [
        [escape(str(row[column])) for column in ("method", "sampling", "prompt_id", "error")]
        for row in run.prompts.filter(run.prompts["error"].is_not_null()).iter_rows(named=True)
    ]
    if not rows:
        return ""
    heads = ["method", "sampling", "prompt", "error"]
    return section(
        "Errors", table(heads, rows[:MOST_ROWS], text=(1, 2, 3)) + f"<p>{len(rows)} in all.</p>"
    )


def environment_section(run: Run) -> str:
    """Machine, versions, and how to run this again."""
    import yaml

    m = run.manifest
    hardware, warmup = m["hardware"], m.get("warmup") or {}
    facts = {
        "machine": f"{hardware['machine']}, {hardware['cpu']}, {hardware['cores']} cores, "
        f"{_count(hardware['threads'], 'thread')}, {hardware['memory_gib']:g} GiB",
        "GPU": hardware["gpu"] or "none",
        **{f"{role} model": _model(m["models"][role]) for role in ("target", "draft")},
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
        "sessions": len(m.get("sessions") or [1]),
        "config hash": m["config_hash"][:16],
    }
    rows = [[escape(name), escape(str(value))] for name, value in facts.items()]
    config = yaml.safe_dump(m["config"], sort_keys=False, allow_unicode=True)
    return section(
        "Environment, and how to run this again",
        table(["", ""], rows, text=(1,), head=False)
        + "<p>Save the config as <code>config.yaml</code>, then <code>treespec run config.yaml</code>.</p>"
        + f"<details><summary>The whole config</summary><pre>{escape(config)}</pre></details>",
    )


def _fastest(summary: SamplingSummary, groups: Sequence[str]) -> str | None:
    rows = [row for row in summary.rows if row.method.group in groups and row.method.lossless]
    best = max(rows, key=lambda row: row.tokens_per_second.estimate, default=None)
    return None if best is None else best.method.name


def _marked(text: str, same: int, length: int) -> str:
    """The text, cut to `length`, with what follows its first `same` characters marked."""
    cut = text[:length]
    rest = f"<mark>{escape(cut[same:])}</mark>" if cut[same:] else ""
    return escape(cut[:same]) + rest + (" …" if len(text) > length else "")


def _untuned(tuned: dict[str, Any]) -> str:
    """Why there is no table of candidates."""
    errors = tuned.get("errors") or []
    if not errors:
        return "<p>Nothing to choose.</p>"
    rows = [[str(e["length"]), f"{e['threshold']:g}", escape(str(e["error"]))] for e in errors]
    return "<p>Every candidate failed.</p>" + table(
        ["length", "threshold", "error"], rows, text=(2,)
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _model(model: dict[str, Any]) -> str:
    return f"{model['name']}, {model_size(model)} parameters, {model['architecture']}, {model['dtype']}"
