"""What is timed for a config: laws, rules and trees, prefixes, and the texts before them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treespec.experiments.config.build import Experiment, build
from treespec.experiments.config.drafts import by_pair
from treespec.experiments.config.schema import Config, TreeMethod
from treespec.experiments.config.trees import label_of
from treespec.experiments.errors import ConfigError
from treespec.experiments.run.prompts import RawPrompt
from treespec.experiments.search_then_run.profile.shapes import (
    Setting,
    completed,
    drift_of,
    shapes_for,
)
from treespec.tree import Law, TreeShape
from treespec.verify import chain, usual_law, usual_rule

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = [
    "PREFIXES",
    "SIZES",
    "Plan",
    "default_sizes",
    "measured_without",
    "plan_profile",
    "settings_of",
]

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


@dataclass(frozen=True, eq=False)
class Plan:
    """What is timed.

    Args:
        settings: laws and rules, each with its trees.
        prefixes: committed tokens before the root.
        text: gives so many token ids of a real text; a number chooses which.
        notes: what was left out, and why.
    """

    settings: Sequence[Setting]
    prefixes: Sequence[int]
    text: Callable[[int, int], Sequence[int]]
    notes: tuple[str, ...]


def plan_profile(
    config: Config,
    pair: "Pair",
    raw: Sequence[RawPrompt],
    sizes: Sequence[int] | None = None,
    prefixes: Sequence[int] | None = None,
) -> Plan:
    """Choose what is timed.

    For every law that the config's trees use under a sampling setting, and those that are the default
    there: deterministic children at temperature 0; above it, drawn without replacement, and independently
    for chains. A law that occurs under several settings is measured under the first.

    Args:
        config: samplings, methods, and where texts start.
        pair: the models.
        raw: the texts.
        sizes: trees, nodes with the root; `default_sizes` by default. 2, 3 and 5 are always measured.
        prefixes: committed tokens before the root. By default those of `PREFIXES` that fit the context.

    Raises:
        ConfigError: if nothing fits the context.
    """
    experiment, notes = build(config), measured_without(config)
    sizes = completed(sizes or default_sizes(pair.target.device.type))
    context = min(pair.target.max_length, pair.draft.max_length)
    settings = settings_of(experiment, pair, sizes, context, notes)
    deepest = max(shape.depth for setting in settings for shape in setting.shapes)
    steps = max(len(setting.shapes) for setting in settings)
    fits = {p: p + drift_of(p, steps) + 2 * deepest + 2 <= context for p in prefixes or PREFIXES}
    for prefix in (p for p, fine in fits.items() if not fine):
        notes.append(
            f"prefix {prefix} is left out: with trees of depth {deepest} and the text that grows while "
            f"they are measured it passes the models' context of {context}"
        )
    chosen = sorted(p for p, fine in fits.items() if fine)
    if not chosen:
        raise ConfigError("; ".join(notes) + "; give shorter --prefixes")
    whole = [list(pair.tokenizer.encode(prompt.text, verbose=False)) for prompt in raw]
    ids = [tokens[config.prompts.start :] or tokens for tokens in whole]

    def text(number: int, length: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < length:
            taken += ids[number % len(ids)]
            number += 1
        return taken[:length]

    return Plan(settings, chosen, text, tuple(notes))


def measured_without(config: Config) -> list[str]:
    """A sentence about methods that bring their own draft, of which nothing is recorded or timed."""
    trees = [method for method in config.methods if isinstance(method, TreeMethod)]
    names = [tree.name or label_of(tree) for tree in trees if not by_pair(tree.draft)]
    if not names:
        return []
    bring = "brings its own draft" if len(names) == 1 else "bring their own drafts"
    return [f"only models.draft is measured: {', '.join(map(repr, names))} {bring}, not looked at"]


def default_sizes(device: str) -> tuple[int, ...]:
    """The sizes that are measured on such a device.

    On CUDA passes are padded to buckets, so that times climb in stairs: both sides of every edge count.
    """
    if device != "cuda":
        return SIZES
    from treespec.models.static_pass import bucket

    edges = sorted({bucket(size) for size in range(1, SIZES[-1] + 1)})
    return tuple(sorted({size for edge in edges for size in (edge, edge + 1) if size <= SIZES[-1]}))


def settings_of(
    experiment: Experiment, pair: "Pair", sizes: Sequence[int], context: int, notes: list[str]
) -> list[Setting]:
    """Laws and rules to measure, each with its trees."""
    by_law: dict[Law, Setting] = {}
    for name, sampling in experiment.samplings.items():
        wanted = [m.choices[name] for m in experiment.methods if m.by_pair]
        pairs = [(choice.law, choice.rule) for choice in wanted]
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


def _only_chains(shapes: Sequence[TreeShape]) -> bool:
    return all(shape.is_chain for shape in shapes)
