"""Draft sources that combine others, merges and cascades: their settings, and how each is built."""

import os
from collections.abc import Collection
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field, model_validator

from treespec import plugins
from treespec.draft import Cascade, Merge
from treespec.errors import InvalidArgument
from treespec.experiments.config.base import RULE
from treespec.experiments.config.layers import PartOfTarget  # noqa: F401  (registers its sources)
from treespec.experiments.config.model_draft import (
    Combined,
    OneOf,
    built_in,
    draft_model,
    draft_models,
    laws_of,
    source_of,
)
from treespec.experiments.config.samplings import settings_of
from treespec.experiments.config.sources import budget_of
from treespec.experiments.config.trained import TrainedHead  # noqa: F401  (registers its sources)
from treespec.plugins import Budget, Settings, Wanted
from treespec.protocols import Drafter
from treespec.reading_models import nearest
from treespec.search import optimal_tree
from treespec.search.growth.keys import MOST_NODES, Name
from treespec.search.traces.sampling_names import name_of
from treespec.tree import Law, TreeShape
from treespec.verify import usual_rule

EMBEDDED = "embedded"
"""Name of the pair that comes with treespec; as the name of a draft, that pair's draft model."""

COMBINED = frozenset({"merge", "cascade", "synthetic"})
"""Sources made of others; none of them drafts below a cascade."""

DRAWN = (Law.IID, Law.WITHOUT_REPLACEMENT)
"""The laws of the drawn children of mixed trees; the other children are deterministic."""

Rate = Annotated[float, Field(ge=0, le=1)]
RatesOfDepth = Annotated[tuple[Rate, ...], Field(max_length=64)]
RatesOfSource = Annotated[tuple[RatesOfDepth, ...], Field(min_length=1, max_length=64)]
RatesOfSources = Annotated[tuple[RatesOfSource, ...], Field(min_length=2, max_length=16)]

Budgeted = Annotated[int, Field(strict=True, ge=1, lt=MOST_NODES)]

Single = Annotated[Settings, OneOf("source", "source", without=COMBINED)]
NotMerged = Annotated[
    Settings, OneOf("source", "source", without=frozenset({"merge", "synthetic"}))
]


@built_in(laws=(*DRAWN, Law.DETERMINISTIC), trees="chain")
class CascadeDraft(Combined):
    """A cascade: models that draft for each other, and a source that drafts for the last model."""

    source: Literal["cascade"] = "cascade"
    """Another source drafts for a draft model, whose text is the draft: chains within a `budget`."""
    models: Annotated[tuple[Name | None, ...], Field(min_length=1, max_length=8)] = (None,)
    """Draft models, beginning with the one that drafts for the target; null for `models.draft`."""
    draft: Single
    """The source that drafts for the last model."""
    depth: Annotated[int, Field(strict=True, ge=1, lt=MOST_NODES)] = 4
    """Draft tokens of every level below the first; the `budget` sets those of the first."""
    rule: Annotated[Name, RULE] | None = None
    """How each model accepts the drafts of the level below; null for the usual rule of their law."""

    @property
    def inner(self) -> tuple[Settings, ...]:
        return (self.draft,)

    @property
    def own_models(self) -> tuple[str | None, ...]:
        return (*self.models, *draft_models(self.draft))

    def repeated(self, target: str, draft: str | None) -> str | None:
        """The names of two levels that are the same model, such as `'a' and 'b'`; None if all differ."""
        own_draft = target if target == EMBEDDED else os.path.join(target, "draft")
        seen: dict[str, str] = {}
        for name in self.own_models:
            shown = "models.draft" if name is None else repr(name)
            model = name or draft or own_draft
            if os.path.isdir(model):
                model = os.path.realpath(model)
            if model in seen:
                return f"{seen[model]} and {shown}"
            seen[model] = shown
        return None

    @property
    def laws(self) -> frozenset[Law]:
        return frozenset({*DRAWN, Law.DETERMINISTIC})

    @property
    def label(self) -> str:
        models = "".join(f" {name}" for name in self.models if name is not None)
        return f"cascade{models} over {source_of(self.draft).name}"

    def make(self, wanted: Wanted) -> Drafter:
        depths = [budget_of(wanted).depth, *(self.depth for _ in self.models[1:])]
        inner = _law(self.draft, wanted)
        below = _built(self.draft, wanted, Budget(self.depth + 1, self.depth, 1))
        rules = plugins.parts("rule")
        if self.rule is not None and self.rule not in rules:
            raise InvalidArgument(f"rule: there is no acceptance rule {self.rule!r}")
        for name, depth in reversed(list(zip(self.models, depths, strict=True))):
            rule = (
                usual_rule(inner, wanted.sampling) if self.rule is None else rules[self.rule].make
            )
            model = draft_model(wanted.pair, name)
            below = Cascade(model, below, rule, depth, wanted.sampling, law=wanted.law)  # pyrefly: ignore[bad-argument-type]
            inner = wanted.law
        return below


@built_in(laws=(*DRAWN, Law.DETERMINISTIC), trees="budget")
class MergeDraft(Combined):
    """A merge: several sources fill one tree, each node by the source that is accepted most often there.

    With `budgets` each source has a fixed number of nodes instead, given by name, so that the numbers do
    not depend on the order of the sources.
    """

    mixes = True

    source: Literal["merge"] = "merge"
    """Other sources draft together: trees within a `budget` that they share."""
    sources: Annotated[tuple[NotMerged, ...], Field(min_length=2, max_length=16)]
    """The sources; among drawn children, those of earlier sources are decided first."""
    rates: (
        Annotated[dict[Name, RatesOfSources], Field(min_length=1, max_length=64)]
        | RatesOfSources
        | None
    ) = None
    """For each source, in order: by depth and rank, how often a child is accepted if its parent is,
    measured on other prompts. The last depth stands for all deeper ones; ranks without a rate are not
    drafted. Rates depend on the temperature: `{T=0: [...], T=1: [...]}` gives them by the name of the
    sampling setting. They also shape the trees of models, except of those that draw where a shared tree
    asks for it. May be null only with `budgets`; then models draft chains."""
    budgets: dict[Name, Budgeted] | None = None
    """Draft nodes per source, by name, such as `{model: 8, lookup: 4}`; a source that appears twice is
    `model` and `model'`. Each source drafts a tree of its own below the common root, no deeper or wider
    than the shape allows. Null to share the tree by `rates`."""

    @property
    def inner(self) -> tuple[Settings, ...]:
        return self.sources

    @property
    def names(self) -> tuple[str, ...]:
        """Distinct names of the sources: a source that appears again gets a prime."""
        names: list[str] = []
        for source in self.sources:
            name = source_of(source).name
            while name in names:
                name += "'"
            names.append(name)
        return tuple(names)

    @property
    def own_models(self) -> tuple[str | None, ...]:
        return tuple(name for source in self.sources for name in draft_models(source))

    @property
    def laws(self) -> frozenset[Law]:
        """Each drawn law that some source supports; deterministic if all sources support that."""
        source_laws = [laws_of(source) for source in self.sources]
        supported = {law for law in DRAWN if any(law in laws for laws in source_laws)}
        if all(Law.DETERMINISTIC in laws for laws in source_laws):
            supported.add(Law.DETERMINISTIC)
        return frozenset(supported)

    @property
    def label(self) -> str:
        if self.budgets is not None:
            return f"merge of {', '.join(f'{name} {n}' for name, n in self.budgets.items())}"
        return f"merge of {', '.join(source_of(source).name for source in self.sources)}"

    def lacks(self, samplings: Collection[str]) -> str | None:
        """A message about the first sampling setting without rates; None if all have some."""
        missing = [name for name in samplings if self.rates_at(name) is None]
        if not missing or self.rates is None:
            return None
        return (
            f"rates has none for {missing[0]!r} (there: {', '.join(map(repr, self.rates))}): measure them "
            "under this setting, or give one list for all settings"
        )

    def rates_at(self, sampling: str | None) -> tuple[RatesOfSource, ...] | None:
        """The rates under the sampling setting with this name; None if there are none."""
        if isinstance(self.rates, dict):
            return None if sampling is None else self.rates.get(sampling)
        return self.rates

    def refuses(self, tree: Budget) -> str | None:
        """A message if the budgets exceed the size of the tree; None if they fit."""
        if self.budgets is None:
            return None
        needed = sum(self.budgets.values()) + 1
        if needed <= tree.size:
            return None
        return (
            f"budgets: {' + '.join(map(str, self.budgets.values()))} nodes and the root are {needed}, but "
            f"shape.size is {tree.size}: lower a budget, or give the shape size: {needed} and a branching"
        )

    @model_validator(mode="after")
    def _complete(self) -> "MergeDraft":
        if self.budgets is None and self.rates is None:
            raise ValueError(
                "a merge needs rates, by which its sources share a tree, or budgets, nodes for each: "
                f"budgets: {{{', '.join(f'{name}: 4' for name in self.names)}}}"
            )
        if self.budgets is not None:
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
        by_name = self.rates if isinstance(self.rates, dict) else {"": self.rates}
        for name, rates in by_name.items():
            if rates is not None and len(rates) != len(self.sources):
                key = f"rates[{name!r}]" if name else "rates"
                raise ValueError(
                    f"{key} has {len(rates)} entries for {len(self.sources)} sources: give one for each, "
                    "in their order"
                )
        return self

    def make(self, wanted: Wanted) -> Drafter:
        budget = budget_of(wanted)
        if budget.size < 2 or budget.branching < 2:
            raise InvalidArgument(
                "a merge needs a budget with a size and a branching, which its sources share: "
                "{kind: budget, depth: 6, size: 16, branching: 4}"
            )
        setting = name_of(settings_of(wanted.sampling))
        rates = self.rates_at(setting)
        if self.rates is not None and rates is None:
            raise InvalidArgument(self.lacks([str(setting)]) or "")
        vocab_size = wanted.pair.target.vocab_size
        members = dict(zip(self.names, self.sources, strict=True))
        if self.budgets is None:
            assert rates is not None
            sure = [_law(source, wanted) is Law.DETERMINISTIC for source in self.sources]
            return Merge(
                {
                    name: _built(source, wanted, budget, rates[i] if sure[i] else None)
                    for i, (name, source) in enumerate(members.items())
                },
                budget.size,
                rates=dict(zip(members, rates, strict=True)),
                depth=budget.depth,
                branching=budget.branching,
                vocab_size=vocab_size,
            )
        sources: dict[str, Drafter] = {}
        for i, (name, source) in enumerate(members.items()):
            nodes = self.budgets[name]
            source_budget = Budget(nodes + 1, min(budget.depth, nodes), budget.branching)
            try:
                sources[name] = _built(source, wanted, source_budget, rates[i] if rates else None)
            except InvalidArgument as error:
                raise InvalidArgument(
                    f"budgets.{name} = {nodes}, which is a size of {nodes + 1} with the root: {error}"
                ) from None
        return Merge(sources, budget.size, budgets=self.budgets, vocab_size=vocab_size)


def _law(source: Settings, wanted: Wanted) -> Law:
    """The law of an inner source: the wanted one if the source supports it, else deterministic."""
    return wanted.law if wanted.law in laws_of(source) else Law.DETERMINISTIC


def _laid_out(rates: RatesOfSource, budget: Budget) -> TreeShape:
    """The tree within a budget that keeps the most tokens; the last depth's rates stand for deeper ones."""
    widest = max(1, *map(len, rates))
    rows = [[*row, *[0.0] * (widest - len(row))] for row in rates]
    rows = [*rows, *[rows[-1]] * budget.depth][: budget.depth]
    branching = min(budget.branching, widest)
    drafted = (sum(rate > 0 for rate in row[:branching]) for row in rows)
    levels = accumulate(drafted, lambda above, n: min(above * n, budget.size), initial=1)
    size = min(sum(levels), budget.size)  # ranks without a rate are not drafted
    return optimal_tree(rows, size, depth=budget.depth, branching=branching)


def _built(
    source: Settings, wanted: Wanted, budget: Budget, rates: RatesOfSource | None = None
) -> Drafter:
    """The drafter of an inner source; one that drafts given trees gets the best by `rates`, or a chain."""
    part, depth = source_of(source), budget.depth
    if part.trees == "any":
        tree = _laid_out(rates, budget) if rates else TreeShape.chain(depth)
    else:
        tree = Budget(depth + 1, depth, 1) if part.trees == "chain" else budget
    return part.make(Wanted(tree, _law(source, wanted), wanted.sampling, wanted.pair), source)
