"""Choose the target class for a model."""

import logging
from typing import Any

from treespec.errors import Unavailable, UnsupportedModel
from treespec.models.pass_kinds import Passes
from treespec.protocols import Target, TreeModel
from treespec.target.model_target import ModelTarget

log = logging.getLogger("treespec")


def make_target(model: TreeModel) -> Target:
    """A target over a model: a `GraphTarget`, which replays captured passes, on CUDA; else a `ModelTarget`.

    A model on CUDA gets a `ModelTarget` too if its pass cannot be captured, in which case the log says why,
    or if its passes were set to another kind. To insist on one of the two, call
    `treespec.target.graph.GraphTarget(model)` or `ModelTarget(model)`.

    Args:
        model: the weights; the target has a cache of its own.
    """
    device: Any = getattr(model, "device", None)
    if device is None or device.type != "cuda":
        return ModelTarget(model)
    from treespec.models.transformers_model import TransformersModel
    from treespec.target.graph import GraphTarget

    if not isinstance(model, TransformersModel) or _refuses_capture(model.passes):
        return ModelTarget(model)
    try:
        return GraphTarget(model)
    except (Unavailable, UnsupportedModel) as reason:
        log.warning("the target's passes are not captured: %s", reason)
        return ModelTarget(model)


def _refuses_capture(passes: Passes) -> bool:
    """Whether passes were requested and turned out to be of another kind than captured."""
    return passes.asked is not None and passes.kind != "captured"
