"""Prove or refute, with one call, that a rule preserves the target's law."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from treespec.draft.growth import laws_along
from treespec.draft.model import ModelDrafter
from treespec.errors import TreespecError
from treespec.protocols import Growth, Verifier
from treespec.sampling.children import too_many
from treespec.sampling.distributions import Sampling
from treespec.testing.exact import AsGiven, exactly
from treespec.testing.rounding import Deviation
from treespec.testing.step_oracle import DraftWith, StepOracle
from treespec.testing.tables import TablePair, adversarial_pairs, graded_pairs, random_pairs
from treespec.testing.trees import plane_trees
from treespec.tree import Law, TreeShape
from treespec.verify.engine.wrapped import WrappedRule
from treespec.verify.rule import Rule

TOLERANCE = 1e-12
"""Largest allowed error of proofs through several steps, in float64."""

VOCAB = 3
"""Default number of tokens."""

RANDOM_PAIRS_OF_LARGE_CASES, GRADED_PAIRS_OF_LARGE_CASES = 2, 3
"""Random and graded pairs of tables for trees of more than four nodes, or other than 3 tokens."""

DENOMINATOR = 24
"""Largest denominator of probabilities in exact proofs, before they are normalised to sum to 1."""


class NotLossless(AssertionError):
    """The law of a step's tokens differs from the target's, or nothing was enumerated."""


@dataclass(frozen=True)
class Proof:
    """What `assert_lossless` enumerated.

    Args:
        cases: number of combinations of tree, law, tables and settings.
        runs: number of branches walked, in all cases together.
        largest_error: largest difference between a probability and the target's, over rows in float64 or
            fractions.
        largest_share: largest error, including float32 rows, as a share of the rounding bound (`Rounding`).
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
    """A tree or growth, a law and a pair of tables.

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
        """Dtype of the rows, unless they are fractions."""
        return self.pair.target.row((self.pair.root,)).dtype

    def oracle(self, draft_with: DraftWith = ModelDrafter, exact: bool = False) -> StepOracle:
        """The oracle over all trees that can be drafted in this case."""
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
            NotLossless: if the laws differ (at all in exact arithmetic; by more than `Rounding` allows in
                floats), or if the rule raises one of treespec's errors.
        """
        try:
            emitted, expected = oracle.law(verifier), oracle.target_law
        except TreespecError as error:
            raise NotLossless(f"{_where(verifier, self)}\nit refuses: {error}") from error
        error, law = float((emitted.probs - expected).abs().max()), emitted.probs
        if exact:
            law, expected = (torch.from_numpy(probs.numpy()) for probs in (law, expected))
        worst = oracle.rounding.deviation(law, expected, emitted.chance)
        if not (error if exact else worst.share) <= (0 if exact else 1):
            raise NotLossless(_message(verifier, self, law, expected, worst))
        if oracle.rounding.dtype != torch.float64:
            error = 0.0
        return Proof(1, emitted.runs, error, 0.0 if exact else worst.share)


@dataclass(frozen=True)
class _Family:
    """Trees that are tested with one vocabulary.

    Args:
        vocab: number of tokens.
        trees: static shapes, or growths.
        tables: all pairs of tables, a few of each kind, or a single random pair.
        laws: laws by which they are drafted; the number of branches grows with V to the power of the nodes.
    """

    vocab: int
    trees: Sequence[TreeShape | Growth]
    tables: Literal["all", "few", "one"]
    laws: Collection[Law] = frozenset(Law)

    def pairs(
        self,
        tables: int,
        seed: int,
        one_hot: bool,
        samplings: Collection[Sampling],
        exact: bool,
    ) -> list[TablePair]:
        """The pairs of tables, in float64 and some again in float32, which exact proofs do not need."""
        if self.tables == "one":
            return list(random_pairs(self.vocab, min(tables, 1), seed, samplings))
        if self.tables == "all":
            pairs = [
                *random_pairs(self.vocab, tables, seed, samplings),
                *adversarial_pairs(self.vocab, seed, one_hot),
            ]
        else:
            count = min(tables, RANDOM_PAIRS_OF_LARGE_CASES)
            pairs = list(random_pairs(self.vocab, count, seed, samplings))
            if not one_hot:
                pairs += islice(graded_pairs(self.vocab, seed), GRADED_PAIRS_OF_LARGE_CASES)
        if not exact:
            pairs += random_pairs(self.vocab, min(tables, 1), seed, samplings, torch.float32)
            if not one_hot:
                pairs += islice(graded_pairs(self.vocab, seed, torch.float32), 2)
        return pairs


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
    """Prove the one-step theorem for a rule by exact enumeration, or raise.

    For every tree, law and pair of tables, the law of a step's emitted tokens, completed to depth + 1
    tokens by the target's own law, must equal the target's law. This covers the law of each token given the
    tokens before it, however improbable those are; for the first token also each probability relative to
    itself, where the chances that the rule meets allow it. `treespec.testing.rounding` derives the allowed
    error in float64 and float32 (2.6e-14 and 1.4e-5 for trees of 5 nodes and 5 tokens), for rules that make
    two passes more over their rows than necessary; the rules of this package stay below a tenth of it.

    Default cases: all trees of up to 4 nodes with 3 tokens; a chain of depth 4 and a node with four
    children with 2 tokens; two siblings that both have children with 3; a chain of depth 2 and a pair of
    siblings with 4 and with 5; four children with 4, and with 5 for laws whose children are distinct.
    Tables for each: random rows, rows from nearly sure (0.999 to 1 - 1e-7) down to 1e-12 (`graded_pairs`),
    target and draft equal up to a part in 1e7; for the trees of up to 4 nodes all of `adversarial_pairs`.
    Roots cycle through all tokens. Some tables are repeated in float32. Also refuted are rules that write
    to their inputs, whose choices differ when the same coins fall again, or whose path does not descend.

    Not covered:

    - a bias only in trees of depth 5 or more, of more than five nodes or four children of a node, or with 6
      or more tokens: choose such trees and vocabularies with `shapes` and `vocab`;
    - several such conditions at once (depth 4 with 3 tokens, for example), or a condition on probabilities
      between those of the tables;
    - nodes not numbered breadth first, and trees whose nodes have different laws: a drafter that makes such
      trees (`draft_with`) covers both;
    - probabilities below 1e-12, differences between p and q below a part in 1e10, and changes of a token's
      law below the bounds above: in float32 a bias of less than 1.4e-5, for example of a residual of mass
      1e-6, unless it is large relative to an improbable first token where rejections are likely;
    - a bias only in float16 or bfloat16 or on another device, in logits that a rule reads past its rows,
      or for coins of another type;
    - state that a rule keeps between calls, unless it shows while one tree is enumerated; and everything
      passed from step to step, which `output_law` and `python -m treespec.experiments.lossless.prove`
      cover.

    Args:
        verifier: the rule; one of `treespec.verify`, or any `(tree, target_probs, coins) -> Verdict`.
        laws: the laws to test; by default those that the rule states (`verifier.laws`).
        shapes: trees to test instead of the default ones. Trees that the rule states it refuses, and trees
            that a law cannot give with this vocabulary, do not count as cases.
        growths: dynamic trees, instead of the default trees or in addition to `shapes`, each tested with
            the laws that both the growth and the rule state; their decisions are enumerated with the
            drafter's code.
        vocab: number of tokens; by default 3, and as above for the default trees.
        tables: number of random pairs of tables.
        seed: seed of the random tables.
        samplings: sampling settings for the random tables; by default temperature 1 (temperature 0 only,
            for a rule that needs one-hot rows).
        draft_with: makes the drafter, whose code is enumerated too.
        exact: compute in fractions with small denominators and allow no error at all. About ten times
            slower; for rules that only use operations of `treespec.testing.Rationals`.

    Returns:
        The number of cases and runs, and the largest error.

    Raises:
        NotLossless: with a failing tree (smaller trees of a vocabulary come first) and both laws; or if no
            case was enumerated.

    Example:
        >>> from treespec import TreeShape, verify
        >>> assert_lossless(verify.rrsw, shapes=[TreeShape.expansion([2])], tables=1, exact=True)
        Proof(cases=23, runs=293, largest_error=0.0)
    """
    laws = [Law.of(law) for law in (getattr(verifier, "laws", Law) if laws is None else laws)]
    one_hot = getattr(verifier, "one_hot", False)
    if samplings is None:
        samplings = [Sampling(temperature=0.0) if one_hot else Sampling()]
    proof = Proof(0, 0, 0.0)
    for family in _families(shapes, list(growths), vocab):
        pairs = family.pairs(tables, seed, one_hot, samplings, exact)
        for tree in family.trees:
            for law in sorted(set(laws) & set(family.laws), key=str):
                if isinstance(tree, TreeShape):
                    fits = covers(verifier, tree, law, family.vocab)
                else:
                    fits = law in laws_along(tree)
                for pair in pairs if fits else ():
                    case = Case(tree, law, pair)
                    proof += case.prove(verifier, case.oracle(draft_with, exact), exact)
    if not proof.cases:
        raise NotLossless(
            f"nothing was enumerated for rule {_name(verifier)}: "
            "it covers none of the trees and laws to test"
        )
    return proof


def _families(
    shapes: Iterable[TreeShape] | None, growths: list[Growth], vocab: int | None
) -> list[_Family]:
    """The given trees; or all trees of up to four nodes, and some larger or wider ones."""
    if shapes is not None or growths:
        by_size = sorted(shapes or [], key=lambda shape: shape.size)
        return [_Family(vocab or VOCAB, [*by_size, *growths], "all")]
    small = [shape for size in range(1, 5) for shape in plane_trees(size)]
    deep, star = TreeShape.chain(4), TreeShape.expansion([4])
    narrow = [TreeShape.chain(2), TreeShape.expansion([2])]
    distinct = frozenset(Law) - {Law.IID}
    return [
        _Family(vocab or VOCAB, small, "all"),
        _Family(vocab or 2, [deep, star], "few"),
        _Family(vocab or 3, [TreeShape((-1, 0, 0, 1, 2))], "few"),
        _Family(vocab or 4, narrow, "few"),
        _Family(vocab or 4, [star], "one"),
        _Family(vocab or 5, narrow, "few"),
        _Family(
            vocab or 5, [star], "few", distinct
        ),  # with fewer tokens, nothing would be rejected
    ]


def covers(verifier: Verifier, shape: TreeShape, law: Law, vocab: int) -> bool:
    """Whether the law can give this tree, and the rule does not state that it refuses it."""
    if isinstance(verifier, Rule | WrappedRule):
        return verifier.covers(shape, law, vocab) is None
    return too_many(max(map(len, shape.children)), vocab, law) is None


def _name(verifier: Verifier) -> str:
    return getattr(verifier, "__name__", repr(verifier))


def _where(verifier: Verifier, case: Case) -> str:
    return (
        f"rule {_name(verifier)} is not lossless on this tree, children of law {case.law}, "
        f"{case.pair.name}, {case.pair.sampling}:\n{case.shape}"
    )


def _message(
    verifier: Verifier, case: Case, emitted: Tensor, expected: Tensor, worst: Deviation
) -> str:
    prefix, token = worst.prefix, worst.token
    after = f"after {list(prefix)}" if prefix else "of the first token"
    actual, correct = (_next_law(law, prefix) for law in (emitted, expected))
    digits = next((d for d in (6, 12) if f"{actual[token]:.{d}g}" != f"{correct[token]:.{d}g}"), 17)
    dtype = "" if case.dtype is torch.float64 else f", in {str(case.dtype).removeprefix('torch.')}"
    return (
        f"{_where(verifier, case)}\n"
        f"largest error {abs(actual[token] - correct[token]):.3g}, {worst.share:.3g} times the rounding "
        f"bound{dtype}, of token {token} {after}: "
        f"{actual[token]:.{digits}g} instead of {correct[token]:.{digits}g}\n"
        f"law {after}: {_shown(actual, digits)} instead of {_shown(correct, digits)}"
    )


def _next_law(law: Tensor, prefix: tuple[int, ...]) -> list[float]:
    """The law of the token after a prefix, from a joint law."""
    rest = law[prefix] if prefix else law
    next_token = rest.flatten(1).sum(1) if rest.ndim > 1 else rest
    total = float(next_token.sum()) or 1.0
    return [float(x) / total for x in next_token.tolist()]


def _shown(law: Sequence[float], digits: int) -> list[float]:
    return [float(f"{x:.{digits}g}") for x in law]
