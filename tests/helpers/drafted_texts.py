"""Texts that are drafted over fixed memory, compared with the same texts drafted by levels."""

import torch

from treespec import Sampling, TreeShape
from treespec.models.pass_kinds import Passes
from treespec.models.passes.static_pass import StaticRunner
from treespec.tree.unread_tree import UnreadTree

WARM, COLD = Sampling(), Sampling(temperature=0.0)
SHAPES = {
    "chain": TreeShape.chain(3),
    "expansion": TreeShape.expansion([3, 2, 1]),
    "pairs": TreeShape.expansion([2, 2]),
    "random": TreeShape.from_parents([-1, 0, 0, 0, 1, 1, 2, 4, 4, 6]),
}


def static(model, runner=StaticRunner):
    """The model, with passes in fixed memory."""
    twin = model.fresh()
    twin.run_by(runner, Passes("captured"))
    return twin


def rows(model):
    """Committed rows of all layers."""
    cache = model.runner.cache
    tensors = [x for layer in cache.layers for x in (layer.keys, layer.values)]
    return [x[:, :, : cache.length].clone() for x in tensors]


def require_equal(ours, theirs):
    """Of each: trees, how many committed tokens each had to run, rows, and the next coin; returns ours."""
    (mine, committed, own_rows, rest), (right, _, their_rows, their_rest) = ours, theirs
    assert rest == their_rest
    for tree, other in zip(mine, right, strict=True):
        assert isinstance(tree, UnreadTree)
        assert not isinstance(other, UnreadTree)
        assert tree.token_ids == other.token_ids
        assert (tree.shape, tree.law, tree.is_vouched) == (other.shape, other.law, other.is_vouched)
        assert (tree.draft_probs is None) == (other.draft_probs is None)
        if tree.draft_probs is not None:
            torch.testing.assert_close(tree.draft_probs, other.draft_probs, rtol=1e-4, atol=1e-5)
    for one, other in zip(own_rows, their_rows, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    return {*committed}
