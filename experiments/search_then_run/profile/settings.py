"""Under which laws, rules and sampling settings a config's pair is measured."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from treespec.children import require_children
from treespec.errors import TreespecError
from treespec.experiments.config.build import Experiment
from treespec.experiments.errors import ConfigError
from treespec.experiments.search_then_run.profile.shapes import Setting, shapes_for
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import RULE_OF_LAW, RULES, Rule

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["settings_of"]


def settings_of(
    experiment: Experiment, pair: "Pair", sizes: Sequence[int], context: int, notes: list[str]
) -> list[Setting]:
    """Laws and rules to measure, each with its trees."""
    found: dict[Law, Setting] = {}
    for name, sampling in experiment.samplings.items():
        wanted = [m.choices[name] for m in experiment.methods if m.kind == "tree"]
        pairs = [(choice.law, choice.rule) for choice in wanted]
        if sampling.greedy:
            pairs.append((Law.DETERMINISTIC, RULES["greedy"]))
        else:
            pairs.append((Law.WITHOUT_REPLACEMENT, RULE_OF_LAW[Law.WITHOUT_REPLACEMENT]))
            pairs.append((Law.IID, RULES["chain"]))
        for law, rule in pairs:
            takes = _takes(law, rule, pair.draft.vocab_size, context)
            shapes, missing = shapes_for(sizes, takes)
            if not shapes:
                continue
            before = found.get(law)
            if before is not None and before.name != name:
                notes.append(f"law {law}: measured under {before.name}, not under {name}")
            elif before is None or _only_chains(before.shapes) > _only_chains(shapes):
                # A rule for trees says what trees and chains take, one for chains only the latter.
                found[law] = Setting(law, rule, sampling, name, shapes)
                if missing and not _only_chains(shapes):
                    notes.append(f"law {law}: no tree of sizes {', '.join(map(str, missing))} fits")
    notes[:] = dict.fromkeys(notes)
    if not found:
        raise ConfigError(
            f"sizes = {','.join(map(str, sizes))}: no tree of these sizes fits the context of {context}"
        )
    return list(found.values())


def _only_chains(shapes: Sequence[TreeShape]) -> bool:
    return all(shape.is_chain for shape in shapes)


def _takes(law: Law, rule: Rule, vocabulary: int, context: int) -> Callable[[TreeShape], bool]:
    """Whether law, rule, vocabulary and context allow a tree."""

    def takes(shape: TreeShape) -> bool:
        rows = torch.zeros(1, 1).expand(len(shape.internal), shape.size)  # of large trees, too
        probs = None if law is Law.DETERMINISTIC else rows
        try:
            require_children(max(map(len, shape.children)), vocabulary, law)
            rule.require(TokenTree(shape, torch.arange(shape.size), probs, law))
        except TreespecError:
            return False
        return 2 * shape.depth < context

    return takes
