"""Draft sources made of others: merges and cascades, their settings in configs, and how each is made."""

import os
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field, model_validator

from treespec import plugins
from treespec.draft import Cascade, Merge
from treespec.errors import InvalidArgument
from treespec.experiments.config.base import MOST_NODES, Count, Name
from treespec.experiments.config.drafts import (
    Combined,
    OneOf,
    draft_model,
    draft_models,
    laws_of,
    source_of,
)
from treespec.experiments.config.layers import PartOfTarget  # noqa: F401  (what they may be made of)
from treespec.experiments.config.names import RULE
from treespec.experiments.config.sources import LookupDraft  # noqa: F401  (what they may be made of)
from treespec.plugins import Budget, Settings, Wanted
from treespec.protocols import Drafter
from treespec.reading_models import nearest
from treespec.search import optimal_tree
from treespec.search.rates.sampling_names import name_of
from treespec.tree import Law, TreeShape
from treespec.verify import usual_rule

__all__ = ["CascadeDraft", "MergeDraft"]

EMBEDDED = "embedded"
"""The pair that comes with treespec, and as the name of a draft its draft (`treespec.models.load`)."""

COMBINED = frozenset({"merge", "cascade"})

DRAWN = (Law.IID, Law.WITHOUT_REPLACEMENT)
"""How children of mixed trees are drawn; the others are deterministic."""

Rate = Annotated[float, Field(ge=0, le=1)]
RatesOfDepth = Annotated[tuple[Rate, ...], Field(max_length=64)]
RatesOfSource = Annotated[tuple[RatesOfDepth, ...], Field(min_length=1, max_length=64)]
RatesOfSources = Annotated[tuple[RatesOfSource, ...], Field(min_length=2, max_length=16)]

Budgeted = Annotated[int, Field(strict=True, ge=1, lt=MOST_NODES)]

Single = Annotated[Settings, OneOf("source", "source", without=COMBINED)]
NotMerged = Annotated[Settings, OneOf("source", "source", without=frozenset({"merge"}))]


class CascadeDraft(Combined):
    """A cascade: models that draft for each other, and a source that drafts for the last of them."""

    source: Literal["cascade"] = "cascade"
    """Another source drafts for a draft model, whose text is the draft: chains within a `budget`."""
    models: Annotated[tuple[Name | None, ...], Field(min_length=1, max_length=8)] = (None,)
    """Draft models, the one that drafts for the target first; null for `models.draft`."""
    draft: Single
    """The source that drafts for the last of them."""
    depth: Count = 4
    """Draft tokens of every level but the first, whose number the `budget` says."""
    rule: Annotated[Name, RULE] | None = None
    """How each model accepts the drafts of the level below; null for one that fits their law."""

    @property
    def inner(self) -> tuple[Settings, ...]:
        """The source at the end."""
        return (self.draft,)

    @property
    def own_models(self) -> tuple[str | None, ...]:
        """Its models and those of the source at the end."""
        return (*self.models, *draft_models(self.draft))

    def repeated(self, target: str, draft: str | None) -> str | None:
        """Two names of its levels that mean one model, in words; None if there are none.

        Args:
            target: `models.target`.
            draft: `models.draft`.
        """
        seen: dict[str, str] = {}
        for name in self.own_models:
            said = "models.draft" if name is None else repr(name)
            place = _place(name or draft or _draft_of(target))
            if place in seen:
                return f"{seen[place]} and {said}"
            seen[place] = said
        return None

    @property
    def laws(self) -> frozenset[Law]:
        """Of a chain."""
        return frozenset({*DRAWN, Law.DETERMINISTIC})

    @property
    def label(self) -> str:
        """In names of methods."""
        models = "".join(f" {name}" for name in self.models if name is not None)
        return f"cascade{models} over {source_of(self.draft).name}"

    @model_validator(mode="after")
    def _ends(self) -> "CascadeDraft":
        twice = [name for name, times in Counter(self.own_models).items() if times > 1]
        if twice:
            model = "models.draft" if twice[0] is None else repr(twice[0])
            raise ValueError(
                f"the cascade ends in itself: {model} stands at two of its levels; a lower level must be "
                "cheaper than the one that it drafts for"
            )
        return self


class MergeDraft(Combined):
    """A merge: several sources in one tree, each node from the one that is accepted most often there.

    With `budgets` each source has nodes of its own instead: a mapping by name, so that each number says
    whose it is and none depends on the order of the sources.
    """

    source: Literal["merge"] = "merge"
    """Other sources draft together: trees within a `budget` that they share."""
    sources: Annotated[tuple[NotMerged, ...], Field(min_length=2, max_length=16)]
    """The sources; of drawn children those of the first are decided first."""
    rates: (
        Annotated[dict[Name, RatesOfSources], Field(min_length=1, max_length=64)]
        | RatesOfSources
        | None
    ) = None
    """Of each source in turn: for each depth, by rank, how often a child is accepted if its parent is,
    measured on other prompts. The last depth stands for deeper ones; further ranks are not drafted. They
    depend on the temperature: `{T=0: [...], T=1: [...]}` has them for each sampling setting by its name.
    Null only with `budgets`: there they lay out the trees of models, which are chains without them."""
    budgets: dict[Name, Budgeted] | None = None
    """Draft nodes of each source by its name, such as `{model: 8, lookup: 4}`; a source that appears
    twice is `model` and `model'`. Each drafts a tree of its own, no deeper or wider than the shape says,
    and these stand below one root. Null to share the tree by `rates`."""

    @property
    def inner(self) -> tuple[Settings, ...]:
        """The sources."""
        return self.sources

    @property
    def names(self) -> tuple[str, ...]:
        """Of the sources, each another: what appears twice has a prime."""
        names: list[str] = []
        for source in self.sources:
            name = source_of(source).name
            while name in names:
                name += "'"
            names.append(name)
        return tuple(names)

    @property
    def own_models(self) -> tuple[str | None, ...]:
        """Those of the sources."""
        return tuple(name for source in self.sources for name in draft_models(source))

    @property
    def laws(self) -> frozenset[Law]:
        """Drawn if a source can draw; deterministic if all can be."""
        of_sources = [laws_of(source) for source in self.sources]
        drawn = {law for law in DRAWN if any(law in laws for laws in of_sources)}
        sure = (
            {Law.DETERMINISTIC} if all(Law.DETERMINISTIC in laws for laws in of_sources) else set()
        )
        return frozenset(drawn | sure)

    @property
    def mixes(self) -> bool:
        """Whether its trees are mixed, unless all is deterministic."""
        return True

    @property
    def label(self) -> str:
        """In names of methods."""
        if self.budgets is not None:
            return f"merge of {', '.join(f'{name} {n}' for name, n in self.budgets.items())}"
        return f"merge of {', '.join(source_of(source).name for source in self.sources)}"

    def lacks(self, samplings: Collection[str]) -> str | None:
        """Which settings have no rates."""
        without = [name for name in samplings if self.rates_at(name) is None]
        if not without or self.rates is None:
            return None
        known = ", ".join(map(repr, self.rates))
        return (
            f"rates has none for {without[0]!r} (there: {known}): measure them under this setting, or give "
            "one list for all settings"
        )

    def rates_at(self, sampling: str | None) -> tuple[RatesOfSource, ...] | None:
        """The rates under a setting, by its name; None if there are none."""
        if isinstance(self.rates, dict):
            return None if sampling is None else self.rates.get(sampling)
        return self.rates

    def refuses(self, tree: Budget) -> str | None:
        """Whether its budgets are more than a tree may have."""
        if self.budgets is None:
            return None
        wanted = sum(self.budgets.values()) + 1
        if wanted <= tree.size:
            return None
        return (
            f"budgets: {' + '.join(map(str, self.budgets.values()))} nodes and the root are {wanted}, but "
            f"shape.size is {tree.size}: lower a budget, or give the shape size: {wanted} and a branching"
        )

    @model_validator(mode="after")
    def _budgeted(self) -> "MergeDraft":
        if self.budgets is None:
            if self.rates is None:
                raise ValueError(
                    "a merge needs rates, by which its sources share a tree, or budgets, nodes for each: "
                    f"budgets: {{{', '.join(f'{name}: 4' for name in self.names)}}}"
                )
            return self
        for name in self.budgets:
            if name not in self.names:
                raise ValueError(
                    f"budgets: there is no source {name!r}{nearest(name, list(self.names))} "
                    f"(the sources are {', '.join(self.names)})"
                )
        missing = [name for name in self.names if name not in self.budgets]
        if missing:
            raise ValueError(
                f"budgets: {missing[0]!r} has none: give each source a number of nodes, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _rated(self) -> "MergeDraft":
        by_name = self.rates if isinstance(self.rates, dict) else {"": self.rates or ()}
        for name, rates in by_name.items() if self.rates is not None else ():
            if len(rates) != len(self.sources):
                of = f"rates[{name!r}]" if name else "rates"
                raise ValueError(
                    f"{of} has {len(rates)} entries for {len(self.sources)} sources: give one for each, in "
                    "their order"
                )
        return self


@plugins.drafter(
    "cascade",
    settings=CascadeDraft,
    laws=(*DRAWN, Law.DETERMINISTIC),
    trees="chain",
)
def _cascade(wanted: Wanted, settings: CascadeDraft) -> Drafter:
    """A cascade: models that draft for each other, and a source that drafts for the last of them."""
    depths = [_budget(wanted).depth, *(settings.depth for _ in settings.models[1:])]
    law = wanted.law
    inner = wanted.law if wanted.law in laws_of(settings.draft) else Law.DETERMINISTIC
    below = _made(settings.draft, wanted, Budget(settings.depth + 1, settings.depth, 1), inner)
    for name, depth in reversed(list(zip(settings.models, depths, strict=True))):
        rule = usual_rule(inner, wanted.sampling)
        if settings.rule is not None:
            parts = plugins.parts("rule")
            if settings.rule not in parts:
                raise InvalidArgument(f"rule: there is no acceptance rule {settings.rule!r}")
            rule = parts[settings.rule].make
        model = draft_model(wanted.pair, name)
        below = Cascade(model, below, rule, depth, wanted.sampling, law=law)  # pyrefly: ignore[bad-argument-type]
        inner = law
    return below


@plugins.drafter("merge", settings=MergeDraft, laws=(*DRAWN, Law.DETERMINISTIC), trees="budget")
def _merge(wanted: Wanted, settings: MergeDraft) -> Drafter:
    """A merge: several sources in one tree, each node from the one that is accepted most often there."""
    budget = _budget(wanted)
    if budget.size < 2 or budget.branching < 2:
        raise InvalidArgument(
            "a merge needs a budget that its sources share, with a size and a branching: "
            "{kind: budget, depth: 6, size: 16, branching: 4}"
        )
    setting = name_of(asdict(wanted.sampling))
    rates = settings.rates_at(setting)
    if settings.rates is not None and rates is None:
        raise InvalidArgument(settings.lacks([str(setting)]) or "")
    vocab_size = wanted.pair.target.vocab_size
    members = dict(zip(settings.names, settings.sources, strict=True))
    if settings.budgets is None:
        assert rates is not None
        return Merge(
            {
                name: _made(source, wanted, budget, _law(source, wanted))
                for name, source in members.items()
            },
            budget.size,
            rates=dict(zip(members, rates, strict=True)),
            depth=budget.depth,
            branching=budget.branching,
            vocab_size=vocab_size,
        )
    sources: dict[str, Drafter] = {}
    for i, (name, source) in enumerate(members.items()):
        nodes = settings.budgets[name]
        source_budget = Budget(nodes + 1, min(budget.depth, nodes), budget.branching)
        shape = None if rates is None else _laid_out(rates[i], source_budget)
        try:
            sources[name] = _made(source, wanted, source_budget, _law(source, wanted), shape)
        except InvalidArgument as error:
            raise InvalidArgument(
                f"budgets.{name} = {nodes}, which with the root is a size of {nodes + 1}: {error}"
            ) from None
    return Merge(sources, budget.size, budgets=settings.budgets, vocab_size=vocab_size)


def _law(source: Settings, wanted: Wanted) -> Law:
    """How a source within another chooses children: as is wanted, if it can."""
    return wanted.law if wanted.law in laws_of(source) else Law.DETERMINISTIC


def _laid_out(rates: RatesOfSource, budget: Budget) -> TreeShape:
    """The tree within a budget that keeps most tokens; the last depth stands for deeper ones."""
    widest = max(1, *map(len, rates))
    rows = [[*row, *[0.0] * (widest - len(row))] for row in rates]
    rows = [*rows, *[rows[-1]] * budget.depth][: budget.depth]
    branching = min(budget.branching, widest)
    drafted = (sum(rate > 0 for rate in row[:branching]) for row in rows)
    levels = accumulate(drafted, lambda above, n: min(above * n, budget.size), initial=1)
    size = min(sum(levels), budget.size)  # further ranks are not drafted
    return optimal_tree(rows, size, depth=budget.depth, branching=branching)


def _made(
    source: Settings, wanted: Wanted, budget: Budget, law: Law, shape: TreeShape | None = None
) -> Drafter:
    """A source within another; one that drafts a given tree gets a chain if there is no shape."""
    part = source_of(source)
    if part.trees == "any":
        tree = TreeShape.chain(budget.depth) if shape is None else shape
    elif part.trees == "chain":
        tree = Budget(budget.depth + 1, budget.depth, 1)
    else:
        tree = budget
    return part.make(Wanted(tree, law, wanted.sampling, wanted.pair), source)


def _draft_of(target: str) -> str:
    """The draft that a target's name brings: that of the embedded pair, or of a pair's folder."""
    return target if target == EMBEDDED else os.path.join(target, "draft")


def _place(name: str) -> str:
    """A name for the model, however its folder is written."""
    folder = os.path.expanduser(name)
    return os.path.realpath(folder) if name != EMBEDDED and os.path.isdir(folder) else name


def _budget(wanted: Wanted) -> Budget:
    assert isinstance(wanted.tree, Budget)
    return wanted.tree
