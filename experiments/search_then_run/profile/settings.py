"""Under which laws, rules and sampling settings a config's pair is measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from treespec.experiments.config.build import Experiment
from treespec.experiments.errors import ConfigError
from treespec.experiments.search_then_run.profile.shapes import Setting, shapes_for
from treespec.tree import Law, TreeShape
from treespec.verify import chain, usual_law, usual_rule

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
            before = found.get(law)
            if before is not None and before.name != name:
                notes.append(f"law {law}: measured under {before.name}, not under {name}")
            elif before is None or _only_chains(before.shapes) > _only_chains(shapes):
                # A rule for trees says what trees and chains take, one for chains only the latter.
                found[law] = Setting(sampling, law, rule, name, shapes)
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
