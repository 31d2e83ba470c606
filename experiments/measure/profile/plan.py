"""What is timed for a config: laws, rules and trees, prefixes, and the texts before them.

The trees are of one family, from which all tables of a latency model follow.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from treespec.experiments.config.build import BuiltMethod, Choice, Experiment, build, label_of
from treespec.experiments.config.model_draft import NO_DRAFT, by_pair
from treespec.experiments.config.samplings import budget_of
from treespec.experiments.config.schema import Config, TreeMethod
from treespec.experiments.errors import ConfigError
from treespec.experiments.measure.profile.timed_drafts import Making, timed_draft
from treespec.experiments.run.inputs import read_by
from treespec.experiments.run.prompt_rows import RawPrompt
from treespec.experiments.run.prompts import behind
from treespec.tree import Law, TreeShape
from treespec.verify import chain, usual_law, usual_rule

if TYPE_CHECKING:
    from treespec.models.load import Pair

ALWAYS_TIMED = (2, 3, 5)
"""Sizes that are always measured: chains, and the smallest tree with further children of one node."""

LONGEST_CHAIN = 32

LARGEST_DRIFT_TOKENS = 32
"""Tokens by which a text may be shorter or longer than the prefix length that it counts for."""


@dataclass(frozen=True)
class Setting(Choice):
    """How children are chosen and accepted, and in which trees.

    Args:
        name: of the sampling, as in configs.
        shapes: the trees that are measured.
        texts: number of texts that are decoded side by side, each with such a tree.
        make: makes the drafters of a method; None for those of the pair's draft model.
    """

    name: str
    shapes: tuple[TreeShape, ...]
    texts: int = 1
    make: Making | None = None


def bundle(size: int) -> TreeShape:
    """The tree of `size` nodes that is measured: W nodes on each of two levels, 2 W on the third.

    What is left over are leaves below the root; fewer than five nodes are a chain.

    Example:
        >>> bundle(10).level_sizes, bundle(10).parents
        ((1, 3, 2, 4), (-1, 0, 0, 0, 1, 2, 4, 4, 5, 5))
    """
    width, over = divmod(size - 1, 4)
    if not width:
        return TreeShape.chain(over)
    first, second = 1, 1 + width + over
    parents = [-1, *[0] * (width + over), *range(first, first + width)]
    parents += [node for node in range(second, second + width) for _ in range(2)]
    return TreeShape(tuple(parents))


def completed(sizes: Iterable[int]) -> list[int]:
    """The sizes that are measured if these are asked for, ascending.

    Without a tree of five to eight nodes nothing would say what a root's further children cost, and no tree
    that branches there could be timed.

    Example:
        >>> completed([1, 4, 16])
        [1, 2, 3, 4, 5, 16]
    """
    return sorted({*ALWAYS_TIMED, *sizes})


def shapes_for(
    sizes: Sequence[int], takes: Callable[[TreeShape], bool]
) -> tuple[tuple[TreeShape, ...], tuple[int, ...]]:
    """The trees of these sizes that are measured, and the sizes for which there is none.

    Besides the bundles, of the largest size: the widest level there is, a long chain, and two trees that
    differ in the children of their second level, for what children of as many nodes cost as may have two.
    With `completed` sizes every tree up to the largest is timed.

    Args:
        sizes: nodes, the root included.
        takes: whether law, rule, vocabulary and context take a tree. Where they take no bundle, chains
            are measured.
    """
    by_size: dict[int, TreeShape] = {}
    for size in sizes:
        made = [bundle(size)] if size > 1 else []
        made += [TreeShape.chain(size - 1)] if 1 < size <= LONGEST_CHAIN + 1 else []
        shape = next(filter(takes, made), None)
        if shape is not None:
            by_size[size] = shape
    shapes, largest = list(by_size.values()), max(by_size, default=0)
    if largest > 4 and not by_size[largest].is_chain:
        made = [
            TreeShape.independent_chains((largest - 1) // 2, 2),
            TreeShape.chain(min(largest - 1, LONGEST_CHAIN)),
        ]
        most = (largest - 1) // 3  # nodes of one level that may have two children
        if most > (largest - 1) // 4:
            made += [TreeShape.independent_chains(most, 2), TreeShape.expansion([most, 2])]
        shapes += filter(takes, made)
    return tuple(shapes), tuple(size for size in sizes if size > 1 and size not in by_size)


def drift_of(prefix: int, steps: int) -> int:
    """How far from a prefix length texts may be that count as of this length, in so many steps."""
    return min(LARGEST_DRIFT_TOKENS, prefix // 2, steps)


SIZES = (
    *range(1, 9),
    *range(10, 17, 2),
    *range(20, 33, 4),
    40,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
)
"""Dense where trees are mostly chosen: times do not climb evenly there, with every kernel's own steps."""

PREFIXES = (64, 256, 1024)

SOURCES_KEPT = 8
"""Sources that stay encoded while others are."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What is timed.

    Args:
        settings: laws, rules and trees.
        prefixes: committed tokens before the root.
        text: gives so many token ids of a text, by its number.
        behind: gives the pair behind the source of a text, by its number; None for decoders.
        notes: what is left out, and why.
    """

    settings: Sequence[Setting]
    prefixes: Sequence[int]
    text: Callable[[int, int], Sequence[int]]
    behind: "Callable[[int], Pair] | None"
    notes: tuple[str, ...]


def plan_profile(
    config: Config,
    pair: "Pair",
    raw: Sequence[RawPrompt],
    sizes: Sequence[int] | None = None,
    prefixes: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    method: str | None = None,
) -> Plan:
    """Choose what is timed, for each number of texts in a batch (by default for one text).

    For every law that the config's trees use under a sampling setting, and those that are the default
    there: deterministic children at temperature 0; above it, drawn without replacement, and independently
    for chains. A law that occurs under several settings is measured under the first. Of a named `method`,
    which drafts with a trained head or a model of its own, its laws alone.
    """
    experiment, notes = build(config), measured_without(config)
    named = None if method is None else named_method(experiment, method)
    if named is not None:
        notes = []
    elif config.models.draft == NO_DRAFT:
        notes = ["there is no draft model: these are the target's times, and drafting takes none"]
    context = min(pair.target.max_length, pair.draft.max_length)
    settings: list[Setting] = []
    for texts in sorted(set(batches or (1,))):
        asked = completed(sizes or default_sizes(pair.target.device.type, texts))
        ended = experiment.ending(pair.end_tokens, budget_of(experiment.config))
        own = (
            settings_of(ended, pair, asked, context, notes)
            if named is None
            else settings_of_method(ended, named, pair, asked, notes)
        )
        settings += [replace(setting, texts=texts) for setting in own]
    deepest = max(shape.depth for setting in settings for shape in setting.shapes)
    steps = max(len(setting.shapes) for setting in settings)
    fits = {p: p + drift_of(p, steps) + 2 * deepest + 2 <= context for p in prefixes or PREFIXES}
    notes += [
        f"prefix {prefix} is left out: with trees of depth {deepest} and the text that grows while "
        f"they are measured it passes the models' context of {context}"
        for prefix, fine in fits.items()
        if not fine
    ]
    chosen = sorted(p for p, fine in fits.items() if fine)
    if not chosen:
        raise ConfigError("; ".join(notes) + "; give shorter --prefixes")
    ids, of_source = _texts(config, pair, raw)

    def text(number: int, length: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < length:
            taken += ids[number % len(ids)]
            number += 1
        return taken[:length]

    return Plan(settings, chosen, text, of_source, tuple(notes))


def _texts(
    config: Config, pair: "Pair", raw: Sequence[RawPrompt]
) -> "tuple[list[list[int]], Callable[[int], Pair] | None]":
    """Token ids before the timed trees, and the pair behind the source of a text, by its number.

    An encoder-decoder's answers are not known: the beginning of each is followed by its source's tokens.
    """
    if not pair.target.needs_source:
        whole = [list(pair.tokenizer.encode(prompt.text, verbose=False)) for prompt in raw]
        return [tokens[config.prompts.start :] or tokens for tokens in whole], None
    prompts = read_by(pair, raw, config.prompts)

    @lru_cache(maxsize=SOURCES_KEPT)
    def of_prompt(place: int) -> "Pair":
        return behind(pair, prompts[place])

    ids = [[*prompt.ids, *prompt.source] for prompt in prompts]
    return ids, lambda number: of_prompt(number % len(prompts))


def named_method(experiment: Experiment, name: str) -> BuiltMethod:
    """The tree method of this name.

    Raises:
        ConfigError: if there is none.
    """
    built = {method.name: method for method in experiment.methods if method.kind == "tree"}
    if name not in built:
        raise ConfigError(
            f"the config has no tree method {name!r} (tree methods: "
            f"{', '.join(map(repr, built)) or 'none'})"
        )
    return built[name]


def measured_without(config: Config) -> list[str]:
    """A sentence about methods that bring their own draft, of which nothing is recorded or timed."""
    names = [
        method.name or label_of(method)
        for method in config.methods
        if isinstance(method, TreeMethod) and not by_pair(method.draft)
    ]
    if not names:
        return []
    bring = "brings its own draft" if len(names) == 1 else "bring their own drafts"
    return [f"only models.draft is measured: {', '.join(map(repr, names))} {bring}, not looked at"]


def default_sizes(device: str, texts: int = 1) -> tuple[int, ...]:
    """The sizes that are measured on such a device, for so many texts in a batch.

    On CUDA passes are padded to buckets, so that times climb in stairs: both sides of every edge count. A
    pass over several texts has at most as many nodes as the largest one over a single text.

    Example:
        >>> default_sizes("cpu", 64)
        (1, 2, 3, 4, 5, 6, 7, 8)
    """
    if texts > 1:
        return tuple(size for size in default_sizes(device) if texts * size <= SIZES[-1])
    if device != "cuda":
        return SIZES
    from treespec.models.passes.static_sizes import bucket

    edges = sorted({bucket(size) for size in range(1, SIZES[-1] + 1)})
    return tuple(sorted({size for edge in edges for size in (edge, edge + 1) if size <= SIZES[-1]}))


def settings_of(
    experiment: Experiment, pair: "Pair", sizes: Sequence[int], context: int, notes: list[str]
) -> list[Setting]:
    """Laws and rules to measure, each with its trees."""
    by_law: dict[Law, Setting] = {}
    for name, sampling in experiment.samplings.items():
        if experiment.config.models.draft == NO_DRAFT:  # the sources that need no model choose
            pairs = [(Law.DETERMINISTIC, usual_rule(Law.DETERMINISTIC, sampling))]
        else:
            pairs = [
                (method.choices[name].law, method.choices[name].rule)
                for method in experiment.methods
                if method.by_pair
            ]
            usual = usual_law(sampling)
            pairs.append((usual, usual_rule(usual, sampling)))
            if not sampling.greedy:
                pairs.append((Law.IID, chain))
        for law, rule in pairs:

            def takes(shape: TreeShape, law=law, rule=rule) -> bool:
                refusal = rule.covers(shape, law, pair.draft.vocab_size)
                return refusal is None and 2 * shape.depth < context

            shapes, missing = shapes_for(sizes, takes)
            if not shapes:
                continue
            before = by_law.get(law)
            if before is not None and before.name != name:
                notes.append(f"law {law}: measured under {before.name}, not under {name}")
            elif before is None or _only_chains(before.shapes) > _only_chains(shapes):
                # A rule for trees says what trees and chains take, one for chains only the latter.
                by_law[law] = Setting(sampling, law, rule, name, shapes)
                if missing and not _only_chains(shapes):
                    notes.append(f"law {law}: no tree of sizes {', '.join(map(str, missing))} fits")
    notes[:] = dict.fromkeys(notes)
    if not by_law:
        raise ConfigError(
            f"sizes = {','.join(map(str, sizes))}: no tree of these sizes fits the context of {context}"
        )
    return list(by_law.values())


def settings_of_method(
    experiment: Experiment,
    named: BuiltMethod,
    pair: "Pair",
    sizes: Sequence[int],
    notes: list[str],
) -> list[Setting]:
    """The laws of one method with a draft of its own, each with its trees."""
    by_law: dict[Law, Setting] = {}
    for name in experiment.samplings:
        choice = named.choices[name]
        draft = timed_draft(named, pair, choice)
        context = min(pair.target.max_length, draft.max_length)
        rule = choice.rule.on_trees.get(choice.law, choice.rule)

        def takes(
            shape: TreeShape, rule=rule, law=choice.law, draft=draft, context=context
        ) -> bool:
            refused = rule.covers(shape, law, pair.target.vocab_size) is not None
            deeper = draft.depth is not None and shape.depth > draft.depth
            return not refused and not deeper and 2 * shape.depth < context

        shapes, missing = shapes_for(sizes, takes)
        if choice.law not in by_law and shapes:
            by_law[choice.law] = Setting(
                choice.sampling, choice.law, rule, name, shapes, make=draft.make
            )
            if missing:
                notes.append(f"no tree of sizes {', '.join(map(str, missing))} fits")
    if not by_law:
        raise ConfigError(
            f"sizes = {','.join(map(str, sizes))}: {named.name!r} drafts no tree of these sizes"
        )
    return list(by_law.values())


def _only_chains(shapes: Sequence[TreeShape]) -> bool:
    return all(shape.is_chain for shape in shapes)
