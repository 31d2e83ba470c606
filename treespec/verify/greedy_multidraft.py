"""Greedy multi-draft acceptance: all drafts but the last are the draft's most probable tokens."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.protocols import Coins, Rows
from treespec.sampling.children import next_child
from treespec.sampling.distributions import residual
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.rule import NodeChoice, Scope, ratio, rule, top_down


@rule(laws={Law.TOP_THEN_SAMPLE}, reference="arXiv:2502.18779", distinct=True, scope=Scope.SIBLINGS)
def greedy_multidraft(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Accept the one sampled child y with min(1, p / q~), else output a draw from norm([p - q~]+).

    Greedy multi-draft speculative sampling (Hu et al., arXiv:2502.18779): the first k - 1
    children T are the draft's most probable tokens; the last is drawn from q~, the draft's distribution
    outside T. A draw from the residual that lies in T accepts that child. Acceptance is
    p(T) + sum outside T of min(p, q~), the optimum for children drawn this way.

    Args:
        tree: children drawn by `Law.TOP_THEN_SAMPLE`.
        target_probs: `[V]` rows by node.
        coins: one coin and at most one draw for each visited node.

    Raises:
        RefusedTree: for children drawn by another law, repeated siblings, or a last child that the
            draft could not have drawn.
    """
    return top_down(tree, target_probs, coins, _at_node)


def _at_node(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    assert draft_probs is not None
    top = torch.tensor([children[:-1]], dtype=torch.long, device=draft_probs.device)
    last = next_child(draft_probs[None], top, Law.TOP_THEN_SAMPLE)[0]
    if coins.accept(ratio(target_probs, last, children[-1])):
        return NodeChoice(child=len(children) - 1)
    return NodeChoice.of(coins.draw(residual(target_probs, last)), children)
