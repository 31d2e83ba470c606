"""The target on CUDA: a tree's pass is captured once for each bucket of sizes, and replayed.

Nothing here runs on a CPU, and the CPU path does not import it (`make_target`).
"""

import weakref
from typing import Any

import torch

from treespec.errors import StaleScores, Unavailable
from treespec.models.captured_runner import CapturedRunner, Place, Places
from treespec.models.static_trial import require_static
from treespec.models.transformers_model import TransformersModel
from treespec.step import Scores
from treespec.target.model import ModelTarget
from treespec.tree import TokenTree

__all__ = ["GraphTarget"]


class GraphTarget(ModelTarget):
    """Scores a whole tree by replaying a captured pass; the same `Target` as `ModelTarget`.

    The first tree of each bucket costs a capture: three ordinary passes, and about their time again. When
    the cache grows (it doubles), what was captured is dropped, since it knows the old addresses; with room
    for the longest text from the beginning (`TransformersModel.reserve`) it never is. Memory and
    graphs of a target that is gone serve the next one on the same model, so that a target for each prompt
    captures no more than one for all.

    **Logits are lent.** `score` returns rows of the graph's own memory; a copy of `[N, V]` numbers at every
    step would be paid by all for the few who keep them. At the next `score` they are overwritten, and
    `Scores.logits` raises from then on (`StaleScores`), so a step that was kept cannot be misread. What is
    wanted longer, copy while its step is the last: `step.scores.logits.clone()`. A tensor taken out of the
    scores before cannot be guarded so.

    Args:
        model: on CUDA, on our attention with the kernel (`attention` "auto" or "triton"). Tried out at the
            first target on it (`treespec.models.static_trial`).

    Raises:
        Unavailable: without a CUDA device, or without Triton.
        UnsupportedModel: if the model's pass cannot be captured: it takes trees as a mask, is spread over
            several devices, reads values back (some experts, rotary scalings that change with the length),
            or keeps lengths as Python numbers.

    Not thread-safe: one graph runs at a time, as one model does.
    """

    def __init__(self, model: TransformersModel) -> None:
        _require_cuda(model)
        if model not in _PLACES:
            require_static(model)
            _PLACES[model] = Places()
        self.model = model.fresh(runner=_PLACES[model].runner)
        runner = self.model.runner
        assert isinstance(runner, CapturedRunner)
        self._place = runner.place

    def score(self, tree: TokenTree) -> Scores:
        """Logits after every node of the tree, lent until the next call."""
        _take_back(self._place)
        self._place.lent = LentScores(self.model.run(tree.tokens, tree.shape.parents))
        return self._place.lent


class LentScores(Scores):
    """Scores whose logits can be taken back."""

    def __repr__(self) -> str:
        """The logits, if they are still there."""
        return f"LentScores({vars(self).get('logits', 'overwritten')})"

    def __getattr__(self, name: str) -> Any:
        if name != "logits":
            raise AttributeError(name)
        raise StaleScores(
            "the logits of this step were overwritten by a later one: a GraphTarget lends them until its "
            "next pass. Copy those that are kept, step.scores.logits.clone(), or use ModelTarget"
        )


_PLACES: weakref.WeakKeyDictionary[TransformersModel, Places] = weakref.WeakKeyDictionary()
"""Of each model that has been tried out."""


def _take_back(place: Place) -> None:
    if place.lent is not None:
        object.__delattr__(place.lent, "logits")
        place.lent = None


def _require_cuda(model: TransformersModel) -> None:
    if model.device.type != "cuda":
        missing = "" if torch.cuda.is_available() else ", and torch finds no CUDA device here"
        raise Unavailable(
            f"GraphTarget needs a CUDA device, but the model is on {model.device}{missing}: "
            "use ModelTarget, or load the model with device='cuda'"
        )
