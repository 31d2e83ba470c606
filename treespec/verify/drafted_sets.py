"""The distribution of the set of drafted tokens, in plain numbers."""

import math
from collections.abc import Sequence

from treespec.tree import Law
from treespec.verify.largest_flow import Number


def drafted_sets(draft_probs: Sequence[Number], k: int, law: Law) -> dict[tuple[int, ...], Number]:
    """The probability of each set of distinct tokens among k children, whatever the order of the draws.

    Computed by sums of products without subtraction: floats do not cancel, and fractions stay exact.

    `k`: number of children; without replacement, at most the number of tokens. Returns probability of each
    set, an ascending tuple of tokens; sets of probability 0 are left out.

    Example:
        >>> drafted_sets([0.5, 0.5, 0.0], 2, Law.IID)
        {(0,): 0.25, (0, 1): 0.5, (1,): 0.25}
    """
    sets = (_iid if law is Law.IID else _without_replacement)(draft_probs, k)
    return {tokens: mass for tokens, mass in sorted(sets.items()) if mass > 0}


def count_sets(draft_probs: Sequence[Number], k: int, law: Law) -> tuple[int, int]:
    """The number of sets that can be drafted, and the number of pairs (set, token in the set)."""
    support = sum(q > 0 for q in draft_probs)
    if law is Law.IID:
        counts = [(math.comb(support, size), size) for size in range(1, k + 1)]
    elif k <= support:
        counts = [(math.comb(support, k), k)]
    else:
        counts = [(math.comb(len(draft_probs) - support, k - support), k)]
    return sum(n for n, _ in counts), sum(n * size for n, size in counts)


def _iid(draft_probs: Sequence[Number], k: int) -> dict[tuple[int, ...], Number]:
    """k! times the coefficient of z^k in the product of exp(q z) - 1 over the tokens of the set."""
    series = {
        token: [q**n / math.factorial(n) for n in range(k + 1)]
        for token, q in enumerate(draft_probs)
        if q > 0
    }
    empty_product: list[Number] = [1, *[0] * k]
    layer: dict[tuple[int, ...], list[Number]] = {(): empty_product}
    sets: dict[tuple[int, ...], Number] = {}
    for _ in range(k):
        grown: dict[tuple[int, ...], list[Number]] = {}
        for tokens, before in layer.items():
            for token, weights in series.items():
                if not tokens or token > tokens[-1]:
                    grown[(*tokens, token)] = [
                        sum((before[n - m] * weights[m] for m in range(1, n + 1)), start=0)
                        for n in range(k + 1)
                    ]
        layer = grown
        sets |= {tokens: math.factorial(k) * product[k] for tokens, product in layer.items()}
    return sets


def _without_replacement(draft_probs: Sequence[Number], k: int) -> dict[tuple[int, ...], Number]:
    """Draw by draw; beyond the support, uniformly over the rest, as `distributions.without` does."""
    support = [token for token, q in enumerate(draft_probs) if q > 0]
    sets: dict[tuple[int, ...], Number] = {(): 1}
    for size in range(k):
        if size < len(support):
            drawable, weights = support, draft_probs
        else:
            drawable, weights = range(len(draft_probs)), [1] * len(draft_probs)
        grown: dict[tuple[int, ...], Number] = {}
        for tokens, mass in sets.items():
            undrawn = [token for token in drawable if token not in tokens]
            total = sum(weights[token] for token in undrawn)
            for token in undrawn:
                larger = tuple(sorted((*tokens, token)))
                # Multiply before dividing: with integer weights, mass / total could be rounded.
                grown[larger] = grown.get(larger, 0) + mass * weights[token] / total
        sets = grown
    return sets
