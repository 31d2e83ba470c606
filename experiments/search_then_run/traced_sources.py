"""Which draft sources can be recorded position by position, and what is asked of each."""

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
    CascadeDraft: "what it drafts are the tokens of its first model, whatever drafts for that: record a "
    "chain of this model",
    MergeDraft: "its sources share out the nodes of a tree anew for every budget: record them one by one, "
    f"and {RUN_IT}",
}
"""Why no record of a source can serve many trees."""

BARE_MODELS = (ModelDrafter, EarlyExit, LayerSkip)
"""What a record of their model tells all of. Other kinds of them may draft in another way."""


@dataclass(frozen=True)
class TracedPair:
    """The target, and what drafts instead of the pair's draft model."""

    target: TreeModel
    draft: TreeModel


def require_traceable(method: BuiltMethod) -> None:
    """Refuse a source that depends on earlier trees, before a model is loaded.

    Raises:
        ConfigError: naming the source and the reason.
    """
    assert isinstance(method.config, TreeMethod)
    draft = method.config.draft
    reason = REASONS.get(type(draft))
    if reason is not None:
        raise ConfigError(
            f"--method {method.name!r}: {source_of(draft).name} cannot be traced: {reason}"
        )


def traced_source(method: BuiltMethod, sampling: str, pair: Models) -> MatchingSource | TracedPair:
    """What is recorded of a method that does not draft with the pair's draft model.

    Args:
        method: a traceable one.
        sampling: name of the setting.
        pair: with the draft models of the method.

    Returns:
        A text source itself; else target and draft, if the draft is a model or a part of the target.

    Raises:
        ConfigError: if it is neither, or drafts with a model in a way of its own.
        TreespecError: if the source cannot be made.
    """
    made = method.drafter(pair, sampling)
    if isinstance(made, MatchingSource):
        return made
    assert isinstance(method.config, TreeMethod)
    bare = type(made) in BARE_MODELS
    if isinstance(made, ModelDrafter) and bare and not isinstance(method.tree, Budget):
        return TracedPair(pair.target, made.given)
    if isinstance(made, ModelDrafter) and not bare:
        raise ConfigError(
            f"--method {method.name!r}: {source_of(method.config.draft).name} cannot be traced: it drafts "
            f"with a {type(made).__name__}, which may draft otherwise than its model alone does: {RUN_IT}"
        )
    raise ConfigError(
        f"--method {method.name!r}: {source_of(method.config.draft).name} cannot be traced: what it drafts "
        f"is not known to be a function of the text alone (treespec.draft.MatchingSource): {RUN_IT}"
    )
