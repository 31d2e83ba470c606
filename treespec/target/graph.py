"""The target on CUDA: captures the pass over a tree once per bucket of sizes, and replays it.

Nothing here runs on a CPU, and the CPU path does not import this module (`make_target`).
"""

import weakref
from dataclasses import replace
from typing import Any

import torch

from treespec.errors import StaleScores, Unavailable
from treespec.models.passes.captured_runner import CapturedRunner, Places
from treespec.models.passes.layers_trial import compiled_layers
from treespec.models.passes.static_trial import require_static
from treespec.models.transformers_model import TransformersModel
from treespec.protocols import Decision
from treespec.step import Scores
from treespec.target.model_target import ModelTarget
from treespec.tree import TokenTree
from treespec.tree.kept_rows import kept_paths


class GraphTarget(ModelTarget):
    """Scores a whole tree by replaying a captured pass; the same `Target` as `ModelTarget`.

    The first tree of each bucket costs a capture: three ordinary passes, plus about as much time again.
    Graphs are tied to the addresses of the cache, so they are dropped when the cache grows (it doubles).
    `TransformersModel.reserve` with the longest text avoids that. The next target on the same model reuses
    the memory and graphs of a target that no longer exists, so one target per prompt captures no more
    graphs than one target for all prompts.

    **Logits and features are lent.** `score` returns rows of the graph's own memory, because a copy of
    `[N, V]` numbers would cost time in every step although few callers keep them. The next `score`
    overwrites them; from then on `Scores.logits` and `Scores.features` of the earlier step raise
    `StaleScores`, so stale numbers cannot be misread. To keep the logits of the latest step, copy them:
    `step.scores.logits.clone()`. A tensor that was taken out of the scores earlier is not protected.
    `step.features`, those of the tokens that the step keeps, are a copy. In a batch the scores of all texts
    are lent until its next pass of that size.

    `model`: a model on CUDA, on our attention with the kernel (`attention` "auto" or "triton"). The first
    target on a model tests whether its pass can be captured (`treespec.models.passes.static_trial`) and
    its layers compiled (`treespec.models.passes.layers_trial`): some seconds for each number of rows.
    """

    def __init__(self, model: TransformersModel) -> None:
        _require_cuda(model)
        if model not in _PLACES:
            require_static(model)
            trial = compiled_layers(model)
            _PLACES[model] = Places(trial.layers)
            model.passes = replace(model.passes, uncompiled=trial.why)
        self.model = model.fresh(runner=_PLACES[model].runner)
        runner = self.model.runner
        assert isinstance(runner, CapturedRunner)
        self._runner = runner
        self._lent: LentScores | None = None

    def score(self, tree: TokenTree) -> Scores:
        """Logits after every node of the tree, and features that are lent, valid until the next call."""
        if self._lent is not None:
            self._lent.revoke()
        scores = self.model.run(tree.tokens, tree.shape.parents)
        self._lent = LentScores(scores.logits, scores.features)
        self._runner.lent.append(self._lent)
        return self._lent

    def commit_ahead(self, tree: TokenTree, decision: Decision) -> None:
        """Move the rows of the path that the device decides on; `commit` follows."""
        kept = kept_paths(tree.shape, decision.out.device)
        if kept is not None and self._runner.model.device == kept.device:
            self._runner.keep_ahead(kept, decision)


class LentScores(Scores):
    """Scores that can be revoked."""

    def revoke(self) -> None:
        """From now on, raise where logits or features are read."""
        for name in ("logits", "features"):
            if vars(self).get(name) is not None:
                object.__delattr__(self, name)

    def __repr__(self) -> str:
        return f"LentScores({vars(self).get('logits', 'overwritten')})"

    def __getattr__(self, name: str) -> Any:
        if name not in ("logits", "features"):
            raise AttributeError(name)
        raise StaleScores(
            f"the {name} of this step were overwritten by a later step: a GraphTarget lends them until its "
            f"next pass. Copy {name} that you keep, step.scores.{name}.clone(), or use ModelTarget"
        )


_PLACES: weakref.WeakKeyDictionary[TransformersModel, Places] = weakref.WeakKeyDictionary()
"""Caches and graphs of each model that passed the trial."""


def _require_cuda(model: TransformersModel) -> None:
    if model.device.type != "cuda":
        missing = "" if torch.cuda.is_available() else ", and torch finds no CUDA device here"
        raise Unavailable(
            f"GraphTarget needs a CUDA device, but the model is on {model.device}{missing}: "
            "use ModelTarget, or load the model with device='cuda'"
        )
