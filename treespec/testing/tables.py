"""The tables over which rules are proved: random ones, and those that break what is nearly right."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from treespec.distributions import Sampling
from treespec.models.tabular import Row, TabularModel, random_table
from treespec.testing.exact import AsGiven

__all__ = ["TablePair", "adversarial_pairs", "random_pairs"]

NEVER = -1e4
"""A logit whose probability is exactly 0 in float64, and that is finite."""


@dataclass(frozen=True, eq=False)
class TablePair:
    """A target and a draft under a sampling setting.

    Args:
        name: for messages.
        target: the target's table.
        draft: the draft's table.
        sampling: of both.
    """

    name: str
    target: TabularModel
    draft: TabularModel
    sampling: Sampling


def random_pairs(
    vocab: int, count: int, seed: int, samplings: Collection[Sampling]
) -> Iterator[TablePair]:
    """Tables of independent normal logits for every context, each pair under every setting.

    Args:
        vocab: number of tokens.
        count: number of pairs.
        seed: of the first; the others follow.
        samplings: the settings.
    """
    for i in range(count):
        target, draft = (
            TabularModel(random_table(vocab, 2 * (seed + i) + j), vocab) for j in (0, 1)
        )
        for sampling in samplings:
            yield TablePair(f"random tables {i} of seed {seed}", target, draft, sampling)


def adversarial_pairs(vocab: int, seed: int, one_hot: bool = False) -> Iterator[TablePair]:
    """Every degenerate case that rules of this field have been seen to trip over.

    p = q, nearly so, p below q everywhere by rounding (the residual has no mass), ties, disjoint supports,
    supports of one and two tokens on either side (duplicate siblings; drafts exhausted without
    replacement; a hub with all mass), and drafts that top-k, top-p or min-p gave probability 0.

    Args:
        vocab: number of tokens.
        seed: of the random tables among them.
        one_hot: only temperature 0, for a rule that needs it.
    """
    p, q = random_table(vocab, 2 * seed), random_table(vocab, 2 * seed + 1)
    flat = torch.zeros(vocab, dtype=torch.float64)
    only = [torch.full_like(flat, NEVER).index_fill(0, torch.tensor(i), 0.0) for i in range(vocab)]
    not_last = flat.index_fill(0, torch.tensor(vocab - 1), NEVER)
    plain = Sampling(temperature=0.0) if one_hot else Sampling()

    def pair(name: str, target: Row, draft: Row, sampling: Sampling = plain) -> TablePair:
        return TablePair(
            name,
            TabularModel(cache(target), vocab),
            TabularModel(cache(draft), vocab),
            sampling,
        )

    def always(row: Tensor) -> Row:
        return lambda context: row

    yield pair("p = q", p, p)
    yield pair("p = q but for rounding", p, lambda c: p(c) * (1 + 1e-15) + 1e-15)
    yield pair("uniform p and q", always(flat), always(flat))
    yield pair("a tie of the draft's best", p, lambda c: q(c).clamp(max=0))
    yield pair("disjoint supports", lambda c: p(c) + only[-1].flip(0), lambda c: q(c) + only[-1])
    yield pair("a target of one token", always(only[0]), q)
    yield pair("a draft of one token", p, always(only[0]))
    yield pair("a target and a draft of one and the same token", always(only[0]), always(only[0]))
    yield pair("a target and a draft of one token each", always(only[0]), always(only[-1]))
    yield pair("a draft of two tokens", p, lambda c: q(c) + not_last)
    yield pair("a target of two tokens", lambda c: p(c) + not_last.flip(0), q)
    yield pair(
        "supports that overlap", lambda c: p(c) + not_last.flip(0), lambda c: q(c) + not_last
    )
    yield pair("a draft that is nearly sure", p, lambda c: 12 * q(c))
    if one_hot:
        return
    # Rows of probabilities: p is nowhere above q, so what a rejection leaves has no mass at all.
    covering = torch.arange(1, vocab + 1, dtype=torch.float64) / sum(range(1, vocab + 1))
    covered = covering.clone()
    covered[-1] = torch.nextafter(covered[-1], torch.zeros_like(covered[-1]))
    yield pair("a residual without mass", always(covered), always(covering), AsGiven())
    yield pair("temperature 0", p, q, Sampling(temperature=0.0))
    yield pair("top-k 2", p, q, Sampling(top_k=2))
    yield pair("top-p 0.7", p, q, Sampling(temperature=1.3, top_p=0.7))
    yield pair("min-p 0.4", p, q, Sampling(temperature=0.8, min_p=0.4))
