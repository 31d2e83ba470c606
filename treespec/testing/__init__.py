"""Proofs and tests that decoding preserves the target's law.

Exact over tables: coins that take every side, output laws, `assert_lossless`. Statistical on real models:
`compare_laws`. They also work for your own rules and drafters; decoding itself uses none of them.
"""

from treespec.models.tabular import TabularModel, random_table
from treespec.testing.acceptance import Acceptance, acceptance, tree_acceptance
from treespec.testing.compare import (
    Deviation,
    LawComparison,
    PositionTest,
    TooFewSamples,
    compare_laws,
)
from treespec.testing.enumerating_coins import EnumeratingCoins, outcomes
from treespec.testing.laws import output_law, step_law, target_law
from treespec.testing.lossless import Case, NotLossless, Proof, assert_lossless, covers
from treespec.testing.planted import planted
from treespec.testing.rationals import Rationals
from treespec.testing.step_oracle import DraftWith, ExactLaw, StepOracle
from treespec.testing.tables import TablePair, adversarial_pairs, graded_pairs, random_pairs
from treespec.testing.trees import plane_trees

__all__ = [
    "Acceptance",
    "Case",
    "Deviation",
    "DraftWith",
    "EnumeratingCoins",
    "ExactLaw",
    "LawComparison",
    "NotLossless",
    "PositionTest",
    "Proof",
    "Rationals",
    "StepOracle",
    "TablePair",
    "TabularModel",
    "TooFewSamples",
    "acceptance",
    "adversarial_pairs",
    "assert_lossless",
    "compare_laws",
    "covers",
    "graded_pairs",
    "outcomes",
    "output_law",
    "plane_trees",
    "planted",
    "random_pairs",
    "random_table",
    "step_law",
    "target_law",
    "tree_acceptance",
]
