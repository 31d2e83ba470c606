"""Draft sources in configs: the draft model's settings, and what the settings of all sources share."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import Field, GetCoreSchemaHandler, create_model, model_validator
from pydantic_core import CoreSchema

from treespec import plugins
from treespec.draft import ModelDrafter, StringDrafter, make_drafter
from treespec.errors import InvalidArgument, LoadError, Unreadable, UnsupportedModel
from treespec.experiments.config.files import stamp
from treespec.files import read_text
from treespec.plugins import Budget, Kind, Part, Settings, Trees, Wanted
from treespec.protocols import Drafter, Models, TreeModel
from treespec.reading_models import Strict
from treespec.sampling.distributions import Sampling
from treespec.search.growth.keys import Count, Name
from treespec.tree import Law, TreeShape

NO_DRAFT = "none"
"""Value of `models.draft` for no draft model (`treespec.models.pair_places.NO_DRAFT`)."""


class Combined(Settings):
    """A draft source that combines other sources."""

    @property
    @abstractmethod
    def inner(self) -> tuple[Settings, ...]:
        """The settings of the combined sources."""

    @property
    @abstractmethod
    def own_models(self) -> tuple[str | None, ...]:
        """The draft models needed, those of inner sources included; None stands for `models.draft`."""

    @property
    @abstractmethod
    def laws(self) -> frozenset[Law]:
        """The laws by which children can be chosen."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The source's part of a method's name."""

    mixes: ClassVar[bool] = False
    """Whether trees mix laws, unless all children are deterministic."""

    def lacks(self, samplings: Collection[str]) -> str | None:
        """A message if something is missing for one of these sampling settings (names); else None."""
        return None

    def refuses(self, tree: Budget) -> str | None:
        """Why the source cannot draft within this budget, beginning with a key; None if it can."""
        return None


class OneOf:
    """A tagged union of a field's members and the settings of all registered parts of a kind.

    The value of `key` names the part; the parts `without` are left out.
    """

    def __init__(self, kind: Kind, key: str, without: Collection[str] = ()) -> None:
        self.kind, self.key, self.without = kind, key, without

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """The schema of the union as of now; `schema.refresh` rebuilds it when parts come or go."""
        members = list(get_args(source))
        for part in plugins.parts(self.kind).values():
            settings = tagged(part, self.key)
            if settings not in members and part.name not in self.without:
                members.append(settings)
        union: Any = reduce(or_, members)
        if len(members) == 1:
            return handler.generate_schema(union)
        return handler.generate_schema(Annotated[union, Field(discriminator=self.key)])


Draft = Annotated[Settings, OneOf("source", "source")]

_TAGGED: dict[tuple[type[Strict], str, str], type[Strict]] = {}


def tagged(part: Part, key: str) -> type[Strict]:
    """The settings class of a part; a subclass with the key that names the part if it lacks one."""
    assert part.settings is not None
    if key in part.settings.model_fields:
        return part.settings
    identity = part.settings, key, part.name
    if identity not in _TAGGED:
        tag: Any = (Literal[part.name], ...)  # pyrefly: ignore[invalid-literal]
        _TAGGED[identity] = create_model(
            part.settings.__name__,
            __base__=part.settings,
            __doc__=part.settings.__doc__ or part.about,
            **{key: tag},
        )
    return _TAGGED[identity]


def source_of(draft: Settings) -> Part:
    return plugins.parts("source")[draft.source]  # pyrefly: ignore[missing-attribute]


def label_of_draft(draft: Settings) -> str:
    """The name of a draft source, with the settings that differ from the defaults."""
    if isinstance(draft, Combined):
        return draft.label
    given = draft.model_dump(exclude={"source"}, exclude_defaults=True)
    return " ".join([source_of(draft).name, *(f"{key}={value}" for key, value in given.items())])


def by_pair(draft: Settings) -> bool:
    """Whether `models.draft` drafts; the config's `search` measures that model only."""
    return isinstance(draft, ModelDraft) and draft.model is None and draft.frequent is None


def draft_models(draft: Settings) -> tuple[str | None, ...]:
    """The draft models that the source runs; None stands for `models.draft`."""
    if isinstance(draft, Combined):
        return draft.own_models
    return (draft.model,) if isinstance(draft, ModelDraft | StringsDraft) else ()


def all_of(draft: Settings) -> tuple[Settings, ...]:
    """The settings of a source and, recursively, of all sources it combines."""
    inner = draft.inner if isinstance(draft, Combined) else ()
    return (draft, *(nested for source in inner for nested in all_of(source)))


def state_of(draft: Settings) -> Literal["cold", "warm"] | None:
    """`warm` if a source, or one it combines, starts each prompt from a file it learned from; else `cold`.

    None if no source among them can have such a file.
    """
    files = [source.warm for source in all_of(draft) if "warm" in type(source).model_fields]  # pyrefly: ignore[missing-attribute]
    if not files:
        return None
    return "cold" if all(file is None for file in files) else "warm"


def laws_of(draft: Settings) -> frozenset[Law]:
    """The laws by which a source with these settings can choose children."""
    return draft.laws if isinstance(draft, Combined) else source_of(draft).laws


S = TypeVar("S", bound=type[Settings])


def built_in(
    laws: Collection[Law] = (Law.DETERMINISTIC,), trees: Trees = "any"
) -> Callable[[S], S]:
    """Register a built-in source: settings that `make` its drafter, under the name in their `source`.

    Their docstring describes the source; `treespec.plugins.drafter` has the rest.
    """

    def register(settings: S) -> S:
        def make(wanted: Wanted, given: Any) -> Drafter:
            return given.make(wanted)

        make.__doc__ = settings.__doc__
        name = settings.model_fields["source"].default
        plugins.drafter(name, settings=settings, laws=laws, trees=trees)(make)
        return settings

    return register


def draft_model(pair: Models, name: str | None) -> TreeModel:
    if name is None:
        return pair.draft
    others = getattr(pair, "others", {})
    if name not in others:
        raise LoadError(f"the draft model {name!r} was not loaded with the pair")
    return others[name]


@built_in(laws=Law)
class ModelDraft(Settings):
    """The draft model of `models`, or one of the method's own."""

    source: Literal["model"] = "model"
    """A draft model drafts any shape or growth."""
    model: Name | None = None
    """A folder or hub id; null for `models.draft`."""
    frequent: Count | None = None
    """Compute logits of this many tokens only, the most frequent of `texts` (FR-Spec); null for all."""
    texts: Annotated[tuple[Name, ...], Field(min_length=1, max_length=1000)] | None = None
    """Text files in which tokens are counted for `frequent`, by the target's tokenizer."""

    @model_validator(mode="after")
    def _counted(self) -> "ModelDraft":
        if (self.frequent is None) != (self.texts is None):
            raise ValueError(
                "frequent and texts belong together: how many tokens, and the text files in which they are "
                "counted; give both or neither"
            )
        return self

    def make(self, wanted: Wanted) -> Drafter:
        assert not isinstance(wanted.tree, Budget)
        return make_drafter(self.model_of(wanted.pair), wanted.tree, wanted.law, wanted.sampling)

    def require(self, model: Any) -> None:
        """Refuse a model whose vocabulary cannot be trimmed, and texts in which nothing can be counted.

        Args:
            model: the draft model, or its outline (`treespec.models.outline.ModelOutline`).

        Raises:
            InvalidArgument: names the key.
        """
        if self.frequent is None or self.texts is None:
            return
        why = None
        if getattr(model, "shared", None) is not None:
            why = "has another tokenizer than the target, by whose tokens it would be trimmed"
        elif getattr(model, "needs_source", False):
            why = "is an encoder-decoder, which is not trimmed"
        elif self.frequent > model.own_vocab_size:
            raise InvalidArgument(
                f"frequent = {self.frequent:,}, but the draft has logits of {model.own_vocab_size:,} "
                "tokens: give fewer, or leave frequent and texts out"
            )
        if why is not None:
            raise InvalidArgument(
                f"frequent = {self.frequent:,}, but the draft {why}: leave frequent and texts out, or name "
                "another draft model"
            )
        try:
            counted = any(read_text(file).strip() for file in self.texts)
        except Unreadable as error:
            raise InvalidArgument(f"texts: {error}") from None
        if not counted:
            raise InvalidArgument(
                f"texts = {', '.join(self.texts)}: no text to count tokens in: name files that have some"
            )

    def model_of(self, pair: Models) -> TreeModel:
        """The model that drafts, its vocabulary trimmed if it is to be."""
        model: Any = draft_model(pair, self.model)
        if self.frequent is not None and self.texts is not None:
            from treespec.models.variants.trimmed import most_frequent

            self.require(model)
            tokenizer: Any = pair.tokenizer  # pyrefly: ignore[missing-attribute]
            stamps = tuple((file, stamp(file)) for file in self.texts)
            kept = most_frequent(
                _counted_in(stamps, tokenizer), self.frequent, model.own_vocab_size
            )
            try:
                return model.of_tokens(kept)
            except UnsupportedModel as error:
                raise InvalidArgument(
                    f"frequent = {self.frequent:,}: {error}: leave frequent and texts out"
                ) from error
        return model


@lru_cache(maxsize=4)
def _counted_in(files: tuple[tuple[str, object], ...], tokenizer: Any) -> Mapping[int, int]:
    """How often each token stands in these files."""
    texts = (read_text(file) for file, _ in files)
    return Counter(
        token
        for text in texts
        for token in tokenizer.encode(text, add_special_tokens=False, verbose=False)
    )


@built_in()
class StringsDraft(Settings):
    """A draft model of another tokenizer, whose drafts are strings in the target's tokens.

    Text sources that match strings are for Python only: `StringDrafter(PromptLookup(...), ...)` of
    `treespec.draft`.
    """

    source: Literal["strings"] = "strings"
    """A draft model of another tokenizer drafts strings; needs `models.other_tokenizer`."""
    model: Name | None = None
    """A folder or hub id; null for `models.draft`."""

    def require(self, model: Any) -> None:
        """Refuse a model of the target's tokenizer.

        Args:
            model: the draft model, or its outline (`treespec.models.outline.ModelOutline`).

        Raises:
            InvalidArgument: names the key.
        """
        if getattr(model, "shared", None) is None:
            raise InvalidArgument(
                "source = strings is for a draft model of another tokenizer, and this one has the "
                "target's: use {source: model}"
            )

    def make(self, wanted: Wanted) -> Drafter:
        model: Any = draft_model(wanted.pair, self.model)
        self.require(model)
        tree, shared = wanted.tree, model.shared
        assert isinstance(tree, TreeShape)
        drafter = ModelDrafter(model.inner, tree, Law.DETERMINISTIC, Sampling())
        return StringDrafter(
            drafter, shared.target, shared.draft, size=tree.size, depth=max(tree.depth, 1)
        )
