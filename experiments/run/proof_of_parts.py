"""Prove parts of plug-ins lossless on small trees before a run decodes with them.

The proof enumerates the part's own code exactly, in seconds (`treespec.testing.assert_lossless`). Proofs
are remembered in the user's cache folder, by all that they depend on.
"""

import ast
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from treespec import plugins, testing
from treespec.draft import Merge, ModelDrafter
from treespec.draft.growth import laws_along, places_of, rounds
from treespec.errors import TreespecError, in_words, text_of
from treespec.experiments.config.build import Experiment
from treespec.experiments.config.combined import CascadeDraft, MergeDraft
from treespec.experiments.config.model_draft import all_of, laws_of, source_of
from treespec.experiments.config.places import texts_in
from treespec.experiments.config.plugged import told
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.errors import ConfigError
from treespec.files import cache_folder
from treespec.plugin_files import PluginFile, file_of, in_use
from treespec.plugins import Budget, Part, Settings, Wanted
from treespec.protocols import Drafter, Growth, MarginalGrowth, PruningGrowth, TreeModel
from treespec.sampling.distributions import Sampling
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import RULE_OF_LAW, Rule, greedy

VERSION = 3
"""Version of the proofs; a new version proves all parts again."""

VOCAB, SIZE = 3, 4
"""Vocabulary size of the proofs, and the most nodes of their trees."""

UNCHANGING = {*sys.stdlib_module_names, "attention_masks", "numpy", "torch", "treespec"}
"""What a plug-in may import for its proofs to be remembered: a module of the user's own could change while
the plug-in's file does not."""

_PROVED: set[str] = set()


class _Pair(NamedTuple):
    """A pair of tabular models. Both are the draft: a drafter must not see the target's tables."""

    target: TreeModel
    draft: TreeModel


class _Small:
    """Limits a growth to small trees, judging by their shape alone."""

    def __init__(self, growth: Growth) -> None:
        self._growth, self.max_depth = growth, min(growth.max_depth, SIZE - 1)
        self.laws = laws_along(growth)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        places, room = [], SIZE - shape.size
        for node, k in places_of(self._growth, shape, probs):
            fits = min(k, room, VOCAB - len(shape.children[node]))
            if fits > 0 and shape.depths[node] < self.max_depth:
                places.append((node, fits))
                room -= fits
        return places


class _SmallPruning(_Small):
    """The same for a growth that prunes its tree at the end."""

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        assert isinstance(self._growth, PruningGrowth)
        return self._growth.keep(shape, probs)


class _SmallMarginal(_Small):
    """The same for a growth that builds its tree from marginals."""

    def tree_over(self, marginals: Float[Tensor, "D V"], root: int) -> TokenTree:
        """The growth's tree over these marginals, repeated to the depth it expects, cut to a small tree."""
        assert isinstance(self._growth, MarginalGrowth)
        missing = self._growth.max_depth - len(marginals)
        padded = torch.cat([marginals, marginals[-1:].expand(missing, -1)])
        tree = self._growth.tree_over(padded, root)
        nodes = [n for n in range(tree.shape.size) if tree.shape.depths[n] <= self.max_depth][:SIZE]
        index = {node: i for i, node in enumerate(nodes)}
        shape = TreeShape(tuple(index.get(tree.shape.parents[node], -1) for node in nodes))
        return TokenTree(shape, tree.tokens[nodes], None, Law.DETERMINISTIC)


def _small(growth: Growth) -> _Small:
    """Limit a growth of a plug-in to small trees."""
    if isinstance(growth, MarginalGrowth):
        return _SmallMarginal(growth)
    return _SmallPruning(growth) if isinstance(growth, PruningGrowth) else _Small(growth)


def require_proved(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Prove every part of a plug-in that a method uses, except rules that declare themselves lossy.

    Raises:
        ConfigError: if a part is not lossless or fails; gives the smallest counterexample.
    """
    known = plugins.parts("rule")
    for i, method in enumerate(experiment.methods):
        if not isinstance(method.config, TreeMethod):
            continue
        path, shape, draft = f"methods[{i}]", method.config.shape, method.config.draft
        choices, tree = list(method.choices.values()), method.tree
        mixed = {c.law for c in choices if isinstance(draft, MergeDraft)} - {Law.DETERMINISTIC}
        rules = [(f"{path}.rule", choices[0].rule, mixed)]
        for source in all_of(draft):
            part = source_of(source)
            if isinstance(source, CascadeDraft) and source.rule in known:
                rules.append((f"{path}.draft.rule", known[source.rule].make, set()))
            if part.plugged:
                limits = None
                if part.trees != "any":
                    assert isinstance(tree, Budget)
                    size = min(tree.size, SIZE) if source is draft else SIZE  # a part has its own
                    limits = size, 1 if part.trees == "chain" else min(tree.branching, 2)
                laws = laws_of(source)
                cases = [
                    (c.law if c.law in laws else Law.DETERMINISTIC, c.sampling.greedy, limits)
                    for c in choices
                ]
                proof, settings = partial(_prove_source, source), source.model_dump(mode="json")
                _prove(f"{path}.draft", part, settings, proof, cases, say)
        for key, rule, drawn in rules:
            part = known.get(str(rule))
            if part is not None and part.plugged and rule.lossless:
                cases = [(None,), *((law,) for law in drawn)]
                _prove(key, part, dict(rule.settings), partial(_prove_rule, rule), cases, say)
        part = plugins.parts("growth").get(getattr(shape, "kind", ""))
        if part is not None and part.plugged:
            assert not isinstance(tree, TreeShape | Budget | None)
            proof, settings = partial(_prove_growth, tree), shape.model_dump(mode="json")
            _prove(f"{path}.shape", part, settings, proof, [(c.law,) for c in choices], say)


def _prove(
    path: str,
    part: Part,
    settings: dict[str, Any],
    proof: Callable[..., None],
    cases: Iterable[tuple[Any, ...]],
    say: Callable[[str], None],
) -> None:
    """Prove a part in each of these cases, by `proof(*case)`, unless that is remembered.

    Raises:
        ConfigError: if a proof fails; names the key `path` and the part.
    """
    keys = {case: _key(part, settings, case) for case in cases}
    new = {
        case: key
        for case, key in keys.items()
        if key is None or not (key in _PROVED or (_proved() / key).exists())
    }
    if not new:
        return
    say(f"proving that the {part.kind} {part.name!r} is lossless, on small trees")
    try:
        for case in new:
            proof(*case)
    except KeyboardInterrupt:
        raise
    except testing.NotLossless as error:
        advice = "; declare a rule that is meant to be lossy with lossless=False"
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin} does not keep the target's law, so it "
            f"is not run{advice if part.kind == 'rule' else ''}. {text_of(error)}"
        ) from None
    except TreespecError as error:
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin}: {error}"
        ) from None
    except BaseException as error:  # it may end the program
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin} fails on small trees with {VOCAB} "
            f"tokens: {in_words(error, f'the {part.kind}')}"
        ) from error
    for key in filter(None, new.values()):
        _PROVED.add(key)
        with suppress(OSError):  # without a cache the next command proves the part again
            _proved().mkdir(parents=True, exist_ok=True)
            (_proved() / key).touch()


def _key(part: Part, settings: dict[str, Any], case: tuple[Any, ...]) -> str | None:
    """A hash of all that a proof depends on; None if it may depend on more than is known here."""
    reads_files = any(os.path.lexists(text) for *_, text in texts_in(settings))
    if file_of(part) is None or reads_files or not all(map(_stands_alone, in_use())):
        return None
    facts = [VERSION, told(), part.kind, part.name, settings, case]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _stands_alone(file: PluginFile) -> bool:
    """Whether a plug-in imports nothing but `UNCHANGING`."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.content)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append("." * node.level + (node.module or ""))
    return all(name.partition(".")[0] in UNCHANGING for name in names)


def _prove_rule(rule: Rule, mixed: Law | None) -> None:
    """On all small trees, or on those that a merge makes whose drawn children have the law `mixed`."""
    if mixed is None:
        shapes = [shape for size in range(1, SIZE + 1) for shape in testing.plane_trees(size)]
        testing.assert_lossless(rule, shapes=shapes, vocab=VOCAB, tables=1)
        return

    def draft_with(
        model: TreeModel, shape: Growth | TreeShape, law: Law, sampling: Sampling
    ) -> Drafter:
        sources = {
            str(one): ModelDrafter(model, shape, one, sampling) for one in (law, Law.DETERMINISTIC)
        }
        return Merge(sources, budgets=dict.fromkeys(sources, 2))

    shapes = [TreeShape.chain(2), TreeShape.expansion([2])]
    testing.assert_lossless(
        rule, laws=[mixed], shapes=shapes, vocab=VOCAB, tables=1, draft_with=draft_with
    )


def _prove_growth(growth: Growth, law: Law) -> None:
    if not isinstance(growth, MarginalGrowth):  # a whole tree of it ends
        parents, probs = [-1], [1.0]
        for places in rounds(growth, parents, lambda: torch.tensor(probs)):
            for node, k in places:
                first = parents.count(node) + 1
                probs.extend(0.5**rank for rank in range(first, first + k))
                parents += [node] * k
    rule = RULE_OF_LAW[law]
    testing.assert_lossless(rule, laws=[law], growths=[_small(growth)], vocab=VOCAB, tables=1)


def _prove_source(
    settings: Settings, law: Law, is_greedy: bool, limits: tuple[int, int] | None
) -> None:
    """`limits`: size and branching of its budget, as far as small trees tell; None if it fills shapes."""
    part = source_of(settings)

    def draft_with(
        model: TreeModel, shape: Growth | TreeShape, law: Law, sampling: Sampling
    ) -> Drafter:
        wanted: Growth | TreeShape | Budget = shape
        if limits is not None:
            assert isinstance(shape, TreeShape)
            widest = max(map(len, shape.children))
            wanted = Budget(limits[0], shape.depth, min(limits[1], max(widest, 1)))
        return part.make(Wanted(wanted, law, sampling, _Pair(model, model)), settings)

    shapes = [TreeShape.chain(1), TreeShape.chain(2), TreeShape.chain(3)]
    if limits is None or limits[1] > 1:
        shapes += [TreeShape.expansion([2]), TreeShape.expansion([2, 1])]
    rule = greedy if is_greedy else RULE_OF_LAW[law]
    testing.assert_lossless(
        rule, laws=[law], shapes=shapes, vocab=VOCAB, tables=1, draft_with=draft_with
    )


def _proved() -> Path:
    return cache_folder() / "proved"
