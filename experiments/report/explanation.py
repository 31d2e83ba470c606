"""Explanation of a speedup as an exact product of four factors, each with its interval.

With T tokens, S steps, V seconds of verification, M seconds in both models (drafting and verification)
and D seconds of decoding, all summed over prompts, the speed of a method is

    T / D  =  T / S  x  S / V  x  V / M  x  M / D
              tokens    one pass   share not   share not
              per step  of target  drafting    overhead

so the speed ratio of two methods is the product of the ratios of these four. A factor above 1 favours the
method. Against plain decoding the second factor is 1 / v(N), with v(N) the verify cost of the tree; the
third is the cost of drafting; the fourth covers acceptance, commits and the loop itself, on both sides.

A baseline without stage times (`generate`) counts as verification only, so its overhead enters the second
factor. A method that drafts without stage times (assisted generation) has no explanation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import Totals
from treespec.experiments.report.table import Column, Finding, Table, interval
from treespec.search.intervals import Interval

FACTORS = ("tokens per step", "verify", "draft", "overhead")

TITLE = "What explains the speedup"

NOTE = (
    "What explains the speedup: the factors multiply to exactly the speedup, and a factor above 1 "
    "makes the method faster. Verify: pass time of the baseline over that of the method. Draft: share of "
    "the models' time that is not drafting. Overhead: share of all time that the models take. Both shares "
    "are divided by the baseline's. A tree over a chain: the two that are fastest on all prompts; the "
    "verdict chooses each side on one half and measures it on the other, so its ratio differs."
)


@dataclass(frozen=True)
class Explanation:
    """Why one method is faster or slower than another: factors by name, and their product, as measured."""

    method: str
    against: str
    factors: Mapping[str, Interval]
    measured: Interval

    @property
    def product(self) -> float:
        return prod(factor.estimate for factor in self.factors.values())


def explanations(data: Measurements) -> list[Explanation]:
    """Chains and trees against the faster plain baseline, then the fastest tree against the fastest chain.

    The last two are chosen on the same prompts that compare them: this explains the table, while the
    verdict names the winner.
    """
    if not data.prompts:
        return []
    totals, known = _totals(data), _explicable(data)
    tree, chain = (
        data.fastest([name for name in data.named(group) if name in known])
        for group in ("tree", "chain")
    )
    drafting = [name for name in data.named("chain", "tree", lossless=False) if name in known]
    pairs = [*((name, data.baseline) for name in drafting), (tree, chain)]
    return [_explain(totals, a, b) for a, b in pairs if a is not None and b is not None]


def explained(data: Measurements, method: str, against: str) -> Explanation:
    """Why one method is faster or slower than another one."""
    return _explain(_totals(data), method, against)


def explanation_table(rows: Sequence[Explanation], data: Measurements) -> Table:
    groups = {m.name: m.group for m in data.methods}

    def suffix(row: Explanation) -> str:
        return "" if row.against == data.baseline else f" over {row.against}"

    def factor(head: str, name: str) -> Column[Explanation]:
        return Column(head, lambda row: interval(row.factors[name]), f"× {name}")

    heads = zip(("tok/step", "verify", "draft", "overhead"), FACTORS, strict=True)
    columns = [
        Column[Explanation]("method", lambda row: row.method + suffix(row), left=True),
        *(factor(head, name) for head, name in heads),
        Column[Explanation]("speedup", lambda row: interval(row.measured), "= speedup"),
    ]
    over = f" over {data.baseline}" if data.baseline else ""
    return Table(
        data.sampling,
        columns,
        rows,
        caption=f"{data.sampling},{over}" if over else data.sampling,
        title=f"{data.sampling}: {TITLE[0].lower()}{TITLE[1:]}{over}",
        group=suffix,
        colour=lambda row: groups[row.method],
    )


def explanation_finding(tables: Mapping[str, Table]) -> Finding | None:
    return Finding(TITLE, tuple(tables.values()), (NOTE,)) if tables else None


def _explicable(data: Measurements) -> set[str]:
    return {
        m.name
        for m in data.methods
        if (data.total(m.name, "verify_s") or 0) > 0 or m.kind == "generate"
    }


def _totals(data: Measurements) -> Totals:
    """The totals T, S, V, M and D of every method, resampled together."""
    columns = {}
    for m in data.methods:
        decode = data.values[m.name, "decode_s"]
        verify = data.values.get((m.name, "verify_s"), decode)
        draft = data.values.get((m.name, "draft_s"), np.zeros_like(decode))
        columns |= {
            (m.name, "T"): data.values[m.name, "new_tokens"],
            (m.name, "S"): data.values[m.name, "steps"],
            (m.name, "V"): verify,
            (m.name, "M"): verify + draft,
            (m.name, "D"): decode,
        }
    return Totals.of(columns, files=data.files)


def _explain(totals: Totals, a: str, b: str) -> Explanation:
    *factors, measured = (
        totals.ratio([(a, over), (b, under)], [(a, under), (b, over)])
        for over, under in (("T", "S"), ("S", "V"), ("V", "M"), ("M", "D"), ("T", "D"))
    )
    return Explanation(a, b, dict(zip(FACTORS, factors, strict=True)), measured)
