"""One line that proves, or refutes, that a rule keeps the target's law."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from treespec.distributions import Sampling
from treespec.draft.model import ModelDrafter
from treespec.errors import RefusedTree
from treespec.models.tabular import TabularModel, random_table
from treespec.protocols import Verifier
from treespec.testing.laws import DraftWith, step_law, target_law
from treespec.testing.trees import plane_trees
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["NotLossless", "Proof", "assert_lossless"]

TOLERANCE = 1e-12


class NotLossless(AssertionError):
    """The law of a step's tokens is not the target's, or nothing was enumerated."""


@dataclass(frozen=True)
class Proof:
    """What `assert_lossless` enumerated.

    Args:
        cases: combinations of tree, law, tables and settings.
        runs: branches walked, in all cases together.
        largest_error: largest difference between a probability and the target's.
    """

    cases: int
    runs: int
    largest_error: float


@dataclass(frozen=True)
class _Tables:
    name: str
    target: Callable[[tuple[int, ...]], Tensor]
    draft: Callable[[tuple[int, ...]], Tensor]
    sampling: Sampling


def assert_lossless(
    verifier: Verifier,
    *,
    laws: Collection[Law] | None = None,
    shapes: Iterable[TreeShape] | None = None,
    vocab: int = 3,
    tables: int = 3,
    seed: int = 0,
    samplings: Collection[Sampling] | None = None,
    draft_with: DraftWith = ModelDrafter,
) -> Proof:
    """Prove the one-step theorem for a rule by exact enumeration, or raise.

    For every tree, law and pair of tables, the law of a step's emitted tokens, completed by the target's
    own law to depth + 1 tokens, must equal the target's law within 1e-12. Beside random tables of
    independent rows for every context there are adversarial ones: p = q, disjoint supports, a target or
    a draft of one token, ties, and rows cut by top-k, top-p and min-p.

    Args:
        verifier: the rule; one of `treespec.verify`, or any `(tree, target_probs, coins) -> Verdict`.
        laws: the laws to try; by default those that the rule states (`verifier.laws`).
        shapes: the trees; by default all of up to 4 nodes. Those that the rule states it refuses, and
            those with more distinct siblings than the vocabulary has tokens, do not count as cases.
        vocab: number of tokens.
        tables: number of random pairs of tables.
        seed: of the random tables.
        samplings: settings for the random tables; by default temperature 1 (0 for a rule that needs
            one-hot rows, which then meets no other setting).
        draft_with: makes the drafter; its code is enumerated too.

    Returns:
        The number of cases and runs, and the largest error.

    Raises:
        NotLossless: with the smallest failing tree and the two laws; or if no case was enumerated.
    """
    laws = getattr(verifier, "laws", Law) if laws is None else laws
    shapes = [s for n in range(1, 5) for s in plane_trees(n)] if shapes is None else list(shapes)
    one_hot = getattr(verifier, "one_hot", False)
    if samplings is None:
        samplings = [Sampling(temperature=0.0) if one_hot else Sampling()]
    cases, runs, largest = 0, 0, 0.0
    for shape in sorted(shapes, key=lambda s: s.size):
        for law in sorted(laws, key=str):
            if _impossible(shape, law, vocab):
                continue
            for pair in _pairs(vocab, tables, seed, samplings, one_hot):
                target, draft = TabularModel(pair.target, vocab), TabularModel(pair.draft, vocab)
                if _refuses(verifier, shape, law, vocab):
                    continue
                found = step_law(
                    verifier, shape, law, target=target, draft=draft, sampling=pair.sampling,
                    draft_with=draft_with,
                )  # fmt: skip
                right = target_law(target, (0,), shape.depth + 1, pair.sampling)
                error = float((found.probs - right).abs().max())
                if not error <= TOLERANCE:
                    raise NotLossless(
                        _message(verifier, shape, law, pair, found.probs, right, error)
                    )
                cases, runs, largest = cases + 1, runs + found.runs, max(largest, error)
    if not cases:
        raise NotLossless(f"nothing was enumerated for rule {_name(verifier)}: no case fits it")
    return Proof(cases, runs, largest)


def _pairs(
    vocab: int, tables: int, seed: int, samplings: Collection[Sampling], one_hot: bool
) -> Iterator[_Tables]:
    p, q = random_table(vocab, 2 * seed), random_table(vocab, 2 * seed + 1)
    for i in range(tables):
        one, two = (random_table(vocab, 2 * (seed + i) + j) for j in (0, 1))
        for sampling in samplings:
            yield _Tables(f"random tables {i} of seed {seed}", one, two, sampling)
    # A logit of -1e4 underflows to probability 0 exactly, and is finite as a model's logits must be.
    first = torch.tensor([0.0] + [-1e4] * (vocab - 1), dtype=torch.float64)
    plain = Sampling(temperature=0.0) if one_hot else Sampling()
    yield _Tables("p = q", p, p, plain)
    flat = torch.zeros(vocab, dtype=torch.float64)
    yield _Tables("uniform p and q", lambda c: flat, lambda c: flat, plain)
    yield _Tables(
        "disjoint supports", lambda c: p(c) + first.flip(0), lambda c: q(c) + first, plain
    )
    yield _Tables("a target of one token", lambda c: first, q, plain)
    yield _Tables("a draft of one token", p, lambda c: first, plain)
    if one_hot:
        return
    yield _Tables("temperature 0", p, q, Sampling(temperature=0.0))
    yield _Tables("top-k 2", p, q, Sampling(top_k=2))
    yield _Tables("top-p 0.7", p, q, Sampling(temperature=1.3, top_p=0.7))
    yield _Tables("min-p 0.4", p, q, Sampling(temperature=0.8, min_p=0.4))


def _impossible(shape: TreeShape, law: Law, vocab: int) -> bool:
    return law is not Law.IID and max(map(len, shape.children)) > vocab


def _refuses(verifier: Verifier, shape: TreeShape, law: Law, vocab: int) -> bool:
    """Whether the rule states that it does not cover the shape (a tree for a rule of chains, say)."""
    tokens = torch.tensor([0] + [rank % vocab for rank in shape.ranks[1:]])
    rows = torch.full((len(shape.internal), vocab), 1 / vocab, dtype=torch.float64)
    try:
        getattr(verifier, "require", lambda tree: None)(TokenTree(shape, tokens, rows, law))
    except RefusedTree:
        return True
    return False


def _name(verifier: Verifier) -> str:
    return getattr(verifier, "__name__", repr(verifier))


def _message(
    verifier: Verifier,
    shape: TreeShape,
    law: Law,
    pair: _Tables,
    found: Tensor,
    right: Tensor,
    error: float,
) -> str:
    worst = int((found - right).abs().argmax())
    text = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), right.shape))
    return (
        f"rule {_name(verifier)} is not lossless on this tree, children drawn {law}, {pair.name}, "
        f"{pair.sampling}:\n{shape}\n"
        f"largest error {error:.3g}, at the tokens {text}: "
        f"{float(found[text]):.6f} instead of {float(right[text]):.6f}\n"
        f"law of the first token: {_marginal(found)} instead of {_marginal(right)}"
    )


def _marginal(law: Tensor) -> list[float]:
    return [round(x, 6) for x in law.flatten(1).sum(1).tolist()] if law.ndim > 1 else law.tolist()
