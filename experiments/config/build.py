"""Build an experiment from a config: the only place that turns names into objects. It loads no models."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard, TypeVar

from treespec import plugins
from treespec.draft import NoDrafter
from treespec.draft.growth import laws_along
from treespec.errors import InvalidSampling, TreespecError
from treespec.experiments.config.base import mark_of
from treespec.experiments.config.combined import COMBINED, CascadeDraft
from treespec.experiments.config.layers import PartOfTarget
from treespec.experiments.config.model_draft import (
    NO_DRAFT,
    Combined,
    StringsDraft,
    all_of,
    by_pair,
    draft_models,
    label_of_draft,
    laws_of,
    source_of,
    state_of,
)
from treespec.experiments.config.questions import Picked, require_answerable
from treespec.experiments.config.samplings import sampling_of
from treespec.experiments.config.schema import (
    AssistedMethod,
    Config,
    GenerateMethod,
    Method,
    PlainMethod,
    TreeMethod,
)
from treespec.experiments.config.shapes import BudgetShape, label_of_shape, tree_of, unmeasured
from treespec.experiments.config.synthetic import SyntheticDraft
from treespec.experiments.errors import ConfigError
from treespec.plugins import Budget, Part, Wanted
from treespec.protocols import Drafter, Growth, MarginalGrowth, Models
from treespec.reading_models import nearest
from treespec.sampling.distributions import Sampling
from treespec.search import InvalidGrowth
from treespec.search.growth.keys import MEASURED
from treespec.search.growth.shared_budget import BatchBudgetSettings
from treespec.tree import Law, TreeShape
from treespec.verify import Rule, chain, greedy, naive, usual_rule

_T = TypeVar("_T")

NO_COST = "; `draft: null` in a synthetic draft is for tokens that cost nothing"

LAWS: dict[str, Law] = {str(law): law for law in Law}


@dataclass(frozen=True)
class Choice:
    sampling: Sampling
    law: Law
    rule: Rule


@dataclass(frozen=True)
class BuiltMethod:
    """A method with its objects.

    Args:
        name: unique in the experiment.
        config: what the method was built from.
        tree: a shape, a growth, or the budget of a source that brings its own continuations; None for the
            methods of transformers.
        choices: law and rule by name of the sampling setting; empty for transformers' methods.
    """

    name: str
    config: Method
    tree: TreeShape | Growth | Budget | None
    choices: Mapping[str, Choice]

    @property
    def kind(self) -> str:
        return self.config.kind

    @property
    def shape(self) -> TreeShape | None:
        """The tree, if it is the same at every step; else None."""
        return self.tree if isinstance(self.tree, TreeShape) else None

    @property
    def group(self) -> str:
        """`plain`, `assisted`, `chain` or `tree`: the group of methods that it is compared in."""
        if not isinstance(self.config, TreeMethod):
            return "assisted" if self.kind == "assisted" else "plain"
        straight = isinstance(self.config.shape, BudgetShape) and self.config.shape.branching == 1
        return "chain" if straight or (self.shape is not None and self.shape.is_chain) else "tree"

    @property
    def max_depth(self) -> int:
        """Edges on the longest path of a tree; 0 without a tree."""
        if isinstance(self.tree, TreeShape):
            return self.tree.depth
        return self.tree.max_depth if self.tree is not None else 0

    @property
    def lossless(self) -> bool:
        """Whether the method's rules keep the target's law under all sampling settings."""
        return all(choice.rule.lossless for choice in self.choices.values())

    @property
    def synthetic(self) -> bool:
        """Whether given rates decide what is accepted, so that its texts are meaningless."""
        return isinstance(self.config, TreeMethod) and isinstance(self.config.draft, SyntheticDraft)

    @property
    def ranks_tokens(self) -> bool:
        """Whether its drafts say which token is best; those at given rates do not."""
        return self.kind == "tree" and not self.synthetic

    def ending(self, ends: Collection[int], max_new_tokens: int) -> "BuiltMethod":
        """This method with processors that know where a text ends."""
        choices = {
            name: replace(choice, sampling=choice.sampling.ending(ends, max_new_tokens))
            for name, choice in self.choices.items()
        }
        return replace(self, choices=choices)

    def drafter(self, pair: Models, sampling: str) -> Drafter:
        """The drafter for our own loop; for plain decoding, one that drafts nothing."""
        choice = self.choices[sampling]
        assert self.tree is not None
        if not isinstance(self.config, TreeMethod):
            return NoDrafter()
        wanted = Wanted(self.tree, choice.law, choice.sampling, pair)
        return source_of(self.config.draft).make(wanted, self.config.draft)

    @property
    def by_pair(self) -> bool:
        return isinstance(self.config, TreeMethod) and by_pair(self.config.draft)

    @property
    def draft_models(self) -> tuple[str | None, ...]:
        """The draft models that the method's source runs; None stands for `models.draft`."""
        return draft_models(self.config.draft) if isinstance(self.config, TreeMethod) else ()

    @property
    def state(self) -> str | None:
        """`warm` if a source starts each prompt from a file it learned from; else `cold` or None."""
        return state_of(self.config.draft) if isinstance(self.config, TreeMethod) else None

    @property
    def own_models(self) -> tuple[str, ...]:
        return tuple(name for name in self.draft_models if name is not None)


@dataclass(frozen=True)
class Experiment:
    config: Config
    samplings: Mapping[str, Sampling]
    methods: tuple[BuiltMethod, ...]

    def ending(self, ends: Collection[int], budget: int | None = None) -> "Experiment":
        """This experiment with processors that know which tokens end a text.

        `budget`: new tokens of a text, if not those of the config.

        Raises:
            ConfigError: if a processor contradicts the budget.
        """
        most = budget or self.config.max_new_tokens
        try:
            samplings = {name: s.ending(ends, most) for name, s in self.samplings.items()}
        except InvalidSampling as error:
            raise ConfigError(f"samplings: {error}") from None
        methods = tuple(method.ending(ends, most) for method in self.methods)
        return replace(self, samplings=samplings, methods=methods)


def build(config: Config) -> Experiment:
    """Build all objects that need no loaded model.

    A method that waits for a measurement gets a stand-in, a tree of the same laws and rules, so that names,
    levels, the laws to record and to time, and mistakes are known before anything is measured.
    """
    samplings: dict[str, Sampling] = {}
    for i, setting in enumerate(config.samplings):
        if setting.name in samplings:
            raise ConfigError(f"samplings[{i}]: {setting.name} appears twice")
        samplings[setting.name] = sampling_of(setting, f"samplings[{i}]")
    methods: list[BuiltMethod] = []
    for i, method in enumerate(config.methods):
        _require_draft(f"methods[{i}]", method, config)
        _require_batchable(f"methods[{i}]", method, config.batch, samplings)
        if wants_measured(method):
            if not by_pair(method.draft):
                raise ConfigError(
                    f"methods[{i}].shape asks for {MEASURED!r} values, but these are measured for "
                    f"models.draft, and this method drafts with {method.draft.model_dump()}: name files, "
                    "or remove its `draft`"
                )
            if config.search is None:
                raise ConfigError(
                    f"methods[{i}].shape asks for {MEASURED!r} values, but the config has no `search`: "
                    "add `search: {}`, or name files"
                )
            method = stand_in(f"methods[{i}]", method)
        built = _method(f"methods[{i}]", method, samplings, config.batch)
        if built.name in (earlier.name for earlier in methods):
            raise ConfigError(
                f"methods[{i}]: an earlier method is called {built.name!r} too; give one of them a 'name'"
            )
        methods.append(built)
    if config.search is not None and config.models.draft == NO_DRAFT:
        raise ConfigError(
            f"search measures models.draft, which is {NO_DRAFT!r}: name a draft model, or remove `search`"
        )
    if config.search is None:  # else names and trees are known only after the search
        require_answerable(config.compare, [_picked(method) for method in methods])
    return Experiment(config, samplings, tuple(methods))


def _picked(method: BuiltMethod) -> Picked:
    source = source_of(method.config.draft).name if isinstance(method.config, TreeMethod) else None
    if method.group == "assisted":
        source = "model"
    rules = sorted({str(choice.rule) for choice in method.choices.values()})
    return Picked(method.name, method.group, source, rules)


def wants_measured(method: Method) -> TypeGuard[TreeMethod]:
    """Whether a method can be built only after the config's `search` has measured something."""
    shape = getattr(method, "shape", None)
    keys = ("rates", "acceptance", "latency", "calibration")
    return any(getattr(shape, key, None) == MEASURED for key in keys)


def stand_in(path: str, method: TreeMethod) -> TreeMethod:
    """The method to build in place of one that waits for a measurement, under a name of its own.

    `path` is that of the method in its config, for messages.
    """
    name = method.name or label_of(method)
    # The config may hold the same growth without a calibration too
    if getattr(method.shape, "calibration", None) == MEASURED:
        name += ", calibrated"
    try:
        return method.model_copy(update={"shape": unmeasured(method.shape), "name": name})
    except InvalidGrowth as error:
        raise ConfigError(f"{path}.shape.{error}") from None


def label_of(method: TreeMethod) -> str:
    """The name of a method that the config does not name.

    It says the tree, the draft source unless that is `models.draft`, and law and rule if they are given.
    """
    law_and_rule = ", ".join(name for name in (method.law, method.rule) if name)
    source = "" if by_pair(method.draft) else f"{label_of_draft(method.draft)} "
    return source + label_of_shape(method.shape) + (f" ({law_and_rule})" if law_and_rule else "")


def _require_draft(path: str, method: Method, config: Config) -> None:
    """Reject a source that lacks something it needs, and a draft made of layers that do nothing."""
    if isinstance(method, AssistedMethod) and config.models.draft == NO_DRAFT:
        raise ConfigError(
            f"{path}: assisted generation needs a draft model, but models.draft is {NO_DRAFT!r}: name one"
        )
    if isinstance(method, AssistedMethod) and config.models.other_tokenizer:
        raise ConfigError(
            f"{path}: assisted generation runs on pairs of one tokenizer, but models.other_tokenizer is "
            "true: remove the method"
        )
    if not isinstance(method, TreeMethod):
        return
    enlarge = {} if config.models.enlarge is None else config.models.enlarge
    for source in all_of(method.draft):
        if isinstance(source, PartOfTarget) and (
            not isinstance(enlarge, dict) or "num_hidden_layers" in enlarge
        ):
            raise ConfigError(
                f"{path}.draft: models.enlarge adds layers that change nothing, so a draft without them "
                "makes no mistakes, at a cost that no trained model achieves. Enlarge only widths, as in "
                "models.enlarge={hidden_size: 768, intermediate_size: 1920}, or use another source"
            )
        if isinstance(source, StringsDraft) and not config.models.other_tokenizer:
            raise ConfigError(
                f"{path}.draft: source = strings drafts with a model of another tokenizer, which "
                "models.other_tokenizer = false refuses: set models.other_tokenizer to true, or use "
                "{source: model}"
            )
        if isinstance(source, CascadeDraft) and isinstance(source.draft, StringsDraft):
            raise ConfigError(
                f"{path}.draft.draft: source = strings drafts for the target, not for a model of a "
                "cascade: use {source: model}"
            )
        problem = isinstance(source, Combined) and source.lacks([s.name for s in config.samplings])
        if problem:
            raise ConfigError(f"{path}.draft.{problem}")
        repeated = isinstance(source, CascadeDraft) and source.repeated(
            config.models.target, config.models.draft
        )
        if repeated:
            raise ConfigError(
                f"{path}.draft: the cascade contains itself: {repeated} are the same model; a lower level "
                "must be cheaper than the one that it drafts for"
            )
    if config.models.draft == NO_DRAFT and None in draft_models(method.draft):
        raise ConfigError(
            f"{path}.draft = {{source: {source_of(method.draft).name}}} needs a draft model, but "
            f"models.draft is {NO_DRAFT!r}: name one there or here ({path}.draft.model), or use another "
            f"source{NO_COST if isinstance(method.draft, SyntheticDraft) else ''}"
        )


def _require_batchable(
    path: str, method: Method, batch: int, samplings: Mapping[str, Sampling]
) -> None:
    """Reject what cannot decode a batch, and baselines that would decode other texts than one by one."""
    if isinstance(method, TreeMethod) and isinstance(method.shape, BatchBudgetSettings):
        _require_nodes(path, method.shape.nodes, batch)
    if batch == 1:
        return
    if isinstance(method, AssistedMethod):
        raise ConfigError(
            f"{path}: assisted generation decodes one text at a time, but batch = {batch}: remove the "
            "method (a chain of ours drafts alike), or set batch to 1"
        )
    processed = [name for name, s in samplings.items() if s.processors is not None]
    if isinstance(method, GenerateMethod) and processed:
        raise ConfigError(
            f"{path}: with batch = {batch}, `generate` pads the prompts, and {processed[0]} would read the "
            "padding: use `kind: plain`, or set batch to 1"
        )


def _require_nodes(path: str, nodes: int, batch: int) -> None:
    """Reject a budget of a batch that leaves no node to draft."""
    if nodes <= batch:
        raise ConfigError(
            f"{path}.shape.nodes = {nodes}, and the roots of batch = {batch} texts take as many: raise it, "
            "better to several nodes a text"
        )


def plain_method(name: str, samplings: Mapping[str, Sampling]) -> BuiltMethod:
    """Plain decoding by our own loop: every tree is only the root."""
    choices = {
        setting: Choice(sampling, Law.DETERMINISTIC, greedy if sampling.greedy else naive)
        for setting, sampling in samplings.items()
    }
    return BuiltMethod(name, PlainMethod(kind="plain", name=name), TreeShape.chain(0), choices)


def _method(
    path: str, config: Method, samplings: Mapping[str, Sampling], batch: int
) -> BuiltMethod:
    if isinstance(config, GenerateMethod | AssistedMethod):
        return BuiltMethod(config.name or config.kind, config, None, {})
    if isinstance(config, PlainMethod):
        return plain_method(config.name or config.kind, samplings)
    source = source_of(config.draft)
    try:
        tree = tree_of(config.shape, batch)
    except TreespecError as error:
        raise ConfigError(f"{path}.shape: {error}") from None
    _require_tree(path, config, source, tree)
    name = config.name or label_of(config)
    if isinstance(tree, TreeShape) and tree.size == 1:  # a search found that no draft pays
        return plain_method(f"{name}: plain decoding", samplings)
    choices = {
        setting: _choice(path, config, source, tree, sampling)
        for setting, sampling in samplings.items()
    }
    built = BuiltMethod(name, config, tree, choices)
    marked = name + mark_of(name, lossless=built.lossless, synthetic=built.synthetic)
    return replace(built, name=marked)


def _require_tree(
    path: str, config: TreeMethod, source: Part, tree: TreeShape | Growth | Budget
) -> None:
    """Reject a tree that the draft source cannot draft."""
    if isinstance(config.draft, SyntheticDraft):
        if config.draft.draft is not None:
            source = source_of(config.draft.draft)
        elif not isinstance(tree, TreeShape | Budget):
            raise ConfigError(
                f"{path}.shape: {config.shape.kind!r} grows by a draft's probabilities, but "
                f"{path}.draft.draft is null, for tokens without a meaning: name a source there, or give "
                "a fixed shape"
            )
    if source.trees == "any":
        if isinstance(tree, Budget):
            raise ConfigError(
                f"{path}.shape: a budget is for sources that bring their own continuations, but "
                f"{source.name!r} drafts a given tree: give a shape, such as {{kind: chain, depth: 4}}"
            )
        if source.name == "strings" and not isinstance(tree, TreeShape):
            raise ConfigError(
                f"{path}.shape: the draft source 'strings' fills fixed shapes, and {config.shape.kind!r} "
                "grows by probabilities, which strings have none of: give a shape, such as {kind: chain, "
                "depth: 4}"
            )
        return
    if isinstance(tree, MarginalGrowth):
        suitable = ", ".join(
            name
            for name, part in plugins.parts("source").items()
            if part.trees == "any" and len(part.laws) > 1 and name not in COMBINED
        )
        raise ConfigError(
            f"{path}.shape: {config.shape.kind!r} needs a distribution for each position, and the draft "
            f"source {source.name!r} gives none: use a source that has them ({suitable}), or give limits: "
            "{kind: budget, depth: 4}"
        )
    if not isinstance(tree, Budget):
        raise ConfigError(
            f"{path}.shape: the draft source {source.name!r} brings its own continuations and takes limits "
            f"instead of {config.shape.kind!r}: {{kind: budget, depth: 4}}"
        )
    if source.trees == "chain" and tree.branching > 1:
        raise ConfigError(
            f"{path}.shape.branching = {tree.branching}: the draft source {source.name!r} drafts chains: "
            "leave branching out"
        )
    reason = config.draft.refuses(tree) if isinstance(config.draft, Combined) else None
    if reason:
        raise ConfigError(f"{path}.draft.{reason}")


def _choice(
    path: str,
    config: TreeMethod,
    source: Part,
    tree: TreeShape | Growth | Budget,
    sampling: Sampling,
) -> Choice:
    law = None if config.law is None else _look_up(f"{path}.law", config.law, LAWS)
    rules = {name: part.make for name, part in plugins.parts("rule").items()}
    rule = None if config.rule is None else _look_up(f"{path}.rule", config.rule, rules)
    laws = laws_of(config.draft)
    possible = laws_along(tree) & laws
    if law is not None and law not in laws:
        raise ConfigError(
            f"{path}.law: the draft source {source.name!r} does not support {law}; it supports "
            f"{', '.join(sorted(map(str, laws)))}"
        )
    if law is None:
        preferred = [law for law in _preferred_laws(tree, sampling) if law in possible]
        law = next((law for law in preferred if rule is None or law in rule.laws), preferred[0])
    if isinstance(config.draft, SyntheticDraft):
        if rule is not None:
            raise ConfigError(
                f"{path}.rule: {str(rule)!r} compares tokens, but the rates of a synthetic draft decide "
                "what is accepted: leave the rule out"
            )
        rule = config.draft.rule
    elif rule is None:
        rule = _default_rule(law, tree, sampling)
    if rule.one_hot and not sampling.greedy:
        raise ConfigError(
            f"{path}.rule: '{rule}' needs temperature 0, but a sampling setting has temperature "
            f"{sampling.temperature:g}; leave the rule out to have it chosen by temperature"
        )
    if law not in possible:
        raise ConfigError(
            f"{path}.law: {law} does not fit this growth, which chooses children by their tokens or by the "
            f"order of their draws; use {', '.join(sorted(map(str, possible)))}"
        )
    example = _example_of(tree)
    mixed = (
        isinstance(config.draft, Combined) and config.draft.mixes and law is not Law.DETERMINISTIC
    )
    reason = rule.covers(example, _mixed_laws(example, law) if mixed else law)
    if reason:
        raise ConfigError(f"{path}: {reason}")
    try:
        return Choice(sampling, law, rule.using(**config.settings))
    except TreespecError as error:
        raise ConfigError(f"{path}: {error}") from None


def _example_of(tree: TreeShape | Growth | Budget) -> TreeShape:
    """A small shape of the kind that will be drafted, to ask a rule whether it covers such trees."""
    if isinstance(tree, Budget):
        return TreeShape.chain(2) if tree.branching == 1 else TreeShape.expansion([2, 1])
    return tree if isinstance(tree, TreeShape) else TreeShape.expansion([2, 1])


def _mixed_laws(shape: TreeShape, law: Law) -> list[list[tuple[Law, int]]]:
    """Laws of a mixed tree, by node: the first child is drawn, its siblings are deterministic."""
    # Nodes without siblings of the first child have one group, leaves have none.
    return [
        [(law, 1), (Law.DETERMINISTIC, len(children) - 1)][: len(children)]
        for children in shape.children
    ]


def _preferred_laws(tree: TreeShape | Growth | Budget, sampling: Sampling) -> tuple[Law, ...]:
    if sampling.greedy:
        preferred = (Law.DETERMINISTIC, Law.WITHOUT_REPLACEMENT, Law.IID)
    elif isinstance(tree, TreeShape) and tree.is_chain:
        preferred = (Law.IID, Law.WITHOUT_REPLACEMENT, Law.DETERMINISTIC)
    else:
        preferred = (Law.WITHOUT_REPLACEMENT, Law.IID, Law.DETERMINISTIC)
    return (*preferred, *(law for law in Law if law not in preferred))


def _default_rule(law: Law, tree: TreeShape | Growth | Budget, sampling: Sampling) -> Rule:
    if not sampling.greedy and isinstance(tree, TreeShape) and not chain.covers(tree, law):
        return chain
    return usual_rule(law, sampling)


def _look_up(path: str, name: str, registry: Mapping[str, _T]) -> _T:
    if name not in registry:
        names = list(registry)
        raise ConfigError(
            f"{path}: unknown {name!r}{nearest(name, names)} (known: {', '.join(names)})"
        )
    return registry[name]
