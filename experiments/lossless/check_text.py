"""Print and write the results of `treespec check-lossless`: tables, verdicts, and what they mean."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from treespec.experiments.config.files import require_own
from treespec.experiments.config.samplings import SamplingConfig, sampling_of
from treespec.experiments.lossless.check import Check
from treespec.experiments.lossless.greedy import GreedyCheck, Split
from treespec.experiments.lossless.law import LawCheck
from treespec.experiments.lossless.samples import NAME
from treespec.experiments.records.manifest import config_data, environment, now
from treespec.experiments.records.plain_data import plain_data
from treespec.experiments.report.equality import near_tie_margin
from treespec.experiments.report.table import NONE, Column, Table
from treespec.experiments.report.terminal import print_table, say
from treespec.files import write_whole

WIDTH = 118

MOST_SPLITS = 6

Decode = Callable[[list[int]], str]


def print_check(check: Check, console: Console) -> None:
    width = min(WIDTH, console.width)

    def tell(text: str, style: str | None = None) -> None:
        say(console, text, style, width)

    for sampling in dict.fromkeys(row.sampling for row in check.greedy):
        rows = [row for row in check.greedy if row.sampling == sampling]
        title = f"{sampling}: texts equal to those of plain greedy decoding, id by id"
        print_table(Table(sampling, GREEDY_COLUMNS, rows, title=title, tone=_tone), console, width)
        splits = [(row, s) for row in rows for s in row.splits]
        for row, split in splits[:MOST_SPLITS]:
            tell(f"{row.method}: {_split_text(split, check.text_of)}")
        if len(splits) > MOST_SPLITS:
            tell(f"... and {len(splits) - MOST_SPLITS} more")
        tell(_near_tie_note(check, [split for _, split in splits]), "dim")
    for sampling in dict.fromkeys(row.sampling for row in check.laws):
        laws = [row for row in check.laws if row.sampling == sampling]
        print_table(_law_table(check, sampling, laws), console, width)
        for row in laws:
            if not row.comparison.passed and row.comparison.largest is not None:
                tell(f"{row.method}: largest deviation: {_cell_text(row, check.text_of)}")
    console.print()
    for note in _notes(check):
        tell(note, "dim")
    console.print()
    tell(verdict(check), "bold red" if check.failed else "bold")


def verdict(check: Check) -> str:
    count = len(check.laws) + len(check.greedy)
    lossy = sum(not row.lossless for row in (*check.laws, *check.greedy))
    aside = f", of which {lossy} of rules that are lossy by design do not count" if lossy else ""
    if check.failed:
        names = ", ".join(f"{row.method} at {row.sampling}" for row in check.failed)
        return f"NOT LOSSLESS: {names}. There were {count} comparisons{aside}."
    return f"No loss was found: {count} comparisons{aside}."


def check_data(check: Check) -> dict[str, Any]:
    def row(entry: LawCheck | GreedyCheck) -> dict[str, Any]:
        data = asdict(entry) | {"failed": entry.failed}
        if isinstance(entry, LawCheck):
            return data | {"p_value": entry.comparison.p_value, "passed": entry.comparison.passed}
        return data | {"near_ties": sum(split.near_tie for split in entry.splits)}

    return {
        "checked": now(),
        **environment(),
        "config": config_data(check.config),
        "seed": check.config.seed,
        "dtype": check.dtype,
        "passes": check.passes,
        "false_alarm": check.false_alarm,
        "reference": "exact law",
        "tokens": check.tokens,
        "prompts": check.prompts,
        "passed": not check.failed,
        "laws": [row(entry) for entry in check.laws],
        "greedy": [row(entry) for entry in check.greedy],
    }


def write_check(check: Check, folder: Path) -> Path:
    text = json.dumps(plain_data(check_data(check)), indent=1) + "\n"
    path = write_whole(folder / "check.json", text)
    (folder / NAME).unlink(missing_ok=True)  # texts saved while the check was unfinished
    return path


def require_check(folder: Path) -> None:
    keys = ("checked", "false_alarm", "laws", "greedy", "passed")
    require_own(folder / "check.json", keys, "result of `treespec check-lossless`")


def _law_table(check: Check, sampling: str, rows: list[LawCheck]) -> Table:
    def token(i: int) -> Column[LawCheck]:
        def write(row: LawCheck) -> str:
            test = row.comparison.positions[i]
            return f"{test.statistic:.0f}/{test.degrees}" if test.degrees else NONE

        return Column(f"token {i + 1}\nchi²/degrees", write)

    law = "law of the first token" if check.tokens == 1 else f"joint law of {check.tokens} tokens"
    columns = [
        *LAW_COLUMNS,
        *map(token, range(check.tokens)),
        Column[LawCheck]("noticed\nfrom", _detectable),
        Column[LawCheck]("verdict", _law_verdict, left=True),
    ]
    title = f"{sampling}: {law}, against the exact law of plain decoding"
    return Table(sampling, columns, rows, title=title, tone=_tone)


def _detectable(row: LawCheck) -> str:
    smallest = row.comparison.detectable
    return f"{smallest:.3f}" if smallest < 1 else NONE


def _law_verdict(row: LawCheck) -> str:
    if row.lossless:
        return "ok" if row.comparison.passed else "FAILED"
    return "lossy: not noticed" if row.comparison.passed else "lossy: measurable"


def _greedy_verdict(row: GreedyCheck) -> str:
    if not row.splits:
        return "ok"
    if not row.lossless:
        return "lossy: measurable"
    return "FAILED" if row.failed else "ok: rounding"


def _tone(row: LawCheck | GreedyCheck) -> str:
    return "bad" if row.failed else ""


LAW_COLUMNS = (
    Column[LawCheck]("method", lambda row: row.method, left=True),
    Column[LawCheck]("rule", lambda row: row.rule, left=True),
    Column[LawCheck]("samples", lambda row: f"{row.comparison.samples:,}"),
    Column[LawCheck]("p", lambda row: f"{row.comparison.p_value:.2g}"),
)

GREEDY_COLUMNS = (
    Column[GreedyCheck]("method", lambda row: row.method, left=True),
    Column[GreedyCheck]("rule", lambda row: row.rule, left=True),
    Column[GreedyCheck](
        "equal to\n`generate`", lambda row: f"{row.compared - len(row.generate)}/{row.compared}"
    ),
    Column[GreedyCheck](
        "equal to\nour plain loop", lambda row: f"{row.compared - len(row.plain)}/{row.compared}"
    ),
    Column[GreedyCheck](
        "explained by\nnear-ties",
        lambda row: (
            f"{sum(s.near_tie for s in row.splits)}/{len(row.splits)}" if row.splits else NONE
        ),
    ),
    Column[GreedyCheck]("verdict", _greedy_verdict, left=True),
)


def _split_text(split: Split, text_of: Decode) -> str:
    def shown(token: int | None) -> str:
        return "the end" if token is None else repr(text_of([token]))

    return (
        f"prompt {split.prompt}, token {split.position + 1}: {shown(split.token)} instead of "
        f"{shown(split.reference_token)}; top-2 margin {split.top_two:.3g} logits "
        f"({split.units:.3g} units of the last split): "
        f"{'near-tie' if split.near_tie else 'NOT a near-tie'}"
    )


def _cell_text(row: LawCheck, text_of: Decode) -> str:
    cell = row.comparison.largest
    assert cell is not None
    number, *before = cell.prefix
    count = len(cell.tokens)
    token = f"one of {count} rarer tokens" if count > 1 else repr(text_of(list(cell.tokens)))
    after = f" and {text_of(before)!r}" if before else ""
    return (
        f"{token} after prompt {number + 1}{after}: {100 * cell.observed:.2f} % instead of "
        f"{100 * cell.expected:.2f} %, {cell.sigmas:+.1f} standard deviations"
    )


def _truncated(sampling: SamplingConfig) -> bool:
    return sampling_of(sampling).truncates(2**62)


def _near_tie_note(check: Check, splits: list[Split]) -> str:
    ties = f"{sum(split.near_tie for split in splits)} of {len(splits)} divergences are near-ties. "
    return (
        f"{ties if splits else ''}Near-tie: an ordinary pass of the target prefers the reference's token "
        f"by at most {near_tie_margin(check.dtype):g} logits, which rounding in {check.dtype} explains."
    )


def _notes(check: Check) -> list[str]:
    notes = []
    if check.laws:
        recalled = (
            f"{100 * check.recalled:.0f} % of the target's passes were recalled from identical ones"
        )
        how = "decoded by the graphs and kernels of a run" if check.as_a_run else recalled
        notes = [
            "False alarms: the probability that any lossless method fails is at most "
            f"{check.false_alarm:g} over all {len(check.laws)} comparisons (Bonferroni).",
            "noticed from: total variation of the first token that would be noticed in 90 % of cases or "
            "more. Differences among rare tokens pooled into one cell are not seen.",
            f"Samples: texts by the real loop, tokens: {check.tokens}, prompts: {check.prompts}; {how}.",
        ]
        if any(map(_truncated, check.config.samplings)):
            notes.append(
                "truncations: passes over trees and over single tokens round differently. A token "
                "within rounding of the cut can therefore occur although the law excludes it (p = 0). "
                "If the only deviation is a token expected in 0.00 %, check again with another cut: a loss "
                "stays, rounding does not."
            )
        if check.dtype in ("bfloat16", "float16"):
            notes.append(
                f"In {check.dtype}, enough samples would notice that passes over trees and over single "
                "tokens round differently; use float32."
            )
    if check.as_a_run and (
        eager := [name for name, kind in check.passes.items() if kind == "eager"]
    ):
        notes.append(
            f"Passes operation by operation: {', '.join(eager)}. Runs on a GPU capture them as graphs: "
            "check those by models.passes=auto models.draft_passes=auto"
        )
    if not all(row.lossless for row in (*check.laws, *check.greedy)):
        notes.append("lossy: the rule changes the law by design, so it cannot fail.")
    if check.skipped:
        names = ", ".join(check.skipped)
        notes.append(f"Not checked, because they do not run in treespec's loop: {names}.")
    return notes
