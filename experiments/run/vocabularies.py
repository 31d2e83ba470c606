"""Refuse drafts whose vocabulary a method cannot use, before weights are read."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from treespec.errors import InvalidArgument
from treespec.experiments.config.build import BuiltMethod
from treespec.experiments.config.model_draft import ModelDraft, StringsDraft, all_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.errors import ConfigError

if TYPE_CHECKING:
    from treespec.models.load import Pair
    from treespec.models.outline import PairOutline

Choosy = ModelDraft | StringsDraft


def choosy_in(method: BuiltMethod) -> list[Choosy]:
    """The sources of a method that not every vocabulary suits: strings, and trimmed draft models."""
    if not isinstance(method.config, TreeMethod):
        return []
    return [
        source
        for source in all_of(method.config.draft)
        if isinstance(source, StringsDraft)
        or (isinstance(source, ModelDraft) and source.frequent is not None)
    ]


def require_vocabularies(outline: "PairOutline", methods: Iterable[BuiltMethod]) -> None:
    """Check the vocabularies of a pair's drafts, and the texts in which tokens are counted.

    Args:
        outline: of the pair, with the draft models that the methods bring.
        methods: of an experiment.

    Raises:
        ConfigError: names the method and the key of its draft.
    """

    def check(source: Choosy) -> None:
        source.require(outline.draft if source.model is None else outline.others[source.model])

    _each(methods, check)


def require_trimmable(pair: "Pair", methods: Iterable[BuiltMethod]) -> None:
    """Trim the drafts that methods trim, which is done once, so that those that cannot be are refused.

    Raises:
        ConfigError: names the method and the key of its draft.
    """
    models: Any = pair

    def check(source: Choosy) -> None:
        if isinstance(source, ModelDraft):
            source.model_of(models)

    _each(methods, check)


def _each(methods: Iterable[BuiltMethod], check: Callable[[Choosy], None]) -> None:
    for method in methods:
        for source in choosy_in(method):
            try:
                check(source)
            except InvalidArgument as error:
                raise ConfigError(f"method {method.name!r}: draft.{error}") from None
