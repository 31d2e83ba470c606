"""Exact acceptance of a rule: the probability that each node of a tree is accepted."""

from dataclasses import dataclass

from treespec.draft.model import ModelDrafter
from treespec.models.tabular import TabularModel
from treespec.protocols import Rows, Verifier
from treespec.sampling.distributions import Sampling
from treespec.testing.enumerating_coins import Weight, outcomes
from treespec.testing.laws import settled
from treespec.testing.step_oracle import DraftWith, StepOracle
from treespec.tree import Law, TokenTree, TreeShape


@dataclass(frozen=True)
class Acceptance:
    """How often each node of a tree is accepted.

    Args:
        shape: the tree.
        reached: for each node, the probability that it is on the accepted path (1 for the root).
        runs: number of branches enumerated.
    """

    shape: TreeShape
    reached: tuple[Weight, ...]
    runs: int

    @property
    def expected(self) -> Weight:
        """Expected number of accepted draft tokens of one step."""
        return sum(self.reached[1:])

    def by_rank(self, node: int = 0) -> tuple[Weight, ...]:
        """For each child of a node, the probability that it is accepted, given that the node is accepted.

        The difference between their sum and 1 is the probability that no child is accepted. All are 0 if
        the node is never accepted.
        """
        of_node = self.reached[node]
        return tuple(
            self.reached[child] / of_node if of_node else 0 for child in self.shape.children[node]
        )


def acceptance(
    verifier: Verifier,
    shape: TreeShape,
    law: Law,
    *,
    target: TabularModel,
    draft: TabularModel,
    prompt: tuple[int, ...] = (0,),
    sampling: Sampling | None = None,
    draft_with: DraftWith = ModelDrafter,
    exact: bool = False,
) -> Acceptance:
    """Exact acceptance of one step over tables, by enumerating the drafter's and the rule's own code.

    Args:
        verifier: the rule.
        shape: the tree to draft.
        law: how children are drawn.
        target: the target's table.
        draft: the draft's table.
        prompt: committed tokens.
        sampling: sampling setting of target and draft.
        draft_with: makes the drafter.
        exact: compute in fractions, taking the tables' float probabilities as exact.

    Example:
        >>> from treespec import verify
        >>> from treespec.testing import random_table
        >>> target, draft = (TabularModel(random_table(3, seed), 3) for seed in (0, 1))
        >>> accepted = acceptance(
        ...     verify.rrs, TreeShape.expansion([2]), Law.IID, target=target, draft=draft
        ... )
        >>> round(accepted.expected, 3), [round(x, 3) for x in accepted.by_rank()]
        (0.533, [0.423, 0.111])
    """
    target, draft, sampling = settled(target, draft, sampling, exact)
    oracle = StepOracle(shape, law, target, draft, prompt, sampling, draft_with)
    return _acceptance(shape, [(w, verdict.path) for w, _, verdict in oracle.verdicts(verifier)])


def tree_acceptance(verifier: Verifier, tree: TokenTree, target_probs: Rows) -> Acceptance:
    """Exact acceptance of one drafted tree, given its tokens, with a vocabulary of any size.

    The average over drafted trees is an unbiased estimate of a rule's acceptance on a real pair, with less
    noise than counting accepted tokens.

    Args:
        verifier: the rule; it may use a drawn token only to test whether it is one of the tree's tokens.
        tree: the drafted tree.
        target_probs: `[V]` rows by node.
    """
    weighted = outcomes(lambda coins: verifier(tree, target_probs, coins), set(tree.token_ids[1:]))
    return _acceptance(tree.shape, [(weight, verdict.path) for weight, verdict in weighted])


def _acceptance(shape: TreeShape, paths: list[tuple[Weight, tuple[int, ...]]]) -> Acceptance:
    """Add up the weights of all paths that reach each node."""
    reached: list[Weight] = [0] * shape.size
    for weight, path in paths:
        for node in path:
            reached[node] += weight
    return Acceptance(shape, tuple(reached), len(paths))
