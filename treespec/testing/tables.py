"""Tables for proofs of rules: random tables, and degenerate ones that break rules with subtle errors."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from treespec.models.tabular import Row, TabularModel, random_table
from treespec.sampling.distributions import Sampling
from treespec.testing.exact import AsGiven

NEVER = -1e4
"""A finite logit whose probability is exactly 0."""

GRADES = (4.0, 7.0, 9.0, 12.0, 5.0, 3.5, 10.0)
"""Improbable tokens of graded tables have probabilities 10**-grade."""


@dataclass(frozen=True, eq=False)
class TablePair:
    """A target and a draft under a sampling setting.

    Args:
        name: description for messages.
        target: the target's table.
        draft: the draft's table.
        sampling: sampling setting of both.
        root: the root token of the tree.
    """

    name: str
    target: TabularModel
    draft: TabularModel
    sampling: Sampling
    root: int = 0


def random_pairs(
    vocab: int,
    count: int,
    seed: int,
    samplings: Collection[Sampling],
    dtype: torch.dtype = torch.float64,
) -> Iterator[TablePair]:
    """Tables of independent normal logits for every context, each pair under every sampling setting.

    Roots cycle through all tokens.

    Args:
        vocab: number of tokens.
        count: number of pairs.
        seed: seed of the first pair; later pairs use the following seeds.
        samplings: the sampling settings.
        dtype: dtype of the rows.
    """
    for i in range(count):
        target, draft = (
            TabularModel(_in(dtype, random_table(vocab, 2 * (seed + i) + j)), vocab) for j in (0, 1)
        )
        for sampling in samplings:
            name = f"random tables {i} of seed {seed}"
            yield TablePair(name, target, draft, sampling, (seed + i) % vocab)


def graded_pairs(vocab: int, seed: int, dtype: torch.dtype = torch.float64) -> Iterator[TablePair]:
    """Rows of mixed magnitudes, from nearly sure (0.999 to 1 - 1e-7) down to 1e-12, and rows nearly equal.

    Which token is nearly sure, and how improbable the others are, differs from context to context. The
    first pair's draft rarely proposes the sure token, so that rejections are likely and even the least
    probable token has a small *relative* error, in float32 too; the draft gives the last token a hundredth
    of the target's probability, so that it comes from residuals. In the second pair, both models are nearly
    sure of one token. In the others, rejections are rare or almost impossible.

    Args:
        vocab: number of tokens, at least 2.
        seed: the first root, and the seed of the nearly equal tables.
        dtype: dtype of the rows.
    """
    p = random_table(vocab, 2 * seed)
    tilt = torch.arange(vocab, dtype=torch.float64) - (vocab - 1) / 2

    def near(part: float) -> Row:
        return lambda context: p(context) + part * tilt

    rows: list[tuple[str, Row, Row]] = [
        ("a target that is nearly sure", partial(_sure, vocab), partial(_elsewhere, vocab)),
        ("both nearly sure", partial(_sure, vocab), partial(_sure, vocab, shift=2)),
        ("p = q but for a part in 1e7", p, near(1e-7)),
        ("p = q but for a part in 1e10", p, near(1e-10)),
    ]
    for i, (name, target, draft) in enumerate(rows):
        p_model, q_model = (TabularModel(_in(dtype, row), vocab) for row in (target, draft))
        yield TablePair(name, p_model, q_model, Sampling(), (seed + i + 1) % vocab)


def _in(dtype: torch.dtype, row: Row) -> Row:
    """The same rows in another precision, each computed once."""
    return cache(lambda context: row(context).to(dtype))


def _order(vocab: int, context: tuple[int, ...]) -> tuple[list[int], int]:
    """The tokens in the order of a context, the nearly sure one first, and the index of its first grade."""
    context_hash = 1
    for token in context:
        context_hash = (31 * context_hash + token + 1) % 1_000_003
    return [(context_hash + i) % vocab for i in range(vocab)], context_hash // vocab


def _sure(vocab: int, context: tuple[int, ...], shift: int = 0) -> Tensor:
    """Log-probabilities in which one token has nearly all mass."""
    (_, *improbable), start = _order(vocab, context)
    probs = torch.zeros(vocab, dtype=torch.float64)
    for place, token in enumerate(improbable):
        probs[token] = 10 ** -GRADES[(start + shift + place) % len(GRADES)]
    return torch.where(probs > 0, probs, 1 - probs.sum()).log()


def _elsewhere(vocab: int, context: tuple[int, ...]) -> Tensor:
    """A draft for `_sure`: 0.1 for its sure token, almost nothing for the last, the rest for the others."""
    (sure, *others), _ = _order(vocab, context)
    probs = torch.zeros(vocab, dtype=torch.float64)
    probs[sure] = 0.1
    if len(others) > 1:
        last = others.pop()
        probs[last] = _sure(vocab, context)[last].exp() / 100
    remaining, shares = 1 - probs.sum(), range(1, len(others) + 1)
    for token, share in zip(others, shares, strict=True):
        probs[token] = remaining * share / sum(shares)
    return probs.log()


def adversarial_pairs(
    vocab: int, seed: int, one_hot: bool = False, dtype: torch.dtype = torch.float64
) -> Iterator[TablePair]:
    """All degenerate cases in which acceptance rules have been seen to fail.

    p = q, exactly and nearly; p below q everywhere by rounding (the residual has no mass); ties; disjoint
    supports; supports of one and two tokens on either side (duplicate siblings; drafts exhausted without
    replacement; a hub with all mass); drafts to which top-k, top-p or min-p gave probability 0; and
    `graded_pairs`. Roots cycle through all tokens.

    Args:
        vocab: number of tokens.
        seed: seed of the random tables among them, and the first root.
        one_hot: only temperature 0, for a rule that needs one-hot rows.
        dtype: dtype of the rows.
    """
    for i, pair in enumerate(_degenerate_pairs(vocab, seed, one_hot, dtype)):
        yield replace(pair, root=(seed + i) % vocab)
    if not one_hot:
        yield from graded_pairs(vocab, seed, dtype)


def _degenerate_pairs(
    vocab: int, seed: int, one_hot: bool, dtype: torch.dtype
) -> Iterator[TablePair]:
    p, q = (_in(dtype, random_table(vocab, 2 * seed + i)) for i in (0, 1))
    flat = torch.zeros(vocab, dtype=dtype)
    slight = 4 * torch.finfo(dtype).eps
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
    yield pair("p = q but for rounding", p, lambda c: p(c) * (1 + slight) + slight)
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
    # Rows of probabilities: p is nowhere above q, so the residual of a rejection has no mass.
    covering = torch.arange(1, vocab + 1, dtype=dtype) / sum(range(1, vocab + 1))
    covered = covering.clone()
    covered[-1] = torch.nextafter(covered[-1], torch.zeros_like(covered[-1]))
    yield pair("a residual without mass", always(covered), always(covering), AsGiven())
    yield pair("temperature 0", p, q, Sampling(temperature=0.0))
    yield pair("top-k 2", p, q, Sampling(top_k=2))
    yield pair("top-p 0.7", p, q, Sampling(temperature=1.3, top_p=0.7))
    yield pair("min-p 0.4", p, q, Sampling(temperature=0.8, min_p=0.4))
