"""Prove parts of plug-ins lossless on small trees before a run decodes with them.

The proof enumerates the part's own code exactly, in seconds (`treespec.testing.assert_lossless`). Proofs
are remembered by the hash of the plug-in's file, in the user's cache folder.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from treespec import plugins, testing
from treespec.draft.growth import laws_along
from treespec.errors import TreespecError, in_words, text_of
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.model_draft import source_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.errors import ConfigError
from treespec.plugin_files import sha256_of
from treespec.plugins import Budget, Part, Wanted
from treespec.protocols import Drafter, Growth, MarginalGrowth, PruningGrowth, TreeModel
from treespec.sampling.distributions import Sampling
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import RULE_OF_LAW, Rule, greedy

VERSION = 2
"""Version of the proofs; a new version proves all parts again."""

VOCAB, SIZE = 3, 4
"""Vocabulary size of the proofs, and the most nodes of their trees."""

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
        for node, k in self._growth.next(shape, probs):
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
    for i, method in enumerate(experiment.methods):
        if not isinstance(method.config, TreeMethod):
            continue
        shape, draft = method.config.shape, method.config.draft
        for rule in {str(c.rule): c.rule for c in method.choices.values()}.values():
            part = plugins.parts("rule").get(str(rule))
            if part is not None and part.plugged and rule.lossless:
                proof = partial(_prove_rule, rule)
                _prove(f"methods[{i}].rule", part, dict(rule.settings), proof, say)
        part = plugins.parts("growth").get(getattr(shape, "kind", ""))
        if part is not None and part.plugged:
            proof = partial(_prove_growth, method)
            _prove(f"methods[{i}].shape", part, shape.model_dump(mode="json"), proof, say)
        part = source_of(draft)
        if part.plugged:
            proof = partial(_prove_source, method)
            _prove(f"methods[{i}].draft", part, draft.model_dump(mode="json"), proof, say)


def _prove(
    path: str,
    part: Part,
    settings: dict[str, Any],
    proof: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    """Run the proof of a part, unless it is remembered.

    Raises:
        ConfigError: if the proof fails; names the key `path` and the part.
    """
    file_hash, key = sha256_of(part), None
    if file_hash is not None:
        text = json.dumps([VERSION, file_hash, part.kind, part.name, settings], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if key in _PROVED or (_cache() / key).exists():
            return
    say(f"proving that the {part.kind} {part.name!r} is lossless, on small trees")
    try:
        proof()
    except AssertionError as error:
        advice = "; declare a rule that is meant to be lossy with lossless=False"
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin} does not keep the target's law, so it "
            f"is not run{advice if part.kind == 'rule' else ''}. {text_of(error)}"
        ) from None
    except TreespecError as error:
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin}: {error}"
        ) from None
    except Exception as error:
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin} fails on small trees with {VOCAB} "
            f"tokens: {in_words(error, f'the {part.kind}')}"
        ) from error
    if key is not None:
        _PROVED.add(key)
        with suppress(OSError):  # without a cache the next command proves the part again
            _cache().mkdir(parents=True, exist_ok=True)
            (_cache() / key).touch()


def _prove_rule(rule: Rule) -> None:
    shapes = [shape for size in range(1, SIZE + 1) for shape in testing.plane_trees(size)]
    testing.assert_lossless(rule, shapes=shapes, vocab=VOCAB, tables=1)


def _prove_growth(method: BuiltMethod) -> None:
    assert not isinstance(method.tree, TreeShape | Budget | None)
    growth = _small(method.tree)
    for law in {choice.law for choice in method.choices.values()}:
        testing.assert_lossless(
            RULE_OF_LAW[law], laws=[law], growths=[growth], vocab=VOCAB, tables=1
        )


def _prove_source(method: BuiltMethod) -> None:
    assert isinstance(method.config, TreeMethod)
    settings, part, tree = method.config.draft, source_of(method.config.draft), method.tree

    def draft_with(
        model: TreeModel, shape: Growth | TreeShape, law: Law, sampling: Sampling
    ) -> Drafter:
        wanted: Growth | TreeShape | Budget = shape
        if isinstance(tree, Budget):
            assert isinstance(shape, TreeShape)
            widest = max(map(len, shape.children))
            wanted = Budget(min(tree.size, SIZE), shape.depth, min(tree.branching, max(widest, 1)))
        return part.make(Wanted(wanted, law, sampling, _Pair(model, model)), settings)

    shapes = [TreeShape.chain(1), TreeShape.chain(2), TreeShape.chain(3)]
    if not isinstance(tree, Budget) or tree.branching > 1:
        shapes += [TreeShape.expansion([2]), TreeShape.expansion([2, 1])]
    all_greedy = all(choice.sampling.greedy for choice in method.choices.values())
    for law in {choice.law for choice in method.choices.values()}:
        rule = greedy if all_greedy else RULE_OF_LAW[law]
        testing.assert_lossless(
            rule, laws=[law], shapes=shapes, vocab=VOCAB, tables=1, draft_with=draft_with
        )


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "treespec" / "proved"
