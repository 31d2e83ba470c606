"""Decide which draft sources can be recorded position by position, and what is recorded of each."""

from collections.abc import Mapping
from dataclasses import dataclass

from treespec.draft import EarlyExit, LayerSkip, MatchingSource, ModelDrafter
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.combined import CascadeDraft, MergeDraft
from treespec.experiments.config.drafts import source_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.config.sources import JacobiDraft, LookaheadDraft, TokenRecyclingDraft
from treespec.experiments.errors import ConfigError
from treespec.plugins import Budget, Settings
from treespec.protocols import Models, TreeModel

__all__ = ["TracedPair", "require_traceable", "traced_source"]

LIVE_ONLY = "what it drafts depends on the trees it drafted before"

RUN_IT = "run it (`treespec run`)"

REASONS: Mapping[type[Settings], str] = {
    TokenRecyclingDraft: f"{LIVE_ONLY}: {RUN_IT}",
    LookaheadDraft: f"{LIVE_ONLY}: {RUN_IT}",
    JacobiDraft: f"{LIVE_ONLY}: {RUN_IT}",
    CascadeDraft: "its draft tokens are those of its first model, whatever drafts for that model: record a "
    "chain of that model",
    MergeDraft: "how it divides nodes among its sources depends on the budget: record each source alone, "
    f"and {RUN_IT}",
}
"""Why one trace of such a source cannot serve many trees."""

BARE_MODELS = (ModelDrafter, EarlyExit, LayerSkip)
"""Drafters that a trace of their model describes completely. Subclasses may draft differently."""


@dataclass(frozen=True)
class TracedPair:
    """The target, and the model that drafts instead of the pair's draft model."""

    target: TreeModel
    draft: TreeModel


def require_traceable(method: BuiltMethod) -> None:
    """Refuse a source that no trace can serve, before a model is loaded.

    Raises:
        ConfigError: if the method's source is in `REASONS`; the message names it and the reason.
    """
    assert isinstance(method.config, TreeMethod)
    draft = method.config.draft
    reason = REASONS.get(type(draft))
    if reason is not None:
        raise ConfigError(
            f"--method {method.name!r}: {source_of(draft).name} cannot be traced: {reason}"
        )


def traced_source(method: BuiltMethod, sampling: str, pair: Models) -> MatchingSource | TracedPair:
    """Return what to record for a method that does not draft with the pair's draft model.

    Args:
        method: a method that passed `require_traceable`.
        sampling: name of the sampling setting.
        pair: the models, including the draft models of the method.

    Returns:
        The source itself if it is a text source; target and draft if the draft is a model or a part of the
        target.

    Raises:
        ConfigError: if it is neither, or if it drafts with a model in a way of its own.
        TreespecError: if the source cannot be built.
    """
    drafter = method.drafter(pair, sampling)
    if isinstance(drafter, MatchingSource):
        return drafter
    assert isinstance(method.config, TreeMethod)
    bare = type(drafter) in BARE_MODELS
    if isinstance(drafter, ModelDrafter) and bare and not isinstance(method.tree, Budget):
        return TracedPair(pair.target, drafter.given)
    if isinstance(drafter, ModelDrafter) and not bare:
        raise ConfigError(
            f"--method {method.name!r}: {source_of(method.config.draft).name} cannot be traced: it drafts "
            f"with a {type(drafter).__name__}, which may not draft as its model alone does: {RUN_IT}"
        )
    raise ConfigError(
        f"--method {method.name!r}: {source_of(method.config.draft).name} cannot be traced: what it drafts "
        f"is not known to be a function of the text alone (treespec.draft.MatchingSource): {RUN_IT}"
    )
