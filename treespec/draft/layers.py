"""Drafting with a part of the target: its first layers, or all but a set of sublayers.

Both are model drafters over a model that shares the target's weights (`TransformersModel.without`), so a
tree grows along any shape and by any law. The draft has a cache of its own, with rows of the layers that it
runs. Rows of the layers up to the first part that is left out are equal to the target's own, for nodes of
the tree too; they are computed twice. Behind it the rows differ: a draft that reads the target's rows there
(as Draft & Verify does for committed tokens) has another distribution.
"""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from treespec.distributions import Sampling
from treespec.door import able, integer
from treespec.draft.model import ModelDrafter
from treespec.models.sublayers import Sublayer, layers_from, require_sublayers
from treespec.protocols import Growth, TreeModel
from treespec.tree import Law, TreeShape

__all__ = ["EarlyExit", "LayerSkip", "LayeredModel"]

WANTED = "a model whose layers can be left out (TransformersModel)"


@runtime_checkable
class LayeredModel(TreeModel, Protocol):
    """A model of layers that can be left out."""

    @property
    def layer_count(self) -> int:
        """Its layers."""
        ...

    def without(self, skip: Iterable[str | Sublayer]) -> TreeModel:
        """A model of the same weights that leaves these sublayers out."""
        ...


class EarlyExit(ModelDrafter):
    """Drafts with the target's first layers, its final norm and its head.

    The simplest form of self-speculation (Elhoushi et al. 2024, LayerSkip, arXiv:2404.16710, which trains
    models for it; ours takes any, and keeps no rows for the target to reuse). With all layers the draft is
    the target, and everything is accepted.

    Args:
        target: whose layers draft; its own cache is not touched.
        layers: how many of them, from the first; at least 1.
        growth: where the tree grows, see `ModelDrafter`.
        law: how children are chosen, see there.
        sampling: the settings of the target.

    Raises:
        InvalidArgument: if the target has no such number of layers, or is something else.
        UnsupportedModel: if models of this architecture cannot leave layers out.
        InvalidTree: see `ModelDrafter`.
    """

    def __init__(
        self,
        target: LayeredModel,
        layers: int,
        growth: Growth | TreeShape,
        law: Law,
        sampling: Sampling,
    ) -> None:
        able("target", target, "without layer_count", WANTED)
        count = target.layer_count
        self.layers = integer("layers", layers, least=1, most=count)
        super().__init__(target.without(layers_from(self.layers, count)), growth, law, sampling)


class LayerSkip(ModelDrafter):
    """Drafts with the target without a set of its sublayers.

    Zhang et al. 2023, Draft & Verify, arXiv:2309.08168: which attentions and feed-forward parts are left
    out is searched (`treespec.draft.skip_set`). Ours differs in that the draft's rows are its own, for
    committed tokens too. The empty set accepts everything.

    Args:
        target: whose sublayers draft; its own cache is not touched.
        skip: sublayers that are left out, or their names, such as `attention.3` and `mlp.0`.
        growth: where the tree grows, see `ModelDrafter`.
        law: how children are chosen, see there.
        sampling: the settings of the target.

    Raises:
        InvalidArgument: if the target has no such sublayer, would have none left, or is something else.
        UnsupportedModel: if models of this architecture cannot leave these out.
        InvalidTree: see `ModelDrafter`.
    """

    def __init__(
        self,
        target: LayeredModel,
        skip: Iterable[str | Sublayer],
        growth: Growth | TreeShape,
        law: Law,
        sampling: Sampling,
    ) -> None:
        able("target", target, "without layer_count", WANTED)
        self.skip = require_sublayers("skip", skip, target.layer_count)
        super().__init__(target.without(self.skip), growth, law, sampling)
