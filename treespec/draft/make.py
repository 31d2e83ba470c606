"""The default drafter of a tree."""

from treespec.distributions import Sampling
from treespec.draft.model import ModelDrafter
from treespec.draft.nothing import NoDrafter
from treespec.protocols import Drafter, Growth, TreeModel
from treespec.tree import Law, TreeShape


def make_drafter(
    model: TreeModel, growth: Growth | TreeShape, law: Law, sampling: Sampling
) -> Drafter:
    """A `ModelDrafter` for this tree, or a `NoDrafter` if the tree is the root alone (plain decoding).

    Args:
        model: the draft model; the drafter has its own cache.
        growth: where the tree grows; a `TreeShape` is drafted as it is.
        law: how children are chosen.
        sampling: the target's sampling settings.

    Raises:
        InvalidTree: if the growth states its laws and this law is not among them.
    """
    if isinstance(growth, TreeShape) and growth.size == 1:
        return NoDrafter()
    return ModelDrafter(model, growth, law, sampling)
