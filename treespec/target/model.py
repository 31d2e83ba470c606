"""The target of the decoding loop, over any model that can run a tree."""

import logging
from typing import Any

from jaxtyping import Int
from torch import Tensor

from treespec.door import require_tokens
from treespec.errors import Unavailable, UnsupportedModel
from treespec.models.pass_kinds import Passes
from treespec.protocols import Target, TreeModel
from treespec.step import Scores, Step
from treespec.tree import TokenTree

log = logging.getLogger("treespec")


class ModelTarget:
    """Scores a whole tree in one pass and keeps the rows of the accepted path.

    Args:
        model: the weights; the model's own cache is not touched. Each target has a fresh cache, so several
            texts can be decoded side by side, and one model can be target and draft at once.
    """

    def __init__(self, model: TreeModel) -> None:
        self.model = model.fresh()

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.model.vocab_size

    @property
    def max_length(self) -> int:
        """Number of positions in the model's context."""
        return self.model.max_length

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        """Cache all tokens but the last, which becomes the first root."""
        require_tokens(tokens)
        self.model.prefill(tokens[:-1])

    def score(self, tree: TokenTree) -> Scores:
        """Logits after every node of the tree."""
        return Scores(self.model.run(tree.tokens, tree.shape.parents))

    def commit(self, step: Step) -> None:
        """Keep the rows of the root and the accepted nodes. The bonus token becomes the next root."""
        self.model.keep(step.verdict.path)


def make_target(model: TreeModel) -> Target:
    """A target over a model: a `GraphTarget`, which replays captured passes, on CUDA; else a `ModelTarget`.

    A model on CUDA gets a `ModelTarget` too if its pass cannot be captured, in which case the log says why,
    or if its passes were set to another kind (`treespec.models.passes`). To insist on one of the two, call
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
