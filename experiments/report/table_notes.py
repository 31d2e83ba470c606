"""Footnotes of the table that need more than a sentence: divergences and tuning."""

from collections.abc import Iterable, Sequence
from typing import Any

from treespec.experiments.report.equality import Divergence, near_tie_margin, target_dtype
from treespec.experiments.report.run import Run
from treespec.experiments.report.summary import MethodSummary, SamplingSummary

__all__ = ["divergence_notes", "tuning_notes", "tuning_prompts"]


def divergence_notes(run: Run, summary: SamplingSummary) -> list[str]:
    """Greedy outputs that differ from those of `generate`: those that rounding explains, and the others."""
    compared = [row for row in summary.rows if row.equality.compared]
    rounding = [row for row in compared if row.equality.rounding and not row.equality.bugs]
    bugs = [row for row in compared if row.equality.bugs]
    limit = f"{near_tie_margin(run):.2g} in {target_dtype(run)}"
    notes = []
    if rounding:
        others = "; the others equal everywhere" * (len(rounding) + len(bugs) < len(compared))
        gap = _gap(d for row in rounding for d in row.equality.rounding)
        notes.append(
            f"{summary.sampling}: {_counts(rounding)}{others}. {gap}: rounding (at most {limit})."
        )
    if bugs:
        gap = _gap(d for row in bugs for d in row.equality.bugs)
        notes.append(
            f"{summary.sampling}: ! {_counts(bugs)}. {gap}: more than rounding explains (at most {limit}), "
            "a bug."
        )
    return notes


def _gap(divergences: Iterable[Divergence]) -> str:
    """The largest gap, in words; texts that differ only in length have none."""
    margins = [d.margin for d in divergences]
    known = [margin for margin in margins if margin is not None]
    length = "one text ends before the other without a differing token"
    if not known:
        return f"Where they part, {length}"
    gap = f"the target's logits of the two tokens differ by up to {max(map(abs, known)):.2g}"
    return f"Where they part, {gap}{f', or {length}' * (None in margins)}"


def tuning_notes(run: Run) -> list[str]:
    """What assisted generation was tuned to, and on how many prompts; one line per method."""
    notes = []
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
            other = f"{prompts} other prompt{'s' * (prompts > 1)}"
            notes.append(f"{method}: tuned on {other} to {chosen}.")
    return notes


def tuning_prompts(table: Sequence[dict[str, Any]]) -> int | None:
    """How many prompts tuning used: those of the candidates that stayed to the end."""
    return max((entry["prompts"] for entry in table if "prompts" in entry), default=None)


def _counts(rows: Sequence[MethodSummary]) -> str:
    """`11/12 equal: chain 4, 2-ary 3; 10/12: chain 6`, the most equal first."""
    groups: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: -row.equality.equal / row.equality.compared):
        groups.setdefault(f"{row.equality.equal}/{row.equality.compared}", []).append(
            row.method.name
        )
    texts = [f"{count}: {', '.join(names)}" for count, names in groups.items()]
    return "; ".join([texts[0].replace(":", " equal:", 1), *texts[1:]])
