"""The one place where names become objects: config -> experiment. Nothing is loaded or run here."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from treespec.children import require_children
from treespec.distributions import Sampling
from treespec.errors import TreespecError
from treespec.experiments.config.base import nearest
from treespec.experiments.config.schema import (
    AssistedMethod,
    Config,
    GenerateMethod,
    Method,
    PlainMethod,
    SamplingConfig,
    TreeMethod,
)
from treespec.experiments.config.trees import TREES, label_of
from treespec.experiments.errors import ConfigError
from treespec.protocols import Growth
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import RULE_OF_LAW, RULES, Rule

__all__ = ["LAWS", "BuiltMethod", "Experiment", "LawAndRule", "build"]

_T = TypeVar("_T")

LAWS: dict[str, Law] = {str(law): law for law in Law}


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
        tree: its shape, or how it grows by what the draft says; None for the methods of transformers.
        choices: law and rule under each sampling setting, by its name; empty for transformers' methods.
    """

    name: str
    config: Method
    tree: TreeShape | Growth | None
    choices: Mapping[str, LawAndRule]

    @property
    def kind(self) -> str:
        """`generate`, `plain`, `assisted` or `tree`."""
        return self.config.kind

    @property
    def shape(self) -> TreeShape | None:
        """The tree, if it is the same at every step."""
        return self.tree if isinstance(self.tree, TreeShape) else None

    @property
    def max_depth(self) -> int:
        """Most edges of a tree; 0 without one."""
        if isinstance(self.tree, TreeShape):
            return self.tree.depth
        return self.tree.max_depth if self.tree is not None else 0

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
        tree = TREES[type(config.shape)](config.shape)
    except TreespecError as error:
        raise ConfigError(f"{path}.shape: {error}") from None
    name = config.name or label_of(config)
    if isinstance(tree, TreeShape) and tree.size == 1:  # a search found that no draft pays
        plain = PlainMethod(kind="plain", name=f"{name}: plain decoding")
        return _method(path, plain, settings, samplings)
    choices = {
        name: _law_and_rule(path, config, tree, sampling) for name, sampling in samplings.items()
    }
    lossless = all(choice.rule.lossless for choice in choices.values())
    if not lossless and "lossy" not in name:
        name += " (lossy)"
    return BuiltMethod(name, config, tree, choices)


def _law_and_rule(
    path: str, config: TreeMethod, tree: TreeShape | Growth, sampling: Sampling
) -> LawAndRule:
    law = None if config.law is None else _look_up(f"{path}.law", config.law, LAWS)
    rule = None if config.rule is None else _look_up(f"{path}.rule", config.rule, RULES)
    possible = getattr(tree, "laws", frozenset(Law))
    if law is None:
        preferred = [law for law in _preferred_laws(tree, sampling) if law in possible]
        law = next((law for law in preferred if rule is None or law in rule.laws), preferred[0])
    if rule is None:
        rule = _default_rule(law, tree, sampling)
    if str(rule) == "greedy" and not sampling.greedy:
        raise ConfigError(
            f"{path}.rule: 'greedy' needs temperature 0, but a sampling has temperature "
            f"{sampling.temperature:g}; leave the rule out and it is chosen by temperature"
        )
    if law not in possible:
        raise ConfigError(
            f"{path}.law: {law} is no law for this growth, which chooses children by their tokens or by "
            f"the order of their draws; it takes {', '.join(sorted(map(str, possible)))}"
        )
    try:
        shape = tree if isinstance(tree, TreeShape) else TreeShape.expansion([2, 1])
        require_children(max(map(len, shape.children)), sys.maxsize, law)
        rule.require(_example(shape, law))
        rule = rule.using(**config.settings)
    except TreespecError as error:
        raise ConfigError(f"{path}: {error}") from None
    return LawAndRule(law, rule)


def _preferred_laws(tree: TreeShape | Growth, sampling: Sampling) -> tuple[Law, ...]:
    sampled = (Law.WITHOUT_REPLACEMENT, Law.IID)
    if sampling.greedy:
        first = (Law.DETERMINISTIC, *sampled)
    elif isinstance(tree, TreeShape) and tree.is_chain:
        first = (*reversed(sampled), Law.DETERMINISTIC)
    else:
        first = (*sampled, Law.DETERMINISTIC)
    return (*first, *(law for law in Law if law not in first))


def _default_rule(law: Law, tree: TreeShape | Growth, sampling: Sampling) -> Rule:
    if sampling.greedy:
        return RULES["greedy"]
    if isinstance(tree, TreeShape) and tree.is_chain and law in RULES["chain"].laws:
        return RULES["chain"]
    return RULE_OF_LAW[law]


def _example(shape: TreeShape, law: Law) -> TokenTree:
    """A tree of this shape and law, to ask a rule whether it covers such trees."""
    rows = torch.zeros(1, 1).expand(len(shape.internal), shape.size)  # of large trees, too
    probs = None if law is Law.DETERMINISTIC else rows
    return TokenTree(shape, torch.arange(shape.size), probs, law)


def _look_up(path: str, name: str, registry: Mapping[str, _T]) -> _T:
    if name not in registry:
        names = list(registry)
        raise ConfigError(
            f"{path}: unknown {name!r}{nearest(name, names)} (known: {', '.join(names)})"
        )
    return registry[name]
