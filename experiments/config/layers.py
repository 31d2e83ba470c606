"""Draft sources that are a part of the target: their settings in configs, and how each is built."""

from abc import abstractmethod
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from treespec.draft import EarlyExit, LayerSkip
from treespec.draft.skip_set import SkipSet
from treespec.errors import InvalidArgument
from treespec.experiments.config.files import stamp
from treespec.experiments.config.model_draft import built_in
from treespec.models.variants.sublayers import Sublayer, layers_from, require_sublayers
from treespec.plugins import Budget, Settings, Wanted
from treespec.protocols import Drafter
from treespec.search.growth.keys import Count, Name
from treespec.tree import Law


def _sublayer(name: str) -> str:
    try:
        return str(Sublayer.of(name))
    except InvalidArgument as error:
        raise ValueError(str(error)) from None


SublayerName = Annotated[Name, AfterValidator(_sublayer)]


class PartOfTarget(Settings):
    """A source whose draft is the target without some of its sublayers."""

    @abstractmethod
    def skipped(self, layers: int, target: str = "") -> frozenset[Sublayer]:
        """The sublayers to skip in a target with this many layers.

        `target` is its fingerprint, which a skip-set file must match; empty until weights are loaded.
        """


@built_in(laws=Law)
class EarlyExitDraft(PartOfTarget):
    """Early exit: the target's first layers, its final norm and its head."""

    source: Literal["early_exit"] = "early_exit"
    """The target's first layers draft any shape or growth."""
    layers: Count
    """Number of first layers that draft."""

    def skipped(self, layers: int, target: str = "") -> frozenset[Sublayer]:
        if self.layers > layers:
            raise InvalidArgument(
                f"layers = {self.layers}, but the target has {layers} layers: give at most {layers}"
            )
        return frozenset(layers_from(self.layers, layers))

    def make(self, wanted: Wanted) -> Drafter:
        assert not isinstance(wanted.tree, Budget)
        target: Any = wanted.pair.target
        return EarlyExit(target, self.layers, wanted.tree, wanted.law, wanted.sampling)


@built_in(laws=Law)
class LayerSkipDraft(PartOfTarget):
    """Layer skip: the target without a set of its attention and feed-forward sublayers."""

    source: Literal["layer_skip"] = "layer_skip"
    """The target without some sublayers drafts any shape or growth."""
    skip: Annotated[tuple[SublayerName, ...], Field(max_length=20_000)] | None = None
    """The sublayers to skip, such as `[attention.1, mlp.2]`; null for those in `file`."""
    file: Name | None = None
    """A file written by `treespec skip-set search` for this target; null for none."""

    @model_validator(mode="after")
    def _one_of_both(self) -> "LayerSkipDraft":
        if (self.skip is None) == (self.file is None):
            raise ValueError("give skip, such as [attention.1, mlp.2], or file, and not both")
        return self

    def skipped(self, layers: int, target: str = "") -> frozenset[Sublayer]:
        if self.file is None:
            return require_sublayers("skip", self.skip or (), layers)
        skip_set = _skip_set(self.file, stamp(self.file))
        try:
            skip_set.require_of(layers, target)
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.file}: {error}") from None
        return require_sublayers("skip", skip_set.skip, layers)

    def make(self, wanted: Wanted) -> Drafter:
        assert not isinstance(wanted.tree, Budget)
        target: Any = wanted.pair.target
        skip = self.skipped(target.layer_count, getattr(target, "fingerprint", ""))
        return LayerSkip(target, skip, wanted.tree, wanted.law, wanted.sampling)


@lru_cache(maxsize=16)
def _skip_set(file: str, stamp: object) -> SkipSet:
    return SkipSet.load(file)
