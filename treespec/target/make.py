"""Which target a model gets when nobody says."""

import logging
from typing import Any

from treespec.door import able
from treespec.errors import Unavailable, UnsupportedModel
from treespec.models.pass_kinds import Passes
from treespec.protocols import Target, TreeModel
from treespec.target.model import ModelTarget

__all__ = ["make_target"]

log = logging.getLogger("treespec")


def make_target(model: TreeModel) -> Target:
    """A target over this model: on CUDA one that replays captured passes, elsewhere the plain one.

    A model on CUDA whose pass cannot be captured gets the plain one too, and the log says why; so does one
    whose passes were asked to be eager, or had to be (`treespec.models.passes`). Who wants
    one of them and no other makes it: `treespec.target.graph.GraphTarget(model)`, or `ModelTarget(model)`.

    Args:
        model: the weights; the target has a cache of its own.

    Raises:
        InvalidArgument: if it is no model that runs trees.
    """
    able("model", model, "fresh prefill run keep", "a model that runs trees (TreeModel)")
    place: Any = getattr(model, "device", None)
    if place is None or place.type != "cuda":
        return ModelTarget(model)
    from treespec.models.transformers_model import TransformersModel
    from treespec.target.graph import GraphTarget

    eager = isinstance(model, TransformersModel) and _asked_for_eager(model.passes)
    if not isinstance(model, TransformersModel) or eager:
        return ModelTarget(model)
    try:
        return GraphTarget(model)
    except (Unavailable, UnsupportedModel) as reason:
        log.warning("the target's passes are not captured: %s", reason)
        return ModelTarget(model)


def _asked_for_eager(passes: Passes) -> bool:
    return passes.asked is not None and passes.kind != "captured"
