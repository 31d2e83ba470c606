"""Parts by name: draft sources, acceptance rules, growths and metrics that a config may name.

Ours are listed here like those of others. A plug-in is a Python file, or an installed package with an entry
point in the group `treespec.plugins`, that registers parts when it is imported:

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

from treespec.distributions import Sampling
from treespec.errors import InvalidPlugin
from treespec.protocols import Growth, Models
from treespec.reading_models import Strict
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
    "registering",
    "restore",
    "rule",
    "version",
]

Kind = Literal["source", "rule", "growth", "metric"]
"""What a part is."""

Trees = Literal["any", "budget", "chain"]
"""Which trees a draft source takes: shapes and growths, or a `Budget`, of which one may want chains."""

T = TypeVar("T")

OURS = "treespec"
"""Origin of the parts that come with the package."""


class Settings(Strict):
    """Settings of a part, with types and defaults; a config that gives others is refused.

    They are part of the config: another value makes it another experiment. Defaults are checked as values
    of a config are.
    """

    model_config = ConfigDict(validate_default=True)


@dataclass(frozen=True)
class Budget:
    """The limits of a tree, for sources that bring continuations of their own instead of filling a shape.

    Args:
        size: most nodes, the root included.
        depth: most edges from the root.
        branching: most children of a node; with 1 the trees are chains.
    """

    size: int
    depth: int
    branching: int

    @property
    def max_depth(self) -> int:
        """Most edges from the root."""
        return self.depth


@dataclass(frozen=True)
class Wanted:
    """What a drafter is made for.

    Args:
        tree: a shape or a growth, or a budget for sources with `trees="budget"`.
        law: how children are to be chosen, one of those that the source states.
        sampling: settings of the target, which a draft model uses as well.
        pair: the models; a source that needs none does not touch them.
    """

    tree: TreeShape | Growth | Budget
    law: Law
    sampling: Sampling
    pair: Models


@dataclass(frozen=True)
class Part:
    """Something that configs name.

    Args:
        kind: `source`, `rule`, `growth` or `metric`.
        name: in configs.
        make: of a source `(wanted, settings) -> Drafter`, of a growth a class, of a metric a function of
            steps; a rule itself.
        about: one line.
        settings: the model of its settings; None for rules and metrics.
        laws: of a source, how it can choose children.
        trees: of a source, whether it fills shapes and growths (`any`) or takes a `Budget`, for any tree
            or for chains alone.
        module: that registered it.
        origin: the file that registered it; `treespec` for ours.
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
        """Whether it is none of ours."""
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
        name: in configs, `draft: {source: NAME}`.
        settings: its model of settings.
        laws: how it can choose children; `Wanted.law` is one of these.
        trees: `any` if it drafts whatever shape or growth it is given; `budget` if it brings its own
            continuations within a `Budget`; `chain` if that budget must have branching 1.

    Raises:
        InvalidPlugin: if the name is taken, or an argument is none.
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
        raise InvalidPlugin(f"drafter {name!r}: laws: {error}") from None
    if not stated:
        raise InvalidPlugin(f"drafter {name!r}: laws is empty: state how children are chosen")
    return lambda make: _register("source", name, make, settings=settings, laws=stated, trees=trees)


def rule(name: str) -> Callable[[Rule], Rule]:
    """Register an acceptance rule, made by `treespec.verify.rule`, under a name, which becomes its own.

    Raises:
        InvalidPlugin: if the name is taken, or it decorates something else.
    """

    def register(made: Rule) -> Rule:
        if not isinstance(made, Rule):
            raise InvalidPlugin(
                f"rule {name!r}: not an acceptance rule: put @plugins.rule above @treespec.verify.rule(...)"
            )
        _register("rule", name, made, laws=made.laws)
        # Records and tables call a rule by this name.
        made.__name__ = name  # pyrefly: ignore[missing-attribute]
        return made

    return register


def growth(name: str, *, settings: type[Strict] = Settings) -> Callable[[T], T]:
    """Register a growth policy: a class, called with the fields of its settings as keywords.

    Args:
        name: in configs, `shape: {kind: NAME}`.
        settings: its model of settings.

    Raises:
        InvalidPlugin: if the name is taken, or an argument is none.
    """
    _require_settings(name, settings)
    if "kind" in settings.model_fields and not settings.__module__.startswith("treespec."):
        raise InvalidPlugin(f"growth {name!r}: a setting may not be called 'kind'")
    return lambda make: _register("growth", name, make, settings=settings)


def metric(name: str, about: str) -> Callable[[T], T]:
    """Register a metric: a function of the steps of one prompt that gives a number, or None.

    Steps are `treespec.experiments.records.outcome.StepOutcome`: `shape`, `tokens`, `verdict`, `kept`,
    `seconds`. Only methods of our own loop have steps. Its value enters each row of a prompt; tables show
    the mean over the compared prompts.

    Args:
        name: of its column.
        about: what it is, in one line.

    Raises:
        InvalidPlugin: if the name is taken.
    """
    return lambda make: _register("metric", name, make, about=about)


def parts(kind: Kind) -> Mapping[str, Part]:
    """All parts of a kind by name: ours first, then those of plug-ins in the order they came."""
    by_name = {name: part for (of, name), part in _PARTS.items() if of == kind}
    if kind == "rule":
        ours = {name: _part("rule", name, made, laws=made.laws) for name, made in RULES.items()}
        by_name = ours | by_name
    return MappingProxyType(dict(sorted(by_name.items(), key=lambda item: item[1].plugged)))


def version() -> int:
    """A number that grows whenever parts come or go."""
    return _STATE["version"]


@contextmanager
def registering(module: str, origin: str) -> Iterator[list[Part]]:
    """While a plug-in is imported: what is registered is its own, and collected.

    Args:
        module: its name in `sys.modules`.
        origin: its file.
    """
    before, known = dict(_STATE), set(_PARTS)
    _STATE.update(module=module, origin=origin)
    registered: list[Part] = []
    try:
        yield registered
    finally:
        _STATE.update(module=before["module"], origin=before["origin"])
        registered += [part for key, part in _PARTS.items() if key not in known]


def kept() -> Mapping[tuple[Kind, str], Part]:
    """What is registered now, for `restore`."""
    return dict(_PARTS)


def restore(state: Mapping[tuple[Kind, str], Part], more: Sequence[Part] = ()) -> None:
    """Let these parts be registered and no others, then add more.

    Raises:
        InvalidPlugin: if a name is taken; nothing has changed then.
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
    """The first sentence of what it says about itself."""
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
    module = _STATE["module"] or getattr(made, "__module__", "") or ""
    ours = made is RULES.get(name) or (_STATE["module"] is None and module.split(".")[0] == OURS)
    origin = OURS if ours else _STATE["origin"] or _file_of(module)
    line = about or (first_line(made) if kind != "rule" else first_line(made.__wrapped__))
    return Part(kind, name, made, line, settings, laws, trees, module, origin)


def _add(part: Part) -> None:
    other = _PARTS.get((part.kind, part.name)) or parts(part.kind).get(part.name)
    again = other is not None and part.module == other.module == "__main__"  # a notebook's cell
    if other is not None and not again:
        whose = "one of treespec's own" if not other.plugged else f"registered by {other.origin}"
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
            f"{name!r}: settings must be a class that is derived from treespec.plugins.Settings"
        )
