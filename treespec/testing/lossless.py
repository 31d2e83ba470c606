"""One line that proves, or refutes, that a rule keeps the target's law."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor

from treespec.children import require_children
from treespec.distributions import Sampling
from treespec.draft.model import ModelDrafter
from treespec.errors import InvalidTree, RefusedTree, TreespecError
from treespec.protocols import Growth, Verifier
from treespec.testing.exact import AsGiven, exactly
from treespec.testing.rounding import Deviation
from treespec.testing.step_oracle import DraftWith, StepOracle
from treespec.testing.tables import TablePair, adversarial_pairs, graded_pairs, random_pairs
from treespec.testing.trees import plane_trees
from treespec.tree import Law, TokenTree, TreeShape

__all__ = ["Case", "NotLossless", "Proof", "assert_lossless", "covers"]

TOLERANCE = 1e-12
"""Of proofs through several steps, in float64."""

VOCAB = 3

LARGER = {
    2: [TreeShape.chain(4), TreeShape.expansion([4])],
    3: [TreeShape((-1, 0, 0, 1, 2))],
    4: [TreeShape.chain(2), TreeShape.expansion([2]), TreeShape.expansion([4])],
    5: [TreeShape.chain(2), TreeShape.expansion([2])],
}
"""Trees beside all of up to four nodes, by vocabulary; branches grow with V to the power of the nodes."""

FEW, GRADED = 2, 3
"""Random and graded pairs of tables for these."""

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
        largest_error: largest difference between a probability and the target's, where rows are float64
            or fractions.
        largest_share: largest error, in float32 too, as a share of what rounding may make (`Rounding`).
    """

    cases: int
    runs: int
    largest_error: float
    largest_share: float = field(default=0.0, repr=False)

    def __add__(self, other: "Proof") -> "Proof":
        return Proof(
            self.cases + other.cases,
            self.runs + other.runs,
            max(self.largest_error, other.largest_error),
            max(self.largest_share, other.largest_share),
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

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows, unless they are fractions."""
        return self.pair.target.row((self.pair.root,)).dtype

    def oracle(self, draft_with: DraftWith = ModelDrafter, exact: bool = False) -> StepOracle:
        """All its drafted trees."""
        target, draft, sampling = self.pair.target, self.pair.draft, self.pair.sampling
        if exact:
            denominator = max(DENOMINATOR, 2 * target.vocab_size)
            target, draft = (exactly(m, sampling, denominator) for m in (target, draft))
            sampling = AsGiven(sampling.temperature)
        prompt = (self.pair.root,)
        return StepOracle(self.shape, self.law, target, draft, prompt, sampling, draft_with)

    def prove(self, verifier: Verifier, oracle: StepOracle, exact: bool = False) -> Proof:
        """Compare the law of a step with the target's.

        Raises:
            NotLossless: if they differ: at all in exact arithmetic, by more than `Rounding` allows in
                floats; or if the rule raises one of treespec's errors.
        """
        try:
            found, right = oracle.law(verifier), oracle.target_law
        except TreespecError as error:
            raise NotLossless(f"{_where(verifier, self)}\nit raises {error!r}") from error
        error, law = float((found.probs - right).abs().max()), found.probs
        if exact:
            law, right = (torch.from_numpy(exactly.numpy()) for exactly in (law, right))
        worst = oracle.rounding.deviation(law, right)
        if not (error if exact else worst.share) <= (0 if exact else 1):
            raise NotLossless(_message(verifier, self, law, right, worst))
        if oracle.rounding.dtype != torch.float64:
            error = 0.0
        return Proof(1, found.runs, error, 0.0 if exact else worst.share)


@dataclass(frozen=True)
class _Family:
    """Trees that are tried with a vocabulary.

    Args:
        vocab: number of tokens.
        trees: static shapes, or growths.
        all_tables: try every pair of tables, or only a few.
    """

    vocab: int
    trees: Sequence[TreeShape | Growth]
    all_tables: bool

    def pairs(self, tables: int, seed: int, one_hot: bool, samplings: Collection[Sampling],
              exact: bool) -> list[TablePair]:
        """The tables, in float64 and some again in float32; exact proofs need these no more."""
        given = self.vocab, seed
        some = list(random_pairs(self.vocab, tables if self.all_tables else min(tables, FEW), seed, samplings))
        if self.all_tables:
            some += adversarial_pairs(*given, one_hot)
        elif not one_hot:
            some += list(graded_pairs(*given))[:GRADED]
        if exact:
            return some
        single = list(random_pairs(self.vocab, min(tables, 1), seed, samplings, torch.float32))
        if not one_hot:
            single += list(graded_pairs(*given, torch.float32))[:2]
        return some + single


def assert_lossless(
    verifier: Verifier,
    *,
    laws: Collection[Law] | None = None,
    shapes: Iterable[TreeShape] | None = None,
    growths: Iterable[Growth] = (),
    vocab: int | None = None,
    tables: int = 3,
    seed: int = 0,
    samplings: Collection[Sampling] | None = None,
    draft_with: DraftWith = ModelDrafter,
    exact: bool = False,
) -> Proof:
    """DOC"""
    laws = [Law.of(law) for law in (getattr(verifier, "laws", Law) if laws is None else laws)]
    one_hot = getattr(verifier, "one_hot", False)
    if samplings is None:
        samplings = [Sampling(temperature=0.0) if one_hot else Sampling()]
    proof = Proof(0, 0, 0.0)
    for family in _families(shapes, list(growths), vocab):
        pairs = family.pairs(tables, seed, one_hot, samplings, exact)
        for tree in family.trees:
            for law in sorted(laws, key=str):
                if isinstance(tree, TreeShape):
                    fits = covers(verifier, tree, law, family.vocab)
                else:
                    fits = law in getattr(tree, "laws", Law)
                for pair in pairs if fits else ():
                    case = Case(tree, law, pair)
                    proof += case.prove(verifier, case.oracle(draft_with, exact), exact)
    if not proof.cases:
        raise NotLossless(f"nothing was enumerated for rule {_name(verifier)}: no case fits it")
    return proof


def _families(
    shapes: Iterable[TreeShape] | None, growths: list[Growth], vocab: int | None
) -> list[_Family]:
    """What to try: the trees given, or all of up to four nodes and some that are larger or wider."""
    if shapes is not None or growths:
        given = sorted(shapes or [], key=lambda s: s.size)
        return [_Family(vocab or VOCAB, [*given, *growths], all_tables=True)]
    small = [s for n in range(1, 5) for s in plane_trees(n)]
    families = [_Family(vocab or VOCAB, small, all_tables=True)]
    return families + [_Family(vocab or v, trees, all_tables=False) for v, trees in LARGER.items()]


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


def _message(
    verifier: Verifier, case: Case, found: Tensor, right: Tensor, worst: Deviation
) -> str:
    prefix, token = worst.prefix, worst.token
    after = f"after {list(prefix)}" if prefix else "of the first token"
    was, should = (_next_law(law, prefix) for law in (found, right))
    digits = next((d for d in (6, 12) if f"{was[token]:.{d}g}" != f"{should[token]:.{d}g}"), 17)
    dtype = "" if case.dtype is torch.float64 else f", in {str(case.dtype).removeprefix('torch.')}"
    return (
        f"{_where(verifier, case)}\n"
        f"largest error {abs(was[token] - should[token]):.3g}, {worst.share:.3g} times what rounding can "
        f"do{dtype}, of token {token} {after}: "
        f"{was[token]:.{digits}g} instead of {should[token]:.{digits}g}\n"
        f"law {after}: {_shown(was, digits)} instead of {_shown(should, digits)}"
    )


def _next_law(law: Tensor, prefix: tuple[int, ...]) -> list[float]:
    """The law of the token after a prefix, from a joint law."""
    rows = law[prefix] if prefix else law
    first = rows.flatten(1).sum(1) if rows.ndim > 1 else rows
    total = float(first.sum()) or 1.0
    return [float(x) / total for x in first.tolist()]


def _shown(law: Sequence[float], digits: int) -> list[float]:
    return [float(f"{x:.{digits}g}") for x in law]
