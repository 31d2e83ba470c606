"""What `treespec check-lossless` prints and writes: tables, verdicts, and what they mean."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from treespec.experiments.cli.json import plain_data
from treespec.experiments.config.files import require_own
from treespec.experiments.config.schema import SamplingConfig
from treespec.experiments.lossless.check import Check
from treespec.experiments.lossless.greedy import GreedyCheck, Split, near_tie_limit
from treespec.experiments.lossless.law import LawCheck
from treespec.experiments.records.manifest import config_data, environment, now
from treespec.search.whole_file import write_whole

__all__ = ["WIDTH", "check_data", "print_check", "require_check", "verdict", "write_check"]

WIDTH = 118
SPLITS_SHOWN = 6
NONE = "–"

Decode = Callable[[list[int]], str]


def print_check(check: Check, console: Console) -> None:
    """Print the tables, the divergences and the verdict."""
    text_of = check.text_of
    width = min(WIDTH, console.width)

    def say(text: str, style: str | None = None) -> None:
        console.print(escape(text), width=width, style=style, highlight=False)

    for sampling in dict.fromkeys(row.sampling for row in check.greedy):
        rows = [row for row in check.greedy if row.sampling == sampling]
        console.print(_greedy_table(sampling, rows), width=width)
        splits = [(row, s) for row in rows for s in row.splits]
        for row, place in splits[:SPLITS_SHOWN]:
            say(f"{row.method}: {_split_text(place, text_of)}")
        if len(splits) > SPLITS_SHOWN:
            say(f"... and {len(splits) - SPLITS_SHOWN} more")
        say(_near_tie_note(check, [place for _, place in splits]), "dim")
        console.print()
    for sampling in dict.fromkeys(row.sampling for row in check.laws):
        rows = [row for row in check.laws if row.sampling == sampling]
        console.print(_law_table(check, sampling, rows), width=width)
        for row in rows:
            if not row.comparison.passed and row.comparison.largest is not None:
                say(f"{row.method}: largest deviation: {_cell_text(row, text_of)}")
        console.print()
    for note in _notes(check):
        say(note, "dim")
    console.print()
    say(verdict(check), "bold red" if check.failed else "bold")


def verdict(check: Check) -> str:
    """The outcome in one sentence."""
    count = len(check.laws) + len(check.greedy)
    lossy = sum(not row.lossless for row in (*check.laws, *check.greedy))
    aside = f", of which {lossy} of rules that are lossy by design do not count" if lossy else ""
    if check.failed:
        names = ", ".join(f"{row.method} at {row.sampling}" for row in check.failed)
        return f"NOT LOSSLESS: {names}. There were {count} comparisons{aside}."
    return f"No loss was found: {count} comparisons{aside}."


def check_data(check: Check) -> dict[str, Any]:
    """Everything printed, with config, seed, code, versions and hardware, as plain data."""

    def row(entry: LawCheck | GreedyCheck) -> dict[str, Any]:
        more: dict[str, Any] = {"failed": entry.failed}
        if isinstance(entry, LawCheck):
            found = entry.comparison
            more |= {"p_value": found.p_value, "passed": found.passed}
        else:
            more |= {"near_ties": sum(s.near_tie for s in entry.splits)}
        return asdict(entry) | more

    return {
        "checked": now(),
        **environment(),
        "config": config_data(check.config),
        "seed": check.config.seed,
        "dtype": check.dtype,
        "false_alarm": check.false_alarm,
        "reference": "exact law" if check.exact else "samples of plain decoding",
        "tokens": check.tokens,
        "prompts": check.prompts,
        "passed": not check.failed,
        "laws": [row(entry) for entry in check.laws],
        "greedy": [row(entry) for entry in check.greedy],
    }


def write_check(check: Check, folder: Path) -> Path:
    """Write `check_data` as `check.json`; infinities, of something impossible that was seen, are null."""
    text = json.dumps(plain_data(check_data(check)), indent=1) + "\n"
    return write_whole(folder / "check.json", text)


def require_check(folder: Path) -> None:
    """Refuse a folder whose `check.json` is none of ours.

    Raises:
        ConfigError: naming it.
    """
    keys = ("checked", "false_alarm", "laws", "greedy", "passed")
    require_own(folder / "check.json", keys, "result of `treespec check-lossless`")


def _law_table(check: Check, sampling: str, rows: list[LawCheck]) -> Table:
    against = "the exact law" if check.exact else "samples"
    law = "law of the first token" if check.tokens == 1 else f"joint law of {check.tokens} tokens"
    table = _table(f"{sampling}: {law}, against {against} of plain decoding")
    table.add_column("method", overflow="fold", min_width=12)
    for head in ("rule", "samples", "p"):
        table.add_column(head, justify="left" if head == "rule" else "right", overflow="fold")
    for i in range(check.tokens):
        table.add_column(f"token {i + 1}\nchi²/degrees", justify="right")
    table.add_column("noticed\nfrom", justify="right")
    table.add_column("verdict", overflow="fold")
    for row in rows:
        found = row.comparison
        tests = [f"{t.statistic:.0f}/{t.degrees}" if t.degrees else NONE for t in found.positions]
        style = "red" if row.failed else None
        table.add_row(
            escape(row.method), row.rule, f"{found.samples:,}", f"{found.p_value:.2g}", *tests,
            f"{found.detectable:.3f}" if found.detectable < 1 else NONE, _law_verdict(row), style=style,
        )  # fmt: skip
    return table


def _law_verdict(row: LawCheck) -> str:
    if row.lossless:
        return "ok" if row.comparison.passed else "FAILED"
    return "lossy: not noticed" if row.comparison.passed else "lossy: measurable"


def _greedy_table(sampling: str, rows: list[GreedyCheck]) -> Table:
    table = _table(f"{sampling}: texts equal to those of plain greedy decoding, id by id")
    table.add_column("method", overflow="fold", min_width=12)
    table.add_column("rule")
    table.add_column("equal to\n`generate`", justify="right")
    table.add_column("equal to\nour plain loop", justify="right")
    table.add_column("explained by\nnear-ties", justify="right")
    table.add_column("verdict", overflow="fold")
    for row in rows:
        splits = row.splits
        ties = sum(s.near_tie for s in splits)
        if not splits:
            outcome = "ok"
        elif not row.lossless:
            outcome = "lossy: measurable"
        else:
            outcome = "FAILED" if row.failed else "ok: rounding"
        table.add_row(
            escape(row.method), row.rule,
            f"{row.compared - len(row.generate)}/{row.compared}",
            f"{row.compared - len(row.plain)}/{row.compared}",
            f"{ties}/{len(splits)}" if splits else NONE, outcome,
            style="red" if row.failed else None,
        )  # fmt: skip
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1),
        show_edge=False,
    )  # fmt: skip


def _split_text(place: Split, text_of: Decode) -> str:
    def shown(token: int | None) -> str:
        return "the end" if token is None else repr(text_of([token]))

    what = "near-tie" if place.near_tie else "NOT a near-tie"
    return (
        f"prompt {place.prompt}, token {place.position + 1}: {shown(place.token)} instead of "
        f"{shown(place.reference_token)}; top-2 margin {place.top_two:.3g} logits "
        f"({place.units:.3g} units of the last place): {what}"
    )


def _cell_text(row: LawCheck, text_of: Decode) -> str:
    cell = row.comparison.largest
    assert cell is not None
    number, *before = cell.prefix
    token = repr(text_of(list(cell.tokens)))
    if len(cell.tokens) > 1:
        token = f"one of {len(cell.tokens)} rarer tokens"
    after = f" and {text_of(before)!r}" if before else ""
    return (
        f"{token} after prompt {number + 1}{after}: {100 * cell.observed:.2f} % instead of "
        f"{100 * cell.expected:.2f} %, {cell.sigmas:+.1f} standard deviations"
    )


def _truncated(sampling: SamplingConfig) -> bool:
    """Whether a setting above temperature 0 cuts tokens off."""
    nucleus = sampling.top_p is not None and sampling.top_p < 1
    return sampling.temperature > 0 and bool(sampling.top_k or nucleus or sampling.min_p)


def _near_tie_note(check: Check, splits: list[Split]) -> str:
    ties = sum(s.near_tie for s in splits)
    share = f"{ties} of {len(splits)} divergences are near-ties. " if splits else ""
    return (
        f"{share}Near-tie: an ordinary pass of the target prefers the reference's token by at most "
        f"{near_tie_limit(check.dtype):g} logits, which rounding in {check.dtype} explains."
    )


def _notes(check: Check) -> list[str]:
    notes = []
    if check.laws:
        notes = [
            f"False alarms: lossless methods fail with a probability of at most {check.false_alarm:g}, all "
            f"{len(check.laws)} comparisons together ({check.false_alarm / len(check.laws):.2g} each, "
            "Bonferroni). p: exact, by redrawing the statistic under equality.",
            "Token 2 and later are tested given the tokens before them. noticed from: total variation of "
            "the first token, after every prompt, that would be noticed in 90 % of cases or more. "
            "Differences among rare tokens pooled into one cell are not seen.",
            f"Samples: texts by the real loop, tokens: {check.tokens}, prompts: {check.prompts}; "
            f"{100 * check.recalled:.0f} % of the target's passes were recalled from equal ones.",
        ]
        if check.exact and any(map(_truncated, check.config.samplings)):
            notes.append(
                "top-k, top-p, min-p: passes over trees and over single tokens round differently, in any "
                "dtype. A token within rounding of the cut can so occur where the exact law has none, and "
                "fails at once (p = 0), which the false-alarm rate does not include. If one token instead "
                "of 0.00 % is all that deviates, check again with another cut: a loss stays, rounding does "
                "not."
            )
        if check.dtype in ("bfloat16", "float16"):
            notes.append(
                f"In {check.dtype} passes over trees and over single tokens differ by rounding, which "
                "enough samples would notice too (top-p and top-k most of all); use float32."
            )
    if not all(row.lossless for row in (*check.laws, *check.greedy)):
        notes.append(
            "lossy: the rule changes the law by design, so that it cannot fail; measurable: and these "
            "samples show it."
        )
    if check.skipped:
        notes.append(f"Not checked, since not ours: {', '.join(check.skipped)}.")
    return notes
