"""SpecHub: pairs of drafts that contain the draft's most probable token."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.errors import RefusedTree
from treespec.protocols import Coins, Rows
from treespec.sampling.children import next_child
from treespec.step import Verdict
from treespec.tree import Law, TokenTree
from treespec.verify.rrs import in_draw_order
from treespec.verify.rule import NodeChoice, Scope, ratio, rule, top_down


@rule(laws={Law.HUB}, reference="arXiv:2411.05289", distinct=True, scope=Scope.SIBLINGS)
def spechub(tree: TokenTree, target_probs: Rows, coins: Coins, /) -> Verdict:
    """Accept one token of a pair that always contains the hub, the draft's most probable token.

    SpecHub (arXiv:2411.05289): with the hub a, the pairs are (i, a) with mass q(i) and (a, i)
    with mass q(a) q(i) / (1 - q(a)). Token i takes its target mass from (i, a) first, then from (a, i);
    the hub takes the mass left in the pairs (a, .), then in (., a). The part of p that no pair supplies is
    the residual. If q(a) = 1 or there is a single child, this is single-draft rejection.

    Args:
        tree: children drawn by `Law.HUB`: at most two at a node.
        target_probs: `[V]` rows by node.
        coins: for each visited node, at most two coins and one draw: a coin for the other token of the
            pair, a coin for the hub, a draw from the residual.

    Raises:
        RefusedTree: for children drawn by another law, repeated siblings, or a pair that the law cannot
            draw.
    """
    return top_down(tree, target_probs, coins, _at_node)


def _at_node(
    target_probs: Float[Tensor, "V"],
    draft_probs: Float[Tensor, "V"] | None,
    children: Sequence[int],
    coins: Coins,
) -> NodeChoice:
    assert draft_probs is not None
    hub = int(draft_probs.argmax())
    if len(children) == 1 or draft_probs[hub] == 1:
        single = in_draw_order(target_probs, draft_probs, children[:1], coins)
        return single if single.token is None else NodeChoice.of(single.token, children)
    if hub not in children:
        raise RefusedTree(f"no child is the hub, the draft's most probable token {hub}")
    ratio(target_probs, draft_probs, children[0])
    hub_row = torch.tensor([[hub]], device=draft_probs.device)
    spoke_first = draft_probs.clone()
    spoke_first[hub] = 0
    hub_first = draft_probs[hub] * next_child(draft_probs[None], hub_row, Law.HUB)[0]

    from_spoke_first = torch.minimum(target_probs, spoke_first)
    missing = target_probs - from_spoke_first
    from_hub_first = torch.minimum(missing, hub_first)
    missing = missing - from_hub_first
    unused_hub_first = hub_first - from_hub_first
    unused_spoke_first = spoke_first - from_spoke_first
    hub_takes_first = torch.minimum(missing[hub], unused_hub_first.sum())
    hub_takes_second = torch.minimum(missing[hub] - hub_takes_first, unused_spoke_first.sum())

    hub_is_first = children[0] == hub
    spoke = children[1] if hub_is_first else children[0]
    mass = (hub_first if hub_is_first else spoke_first)[spoke]
    if not mass > 0:
        raise RefusedTree(f"token {spoke} cannot have been drawn beside the hub {hub}")
    for_spoke = (from_hub_first if hub_is_first else from_spoke_first)[spoke]
    unused = unused_hub_first if hub_is_first else unused_spoke_first
    taken = hub_takes_first if hub_is_first else hub_takes_second
    for_hub = unused[spoke] * taken / unused.sum() if unused.sum() > 0 else taken * 0
    if coins.accept(for_spoke / mass):
        return NodeChoice(child=children.index(spoke))
    if mass > for_spoke and coins.accept(for_hub / (mass - for_spoke)):
        return NodeChoice(child=children.index(hub))
    missing[hub] = (missing[hub] - hub_takes_first - hub_takes_second).clamp_min(0)
    return NodeChoice.of(coins.draw(missing if missing.sum() > 0 else target_probs), children)
