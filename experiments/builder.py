"""The one place where names become objects: config -> experiment. Nothing is loaded or run here."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from experiments.config import (
    AssistedMethod,
    ChainShape,
    Config,
    ExpansionShape,
    GenerateMethod,
    IndependentChainsShape,
    KaryShape,
    Method,
    OptimalShape,
    ParentsShape,
    PathsShape,
    PlainMethod,
    SamplingConfig,
    TreeMethod,
    nearest,
)
from experiments.errors import ConfigError
from search import optimal_tree
from treespec.children import require_children
from treespec.distributions import Sampling
from treespec.errors import TreespecError
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import RULE_OF_LAW, RULES, Rule

__all__ = ["LAWS", "SHAPES", "BuiltMethod", "Experiment", "LawAndRule", "build"]

_T = TypeVar("_T")

LAWS: dict[str, Law] = {str(law): law for law in Law}

SHAPES: dict[type, Callable[[Any], TreeShape]] = {
    ChainShape: lambda s: TreeShape.chain(s.depth),
    KaryShape: lambda s: TreeShape.kary(s.branching, s.depth),
    ExpansionShape: lambda s: TreeShape.expansion(s.branching),
    IndependentChainsShape: lambda s: TreeShape.independent_chains(s.width, s.depth),
    ParentsShape: lambda s: TreeShape.from_parents(s.parents),
    PathsShape: lambda s: TreeShape.from_paths(s.paths),
    OptimalShape: lambda s: optimal_tree(s.rates, s.size, depth=s.depth, branching=s.branching),
}

LABELS: dict[type, Callable[[Any], str]] = {
    ChainShape: lambda s: f"chain {s.depth}",
    KaryShape: lambda s: f"{s.branching}-ary {s.depth}",
    ExpansionShape: lambda s: f"expansion {'x'.join(map(str, s.branching))}",
    IndependentChainsShape: lambda s: f"{s.width} chains x {s.depth}",
    ParentsShape: lambda s: f"tree of {len(s.parents)}",
    PathsShape: lambda s: f"tree of {len(s.paths) + 1}",
    OptimalShape: lambda s: f"optimal {s.size}",
}


@dataclass(frozen=True)
class LawAndRule:
    """How children are chosen, and how they are accepted."""

    law: Law
    rule: Rule


@dataclass(frozen=True)
class BuiltMethod:
    """A method with its objects.

    Args:
        name: unique in the experiment.
        config: what it was built from.
        shape: the tree; None for methods without one.
        choices: law and rule under each sampling setting, by its name; empty for transformers' methods.
    """

    name: str
    config: Method
    shape: TreeShape | None
    choices: Mapping[str, LawAndRule]

    @property
    def kind(self) -> str:
        """`generate`, `plain`, `assisted` or `tree`."""
        return self.config.kind

    @property
    def lossless(self) -> bool:
        """Whether every rule used keeps the target's law."""
        return all(choice.rule.lossless for choice in self.choices.values())


@dataclass(frozen=True)
class Experiment:
    """A config with its objects.

    Args:
        config: the whole config.
        samplings: by name, in the order of the config.
        methods: in the order of the config.
    """

    config: Config
    samplings: Mapping[str, Sampling]
    methods: tuple[BuiltMethod, ...]


def build(config: Config) -> Experiment:
    """All objects that can be made before a model is loaded.

    Raises:
        ConfigError: if two methods or settings are the same, a shape is no tree, a law or rule is unknown,
            or a rule does not cover the trees that it would be given.
    """
    samplings: dict[str, Sampling] = {}
    for i, setting in enumerate(config.samplings):
        if setting.name in samplings:
            raise ConfigError(f"samplings[{i}]: {setting.name} stands twice")
        samplings[setting.name] = Sampling(**setting.model_dump())
    methods: list[BuiltMethod] = []
    for i, method in enumerate(config.methods):
        built = _method(f"methods[{i}]", method, config.samplings, samplings)
        if built.name in (other.name for other in methods):
            raise ConfigError(
                f"methods[{i}]: a method called {built.name!r} stands before it; give one a 'name'"
            )
        methods.append(built)
    return Experiment(config, samplings, tuple(methods))


def _method(
    path: str,
    config: Method,
    settings: tuple[SamplingConfig, ...],
    samplings: Mapping[str, Sampling],
) -> BuiltMethod:
    if isinstance(config, GenerateMethod | AssistedMethod):
        return BuiltMethod(config.name or config.kind, config, None, {})
    if isinstance(config, PlainMethod):
        choices = {
            name: LawAndRule(Law.DETERMINISTIC, RULES["greedy" if sampling.greedy else "naive"])
            for name, sampling in samplings.items()
        }
        return BuiltMethod(config.name or config.kind, config, TreeShape.chain(0), choices)
    try:
        shape = SHAPES[type(config.shape)](config.shape)
    except TreespecError as error:
        raise ConfigError(f"{path}.shape: {error}") from None
    chosen = ", ".join(part for part in (config.law, config.rule) if part)
    label = LABELS[type(config.shape)](config.shape) + (f" ({chosen})" if chosen else "")
    choices = {
        name: _law_and_rule(path, config, shape, sampling) for name, sampling in samplings.items()
    }
    name = config.name or label
    lossless = all(choice.rule.lossless for choice in choices.values())
    if not lossless and "lossy" not in name:
        name += " (lossy)"
    return BuiltMethod(name, config, shape, choices)


def _law_and_rule(
    path: str, config: TreeMethod, shape: TreeShape, sampling: Sampling
) -> LawAndRule:
    law = None if config.law is None else _look_up(f"{path}.law", config.law, LAWS)
    rule = None if config.rule is None else _look_up(f"{path}.rule", config.rule, RULES)
    if law is None:
        preferred = _preferred_laws(shape, sampling)
        law = next(law for law in preferred if rule is None or law in rule.laws)
    if rule is None:
        rule = _default_rule(law, shape, sampling)
    if str(rule) == "greedy" and not sampling.greedy:
        raise ConfigError(
            f"{path}.rule: 'greedy' needs temperature 0, but a sampling has temperature "
            f"{sampling.temperature:g}; leave the rule out and it is chosen by temperature"
        )
    try:
        require_children(max(map(len, shape.children)), sys.maxsize, law)
        rule.require(_example(shape, law))
        rule = rule.using(**config.settings)
    except TreespecError as error:
        raise ConfigError(f"{path}: {error}") from None
    return LawAndRule(law, rule)


def _preferred_laws(shape: TreeShape, sampling: Sampling) -> tuple[Law, ...]:
    sampled = (Law.WITHOUT_REPLACEMENT, Law.IID)
    if sampling.greedy:
        first = (Law.DETERMINISTIC, *sampled)
    elif shape.is_chain:
        first = (*reversed(sampled), Law.DETERMINISTIC)
    else:
        first = (*sampled, Law.DETERMINISTIC)
    return (*first, *(law for law in Law if law not in first))


def _default_rule(law: Law, shape: TreeShape, sampling: Sampling) -> Rule:
    if sampling.greedy:
        return RULES["greedy"]
    if shape.is_chain and law in RULES["chain"].laws:
        return RULES["chain"]
    return RULE_OF_LAW[law]


def _example(shape: TreeShape, law: Law) -> TokenTree:
    """A tree of this shape and law, to ask a rule whether it covers such trees."""
    probs = None if law is Law.DETERMINISTIC else torch.zeros(len(shape.internal), shape.size)
    return TokenTree(shape, torch.arange(shape.size), probs, law)


def _look_up(path: str, name: str, registry: Mapping[str, _T]) -> _T:
    if name not in registry:
        names = list(registry)
        raise ConfigError(
            f"{path}: unknown {name!r}{nearest(name, names)} (known: {', '.join(names)})"
        )
    return registry[name]
