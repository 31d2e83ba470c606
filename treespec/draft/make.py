"""Which drafter a tree gets when nobody says."""

from treespec.distributions import Sampling
from treespec.draft.model import ModelDrafter
from treespec.draft.nothing import NoDrafter
from treespec.protocols import Drafter, Growth, TreeModel
from treespec.tree import Law, TreeShape

__all__ = ["make_drafter"]


def make_drafter(
    model: TreeModel, growth: Growth | TreeShape, law: Law, sampling: Sampling
) -> Drafter:
    """The model's drafter of this tree; for the root alone, plain decoding, one that asks no model.

    Args:
        model: the weights; the drafter has a cache of its own.
        growth: where the tree grows; a `TreeShape` grows as it is.
        law: how children are chosen.
        sampling: the settings of the target.

    Raises:
        InvalidTree: if the growth states that it is not made for the law.
    """
    if isinstance(growth, TreeShape) and growth.size == 1:
        return NoDrafter()
    return ModelDrafter(model, growth, law, sampling)
