"""One line that proves, or refutes, that a rule keeps the target's law."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from treespec.children import require_children
from treespec.distributions import Sampling
from treespec.draft.model import ModelDrafter
from treespec.errors import InvalidTree, RefusedTree, TreespecError
from treespec.protocols import Growth, Verifier
from treespec.testing.exact import AsGiven, exactly
from treespec.testing.step_oracle import DraftWith, StepOracle
from treespec.testing.tables import TablePair, adversarial_pairs, random_pairs
from treespec.testing.trees import plane_trees
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["Case", "NotLossless", "Proof", "assert_lossless", "covers"]

TOLERANCE = 1e-12

DENOMINATOR = 24
"""Of the probabilities in exact proofs, before they are made to sum to 1."""


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

    def __add__(self, other: "Proof") -> "Proof":
        return Proof(
            self.cases + other.cases,
            self.runs + other.runs,
            max(self.largest_error, other.largest_error),
        )


@dataclass(frozen=True)
class Case:
    """One tree or growth, law and pair of tables.

    Args:
        shape: the tree, or a growth.
        law: how children are drawn.
        pair: the tables.
    """

    shape: TreeShape | Growth
    law: Law
    pair: TablePair

    def oracle(self, draft_with: DraftWith = ModelDrafter, exact: bool = False) -> StepOracle:
        """All its drafted trees."""
        target, draft, sampling = self.pair.target, self.pair.draft, self.pair.sampling
        if exact:
            denominator = max(DENOMINATOR, 2 * target.vocab_size)
            target, draft = (exactly(m, sampling, denominator) for m in (target, draft))
            sampling = AsGiven(sampling.temperature)
        return StepOracle(self.shape, self.law, target, draft, (0,), sampling, draft_with)

    def prove(self, verifier: Verifier, oracle: StepOracle, exact: bool = False) -> Proof:
        """Compare the law of a step with the target's.

        Raises:
            NotLossless: if they differ: at all in exact arithmetic, by more than 1e-12 in floats; or if the
                rule raises one of treespec's errors.
        """
        try:
            found, right = oracle.law(verifier), oracle.target_law
        except TreespecError as error:
            raise NotLossless(f"{_where(verifier, self)}\nit raises {error!r}") from error
        error = float((found.probs - right).abs().max())
        if not error <= (0 if exact else TOLERANCE):
            raise NotLossless(_message(verifier, self, found.probs, right, error))
        return Proof(1, found.runs, error)


def assert_lossless(
    verifier: Verifier,
    *,
    laws: Collection[Law] | None = None,
    shapes: Iterable[TreeShape] | None = None,
    growths: Iterable[Growth] = (),
    vocab: int = 3,
    tables: int = 3,
    seed: int = 0,
    samplings: Collection[Sampling] | None = None,
    draft_with: DraftWith = ModelDrafter,
    exact: bool = False,
) -> Proof:
    """Prove the one-step theorem for a rule by exact enumeration, or raise.

    For every tree, law and pair of tables, the law of a step's emitted tokens, completed by the target's
    own law to depth + 1 tokens, must equal the target's law within 1e-12. Beside random tables of
    independent rows for every context there are adversarial ones (`adversarial_pairs`).

    Args:
        verifier: the rule; one of `treespec.verify`, or any `(tree, target_probs, coins) -> Verdict`.
        laws: the laws to try; by default those that the rule states (`verifier.laws`).
        shapes: the trees; by default all of up to 4 nodes, or none if growths are given. Those that the
            rule states it refuses, and those that a law cannot give with this vocabulary, do not count as
            cases.
        growths: dynamic trees, each tried with the laws that it states too; their decisions are
            enumerated with the drafter's code.
        vocab: number of tokens.
        tables: number of random pairs of tables.
        seed: of the random tables.
        samplings: settings for the random tables; by default temperature 1 (0 for a rule that needs
            one-hot rows, which then meets no other setting).
        draft_with: makes the drafter; its code is enumerated too.
        exact: compute in fractions of small denominators and allow no error at all. About ten times as
            slow; for rules that use the operations of `treespec.testing.Rationals` only.

    Returns:
        The number of cases and runs, and the largest error.

    Raises:
        NotLossless: with the smallest failing tree and the two laws; or if no case was enumerated.
    """
    laws = [Law.of(law) for law in (getattr(verifier, "laws", Law) if laws is None else laws)]
    growths = list(growths)
    if shapes is None:
        shapes = [] if growths else [s for n in range(1, 5) for s in plane_trees(n)]
    one_hot = getattr(verifier, "one_hot", False)
    if samplings is None:
        samplings = [Sampling(temperature=0.0) if one_hot else Sampling()]
    proof = Proof(0, 0, 0.0)
    for shape in [*sorted(shapes, key=lambda s: s.size), *growths]:
        for law in sorted(laws, key=str):
            if isinstance(shape, TreeShape):
                fits = covers(verifier, shape, law, vocab)
            else:
                fits = law in getattr(shape, "laws", Law)
            if not fits:
                continue
            pairs = chain(
                random_pairs(vocab, tables, seed, samplings),
                adversarial_pairs(vocab, seed, one_hot),
            )
            for pair in pairs:
                case = Case(shape, law, pair)
                proof += case.prove(verifier, case.oracle(draft_with, exact), exact)
    if not proof.cases:
        raise NotLossless(f"nothing was enumerated for rule {_name(verifier)}: no case fits it")
    return proof


def covers(verifier: Verifier, shape: TreeShape, law: Law, vocab: int) -> bool:
    """Whether the law can give this tree at all, and the rule does not state that it refuses it."""
    try:
        require_children(max(map(len, shape.children)), vocab, law)
        tokens = torch.tensor([0] + [rank % vocab for rank in shape.ranks[1:]])
        rows = torch.full((len(shape.internal), vocab), 1 / vocab, dtype=torch.float64)
        getattr(verifier, "require", lambda tree: None)(TokenTree(shape, tokens, rows, law))
    except (InvalidTree, RefusedTree):
        return False
    return True


def _name(verifier: Verifier) -> str:
    return getattr(verifier, "__name__", repr(verifier))


def _where(verifier: Verifier, case: Case) -> str:
    return (
        f"rule {_name(verifier)} is not lossless on this tree, children drawn {case.law}, "
        f"{case.pair.name}, {case.pair.sampling}:\n{case.shape}"
    )


def _message(verifier: Verifier, case: Case, found: Tensor, right: Tensor, error: float) -> str:
    difference = (found - right).abs().flatten().tolist()
    worst = difference.index(max(difference))
    text = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), right.shape))
    # The first token whose law is wrong says most: look for it along the worst text.
    place = next(
        (i for i in range(right.ndim) if _next_law(found, text[:i]) != _next_law(right, text[:i])),
        right.ndim - 1,
    )
    after = f"after {list(text[:place])}" if place else "of the first token"
    return (
        f"{_where(verifier, case)}\n"
        f"largest error {error:.3g}, at the tokens {text}: "
        f"{float(found[text]):.6f} instead of {float(right[text]):.6f}\n"
        f"law {after}: {_next_law(found, text[:place])} instead of {_next_law(right, text[:place])}"
    )


def _next_law(law: Tensor, prefix: tuple[int, ...]) -> list[float]:
    """The law of the token after a prefix, from a joint law; rounded, to be shown."""
    rows = law[prefix] if prefix else law
    first = rows.flatten(1).sum(1) if rows.ndim > 1 else rows
    total = float(first.sum()) or 1.0
    return [round(float(x) / total, 6) for x in first.tolist()]
