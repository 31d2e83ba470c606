"""What times the levels of a method's own draft: a trained head's, or those of a draft model of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from treespec.draft import ModelDrafter
from treespec.draft.trained.marginal_drafter import MarginalDrafter
from treespec.experiments.config.build import BuiltMethod, Choice
from treespec.experiments.config.model_draft import ModelDraft, draft_model, source_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.config.trained import TrainedHead
from treespec.experiments.errors import ConfigError
from treespec.protocols import Growth, Observer
from treespec.tree import TreeShape

if TYPE_CHECKING:
    from treespec.models.load import Pair

Making: TypeAlias = Callable[["Pair", Growth | TreeShape, Observer | None], ModelDrafter]
"""Makes a drafter of a pair along a growth that tells an observer its levels."""


@dataclass(frozen=True)
class TimedDraft:
    """How a method drafts.

    Args:
        make: makes its drafters.
        depth: levels below the root that it drafts at most; None for any number.
        max_length: positions of its context.
    """

    make: Making
    depth: int | None
    max_length: int


def timed_draft(method: BuiltMethod, pair: "Pair", choice: Choice) -> TimedDraft:
    """What is timed for a method with a source of its own.

    Raises:
        ConfigError: if its source runs no model, or is no head or model alone.
    """
    assert isinstance(method.config, TreeMethod)
    draft, law, sampling = method.config.draft, choice.law, choice.sampling
    if isinstance(draft, TrainedHead):
        head, kind = draft.head(pair.target), type(draft).drafter

        def make(pair: "Pair", tree: Growth | TreeShape, observer: Observer | None) -> ModelDrafter:
            made = kind(head, tree, law, sampling, observer)
            assert isinstance(made, ModelDrafter)
            return made

    elif isinstance(draft, ModelDraft):

        def make(pair: "Pair", tree: Growth | TreeShape, observer: Observer | None) -> ModelDrafter:
            return ModelDrafter(draft_model(pair, draft.model), tree, law, sampling, observer)

    else:
        raise ConfigError(
            f"--method {method.name!r}: levels are timed of trained heads and draft models, and "
            f"{source_of(draft).name} is neither: leave out --method, and the times are the target's"
        )
    one = make(pair, TreeShape.chain(1), None)
    depth = one.depth if isinstance(one, MarginalDrafter) else None
    return TimedDraft(make, depth, one.max_length)
