"""Exact proofs over tables: coins that land on every side, output laws, `assert_lossless`.

For tests of one's own rules and drafters too; nothing here is used while decoding.
"""

from treespec.models.tabular import TabularModel, random_table
from treespec.testing.coins import EnumeratingCoins, outcomes
from treespec.testing.laws import DraftWith, ExactLaw, output_law, step_law, target_law
from treespec.testing.lossless import NotLossless, Proof, assert_lossless
from treespec.testing.trees import plane_trees

__all__ = [
    "DraftWith",
    "EnumeratingCoins",
    "ExactLaw",
    "NotLossless",
    "Proof",
    "TabularModel",
    "assert_lossless",
    "outcomes",
    "output_law",
    "plane_trees",
    "random_table",
    "step_law",
    "target_law",
]
