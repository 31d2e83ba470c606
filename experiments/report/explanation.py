"""What explains a speedup: an exact product of four factors, each with its interval.

With T tokens, S steps, V seconds of verifying, M seconds of both models (drafting and verifying) and D
seconds of decoding, all summed over prompts, the speed of a method is

    T / D  =  T / S  x  S / V  x  V / M  x  M / D
              tokens    one pass   share not   share not
              per step  of target  drafting    overhead

so its ratio to that of another method is the product of the ratios of these four. A factor above 1 speaks
for the method. Against plain decoding the second is 1 / v(N), the verify cost of the tree; the third is
what drafting takes away; the fourth holds acceptance, commits and the loop itself, on both sides.

A baseline without stage times (`generate`) counts as verification alone, so that its own overhead is in the
second factor. A method that drafts without stage times (assisted generation) has no explanation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from treespec.experiments.report.measurements import Measurements
from treespec.experiments.report.statistics import Bootstrap, Interval, bootstrap

__all__ = ["FACTORS", "Explanation", "explain", "explanations"]

FACTORS = ("tokens per step", "verify", "draft", "overhead")
"""Names of the factors, in the order in which they are multiplied."""


@dataclass(frozen=True)
class Explanation:
    """Why one method is so many times as fast as another.

    Args:
        method: its name.
        against: the other's.
        factors: by name, in the order of `FACTORS`.
        measured: the ratio of tokens per second, which is their product.
    """

    method: str
    against: str
    factors: Mapping[str, Interval]
    measured: Interval

    @property
    def product(self) -> float:
        """Of the factors' estimates."""
        return prod(factor.estimate for factor in self.factors.values())


def explanations(data: Measurements) -> list[Explanation]:
    """Chains and trees against the faster plain baseline, then the fastest tree against the fastest chain.

    The last two are picked on the prompts that they are compared on: it explains the table, and the verdict
    says who wins.
    """
    if not data.prompts:
        return []
    totals, known = _totals(data), _explicable(data)
    baseline = data.fastest(data.named("plain"))
    found = []
    if baseline is not None:
        ours = [name for name in data.named("chain", "tree", lossless=False) if name in known]
        found += [_explain(totals, name, baseline) for name in ours]
    tree, chain = (
        data.fastest([name for name in data.named(group) if name in known])
        for group in ("tree", "chain")
    )
    if tree is not None and chain is not None:
        found.append(_explain(totals, tree, chain))
    return found


def explain(data: Measurements, method: str, against: str) -> Explanation | None:
    """Explain the ratio of two methods.

    Args:
        data: of one sampling setting.
        method: in the numerator.
        against: in the denominator.

    Returns:
        The factors; None without a common prompt, or if a side has no stage times and drafts.
    """
    known = _explicable(data)
    if not data.prompts or method not in known or against not in known:
        return None
    return _explain(_totals(data), method, against)


def _explicable(data: Measurements) -> set[str]:
    """Methods with stage times, or that only verify."""
    return {
        m.name
        for m in data.methods
        if ((m.name, "verify_s") in data.values and (data.total(m.name, "verify_s") or 0) > 0)
        or m.kind == "generate"
    }


def _totals(data: Measurements) -> Bootstrap:
    """What the factors are made of, resampled together."""
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
    return bootstrap(columns)


def _explain(totals: Bootstrap, a: str, b: str) -> Explanation:
    def against(over: str, under: str) -> Interval:
        return totals.ratio([(a, over), (b, under)], [(a, under), (b, over)])

    quotients = ("T", "S"), ("S", "V"), ("V", "M"), ("M", "D")
    factors = [against(over, under) for over, under in quotients]
    return Explanation(a, b, dict(zip(FACTORS, factors, strict=True)), against("T", "D"))
