"""Parts by name: draft sources, rules, growths, metrics and processors that a config may name.

Built-in parts and those of plug-ins are registered here in the same way. A plug-in is a Python file, or an
installed package with an entry point in the group `treespec.plugins`, that registers parts on import:

    from treespec import plugins

    class Settings(plugins.Settings):
        n: int = 3

    @plugins.drafter("mine", settings=Settings, laws={plugins.Law.DETERMINISTIC}, trees="budget")
    def make(wanted: plugins.Wanted, settings: Settings) -> Drafter: ...

`treespec.plugin_files` loads them.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args

from pydantic import ConfigDict

from treespec.errors import InvalidPlugin, text_of
from treespec.protocols import Growth, Models
from treespec.reading_models import Strict
from treespec.sampling.distributions import Sampling
from treespec.tree import Law, TreeShape
from treespec.verify import RULES, Rule

__all__ = [
    "Budget",
    "Kind",
    "Law",
    "Part",
    "Settings",
    "Trees",
    "Wanted",
    "drafter",
    "first_line",
    "growth",
    "kept",
    "metric",
    "parts",
    "processor",
    "registering",
    "restore",
    "rule",
    "version",
]

Kind = Literal["source", "rule", "growth", "metric", "processor"]
"""The kind of a part."""

Trees = Literal["any", "budget", "chain"]
"""Which trees a draft source takes: any shape or growth, a `Budget`, or a `Budget` for chains only."""

T = TypeVar("T")

SHAPES = (
    "chain", "kary", "expansion", "delayed_expansion", "independent_chains", "spine", "parents", "paths",
    "optimal", "best", "budget",
)  # fmt: skip
"""What `kind` of a shape means already."""

OURS = "treespec"
"""Origin of the built-in parts."""


class Settings(Strict):
    """Settings of a part, with types and defaults; a config with unknown settings is refused.

    Settings are part of the config: another value makes another experiment. Defaults are validated like
    values in a config.
    """

    model_config = ConfigDict(validate_default=True)


@dataclass(frozen=True)
class Budget:
    """The limits of a tree, for sources that bring their own continuations instead of filling a shape.

    Args:
        size: maximum number of nodes, the root included.
        depth: maximum depth, in edges from the root.
        branching: maximum number of children of a node; with 1 the trees are chains.
    """

    size: int
    depth: int
    branching: int

    @property
    def max_depth(self) -> int:
        """Maximum depth, in edges from the root."""
        return self.depth


@dataclass(frozen=True)
class Wanted:
    """What a drafter is to be made for.

    Args:
        tree: a shape or a growth, or a budget for sources with `trees="budget"` or `trees="chain"`.
        law: how children are to be chosen; one of the laws that the source states.
        sampling: the target's settings, which a draft model uses as well.
        pair: the models; sources that need no model ignore them.
    """

    tree: TreeShape | Growth | Budget
    law: Law
    sampling: Sampling
    pair: Models


@dataclass(frozen=True)
class Part:
    """A part that configs can name.

    Args:
        kind: `source`, `rule`, `growth`, `metric` or `processor`.
        name: name in configs.
        make: for a source, a function `(wanted, settings) -> Drafter`; for a growth, a class; for a metric,
            a function of steps; for a processor, a function `settings -> processor`; for a rule, the rule
            itself.
        about: description in one line.
        settings: the class of its settings; None for rules and metrics.
        laws: for a source or rule, the laws of children that it can choose or covers.
        trees: for a source, whether it fills shapes and growths (`any`), or takes a `Budget` for any tree
            (`budget`) or for chains only (`chain`).
        module: the module that registered it.
        origin: the file that registered it; `treespec` for built-in parts.
    """

    kind: Kind
    name: str
    make: Any
    about: str
    settings: type[Strict] | None
    laws: frozenset[Law]
    trees: Trees
    module: str
    origin: str

    @property
    def plugged(self) -> bool:
        """Whether it comes from a plug-in."""
        return self.origin != OURS


_PARTS: dict[tuple[Kind, str], Part] = {}
_STATE: dict[str, Any] = {"version": 0, "module": None, "origin": None}


def drafter(
    name: str,
    *,
    settings: type[Strict] = Settings,
    laws: Collection[Law] = (Law.DETERMINISTIC,),
    trees: Trees = "any",
) -> Callable[[T], T]:
    """Register a draft source: a function or class called with a `Wanted` and its settings.

    Args:
        name: name in configs, as in `draft: {source: NAME}`.
        settings: the class of its settings.
        laws: how it can choose children; `Wanted.law` is one of these.
        trees: `any` if it drafts any given shape or growth; `budget` if it brings its own continuations
            within a `Budget`; `chain` if that budget must have branching 1.

    Raises:
        InvalidPlugin: if the name is taken, or an argument is invalid.
    """
    _require_settings(name, settings)
    if trees not in get_args(Trees):
        raise InvalidPlugin(
            f"drafter {name!r}: trees = {trees!r}, but must be one of {', '.join(get_args(Trees))}"
        )
    if "source" in settings.model_fields and not settings.__module__.startswith("treespec."):
        raise InvalidPlugin(f"drafter {name!r}: a setting may not be called 'source'")
    try:
        stated = frozenset(map(Law.of, laws))
    except Exception as error:
        raise InvalidPlugin(f"drafter {name!r}: laws: {text_of(error)}") from None
    if not stated:
        raise InvalidPlugin(f"drafter {name!r}: laws is empty: state how children are chosen")
    return lambda make: _register("source", name, make, settings=settings, laws=stated, trees=trees)


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register an acceptance rule, made by `treespec.verify.rule`, and set its `__name__` to this name.

    Raises:
        InvalidPlugin: if the name is taken, or the decorated object is not an acceptance rule.
    """

    def register(made: Rule) -> Rule:
        if not isinstance(made, Rule):
            raise InvalidPlugin(
                f"rule {name!r}: not an acceptance rule: put @plugins.rule above @treespec.verify.rule(...)"
            )
        _register("rule", name, made, laws=made.laws)
        # Records and tables refer to a rule by this name.
        made.__name__ = name  # pyrefly: ignore[missing-attribute]
        return made

    return register


def growth(name: str, *, settings: type[Strict] = Settings) -> Callable[[T], T]:
    """Register a growth policy: a class that takes the fields of its settings as keyword arguments.

    Args:
        name: name in configs, as in `shape: {kind: NAME}`.
        settings: the class of its settings.

    Raises:
        InvalidPlugin: if the name is taken, or an argument is invalid.
    """
    _require_settings(name, settings)
    if "kind" in settings.model_fields and not settings.__module__.startswith("treespec."):
        raise InvalidPlugin(f"growth {name!r}: a setting may not be called 'kind'")
    return lambda make: _register("growth", name, make, settings=settings)


def processor(name: str, *, settings: type[Strict] = Settings) -> Callable[[T], T]:
    """Register a logits processor: a function from its settings to a `transformers.LogitsProcessor`.

    It is called as in `generate`, with the text of one node at a time, and must not remember earlier calls.

    Args:
        name: name in configs, as in `samplings: [{custom: [{processor: NAME}]}]`.
        settings: the class of its settings.

    Raises:
        InvalidPlugin: if the name is taken, or an argument is invalid.
    """
    _require_settings(name, settings)
    if "processor" in settings.model_fields:
        raise InvalidPlugin(f"processor {name!r}: a setting may not be called 'processor'")
    return lambda make: _register("processor", name, make, settings=settings)


def metric(name: str, about: str) -> Callable[[T], T]:
    """Register a metric: a function from the steps of one prompt to a number or None.

    Steps are `treespec.experiments.records.outcome.StepOutcome`: `shape`, `tokens`, `verdict`, `kept`,
    `seconds`. Only methods that run in our own loop have steps. The value is recorded for each prompt;
    tables show the mean over the compared prompts.

    Args:
        name: name of its column.
        about: what it measures, in one line.

    Raises:
        InvalidPlugin: if the name is taken.
    """
    return lambda make: _register("metric", name, make, about=about)


def parts(kind: Kind) -> Mapping[str, Part]:
    """All parts of a kind by name: built-in parts first, then those of plug-ins in registration order."""
    by_name = {name: part for (part_kind, name), part in _PARTS.items() if part_kind == kind}
    if kind == "rule":
        ours = {name: _part("rule", name, made, laws=made.laws) for name, made in RULES.items()}
        by_name = ours | by_name
    return MappingProxyType(dict(sorted(by_name.items(), key=lambda item: item[1].plugged)))


def version() -> int:
    """A counter that increases whenever parts are added or removed."""
    return _STATE["version"]


@contextmanager
def registering(module: str, origin: str) -> Iterator[list[Part]]:
    """Attribute all parts registered within the context to one plug-in, and collect them.

    Args:
        module: the plug-in's name in `sys.modules`.
        origin: the plug-in's file.

    Yields:
        A list that holds the parts once the context ends.
    """
    before, known = dict(_STATE), set(_PARTS)
    _STATE.update(module=module, origin=origin)
    registered: list[Part] = []
    try:
        yield registered
    finally:
        _STATE.update(module=before["module"], origin=before["origin"])
        new = [part for key, part in _PARTS.items() if key not in known]
        registered += [part for part in new if part.plugged]


def kept() -> Mapping[tuple[Kind, str], Part]:
    """The parts registered now, for `restore`."""
    return dict(_PARTS)


def restore(state: Mapping[tuple[Kind, str], Part], more: Sequence[Part] = ()) -> None:
    """Replace all registered parts by those of `state`, then add `more`.

    Raises:
        InvalidPlugin: if a name is taken; the registered parts are then unchanged.
    """
    before = dict(_PARTS)
    _PARTS.clear()
    _PARTS.update(state)
    try:
        for part in more:
            _add(part)
    except InvalidPlugin:
        _PARTS.clear()
        _PARTS.update(before)
        raise
    if list(before) != list(_PARTS) or any(before[key] is not _PARTS[key] for key in before):
        _STATE["version"] += 1


def first_line(made: object) -> str:
    """The first paragraph of an object's docstring, on one line."""
    text = (getattr(made, "__doc__", None) or "").strip().split("\n\n")[0]
    return " ".join(text.split())


def _register(kind: Kind, name: str, made: T, **facts: Any) -> T:
    if not callable(made):
        raise InvalidPlugin(f"{kind} {name!r} registers something that cannot be called")
    _add(_part(kind, name, made, **facts))
    return made


def _part(
    kind: Kind,
    name: str,
    made: Any,
    *,
    about: str | None = None,
    settings: type[Strict] | None = None,
    laws: frozenset[Law] = frozenset(),
    trees: Trees = "any",
) -> Part:
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 100:
        raise InvalidPlugin(f"{kind}: the name {name!r} must be one line of at most 100 characters")
    home = getattr(made, "__module__", "") or ""
    own_settings = settings is not None and settings is not Settings
    # A plug-in may import ours, which are then registered; its own parts may have settings of ours.
    imported = own_settings and settings.__module__.split(".")[0] == OURS
    ours = made is RULES.get(name) or (
        home.split(".")[0] == OURS and (imported or _STATE["module"] is None)
    )
    module = home if ours else _STATE["module"] or home
    origin = OURS if ours else _STATE["origin"] or _file_of(module)
    line = about or (first_line(made) if kind != "rule" else first_line(made.__wrapped__))
    return Part(kind, name, made, line, settings, laws, trees, module, origin)


def _add(part: Part) -> None:
    if part.kind == "growth" and part.name in SHAPES:
        raise InvalidPlugin(
            f"{part.origin} registers the growth {part.name!r}, which is a shape: give it another name"
        )
    known = _PARTS.get((part.kind, part.name)) or parts(part.kind).get(part.name)
    rerun = known is not None and part.module == known.module == "__main__"  # a notebook's cell
    if known is not None and not rerun:
        whose = "one of treespec's own" if not known.plugged else f"registered by {known.origin}"
        raise InvalidPlugin(
            f"{part.origin} registers the {part.kind} {part.name!r}, which is {whose}: give it another name"
        )
    _PARTS[part.kind, part.name] = part
    _STATE["version"] += 1


def _file_of(module: str) -> str:
    return getattr(sys.modules.get(module), "__file__", None) or module


def _require_settings(name: str, settings: object) -> None:
    if not (isinstance(settings, type) and issubclass(settings, Strict)):
        raise InvalidPlugin(
            f"{name!r}: settings must be a class derived from treespec.plugins.Settings"
        )
