"""Where the trees of a method come from: the draft model, and the settings of all draft sources."""

from abc import abstractmethod
from collections.abc import Collection
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, GetCoreSchemaHandler, create_model
from pydantic_core import CoreSchema

from treespec import plugins
from treespec.draft import make_drafter
from treespec.errors import LoadError
from treespec.experiments.config.base import Name
from treespec.plugins import Budget, Kind, Part, Settings, Wanted
from treespec.protocols import Drafter, Models, TreeModel
from treespec.reading_models import Strict
from treespec.tree import Law

__all__ = [
    "NO_DRAFT",
    "Combined",
    "Draft",
    "ModelDraft",
    "OneOf",
    "all_of",
    "by_pair",
    "draft_model",
    "draft_models",
    "laws_of",
    "source_of",
    "state_of",
]

NO_DRAFT = "none"
"""As `models.draft`: there is no draft model (`treespec.models.load.NO_DRAFT`)."""


class ModelDraft(Settings):
    """The draft model of `models`, or one of the method's own."""

    source: Literal["model"] = "model"
    """A draft model drafts: along shapes and growths."""
    model: Name | None = None
    """A folder or hub id; null for `models.draft`."""


class Combined(Settings):
    """A source that is made of others."""

    @property
    @abstractmethod
    def inner(self) -> tuple[Settings, ...]:
        """The settings of the others."""

    @property
    @abstractmethod
    def own_models(self) -> tuple[str | None, ...]:
        """The draft models that it needs, those of the others too; None for `models.draft`."""

    @property
    @abstractmethod
    def laws(self) -> frozenset[Law]:
        """How its children can be chosen."""

    @property
    @abstractmethod
    def label(self) -> str:
        """In names of methods."""

    @property
    def mixes(self) -> bool:
        """Whether its trees are mixed, unless all is deterministic."""
        return False

    def lacks(self, samplings: Collection[str]) -> str | None:
        """What it needs besides under sampling settings of these names, in words; None for nothing."""
        return None

    def refuses(self, tree: Budget) -> str | None:
        """Why it cannot draft within these limits, in words that begin with a key; None if it can."""
        return None


class OneOf:
    """A tagged union over what is registered of a kind, besides the members that a field states.

    Args:
        kind: of the parts.
        key: whose value is the name of the part.
        without: parts that are left out.
    """

    def __init__(self, kind: Kind, key: str, without: Collection[str] = ()) -> None:
        self.kind, self.key, self.without = kind, key, without

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Of all members; made anew when parts come or go (`schema.refresh`)."""
        members = list(get_args(source))
        for part in plugins.parts(self.kind).values():
            settings = tagged(part, self.key)
            if settings not in members and part.name not in self.without:
                members.append(settings)
        union: Any = members[0]
        for member in members[1:]:
            union = union | member
        if len(members) == 1:
            return handler.generate_schema(union)
        return handler.generate_schema(Annotated[union, Field(discriminator=self.key)])


Draft = Annotated[Settings, OneOf("source", "source")]

_TAGGED: dict[tuple[type[Strict], str, str], type[Strict]] = {}


def tagged(part: Part, key: str) -> type[Strict]:
    """The settings of a part, with the key that names it."""
    assert part.settings is not None
    if key in part.settings.model_fields:
        return part.settings
    known = part.settings, key, part.name
    if known not in _TAGGED:
        tag: Any = (Literal[part.name], ...)  # pyrefly: ignore[invalid-literal]
        _TAGGED[known] = create_model(
            part.settings.__name__,
            __base__=part.settings,
            __doc__=part.settings.__doc__ or part.about,
            **{key: tag},
        )
    return _TAGGED[known]


def source_of(draft: Settings) -> Part:
    """The source that settings are of."""
    return plugins.parts("source")[draft.source]  # pyrefly: ignore[missing-attribute]


def by_pair(draft: Settings) -> bool:
    """Whether the draft model of the config's `models` drafts: what is measured is measured of it."""
    return isinstance(draft, ModelDraft) and draft.model is None


def draft_models(draft: Settings) -> tuple[str | None, ...]:
    """The draft models that settings ask for; None for `models.draft`."""
    if isinstance(draft, Combined):
        return draft.own_models
    return (draft.model,) if isinstance(draft, ModelDraft) else ()


def all_of(draft: Settings) -> tuple[Settings, ...]:
    """Settings of a source, and of all that it is made of."""
    inner = draft.inner if isinstance(draft, Combined) else ()
    return (draft, *(one for source in inner for one in all_of(source)))


def state_of(draft: Settings) -> Literal["cold", "warm"] | None:
    """What a source, or one that it is made of, begins prompts with: what it learned elsewhere, or nothing.

    None if there is no source among them that can have a file of it.
    """
    files = [one.warm for one in all_of(draft) if "warm" in type(one).model_fields]  # pyrefly: ignore[missing-attribute]
    if not files:
        return None
    return "cold" if all(file is None for file in files) else "warm"


def laws_of(draft: Settings) -> frozenset[Law]:
    """How a source with these settings can choose children."""
    return draft.laws if isinstance(draft, Combined) else source_of(draft).laws


@plugins.drafter("model", settings=ModelDraft, laws=Law)
def _model(wanted: Wanted, settings: ModelDraft) -> Drafter:
    """A smaller model drafts, level by level, along any shape or growth."""
    assert not isinstance(wanted.tree, Budget)
    model = draft_model(wanted.pair, settings.model)
    return make_drafter(model, wanted.tree, wanted.law, wanted.sampling)


def draft_model(pair: Models, name: str | None) -> TreeModel:
    """The draft model of a name, or that of the pair.

    Raises:
        LoadError: if it was not loaded.
    """
    if name is None:
        return pair.draft
    others = getattr(pair, "others", {})
    if name not in others:
        raise LoadError(f"the draft model {name!r} was not loaded with the pair")
    return others[name]
