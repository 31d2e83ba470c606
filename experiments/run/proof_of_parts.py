"""Parts of plug-ins are proved lossless on small trees before a run decodes with them.

Exact enumeration of their own code, in seconds (`treespec.testing.assert_lossless`). What was proved is
kept by the hash of the file, in a cache folder of the user.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from treespec import plugins
from treespec.distributions import Sampling
from treespec.draft.growth import laws_along
from treespec.errors import TreespecError, in_words
from treespec.experiments.config.build import BuiltMethod, Experiment
from treespec.experiments.config.drafts import source_of
from treespec.experiments.config.schema import TreeMethod
from treespec.experiments.errors import ConfigError
from treespec.plugin_files import sha256_of
from treespec.plugins import Budget, Part, Wanted
from treespec.protocols import Drafter, Growth, MarginalGrowth, PruningGrowth, TreeModel
from treespec.tree import Law, TokenTree, TreeShape
from treespec.verify import RULE_OF_LAW, Rule, greedy

__all__ = ["require_proved"]

VERSION = 2
"""Of what is proved: another one proves all parts anew."""

VOCAB, SIZE = 3, 4
"""Tokens of the proofs, and nodes of their trees."""

_PROVED: set[str] = set()


class _Pair(NamedTuple):
    """Tables in the place of models: of the draft, as the target's are not a drafter's to see."""

    target: TreeModel
    draft: TreeModel


class _Small:
    """A growth that is cut to small trees, by their shape alone.

    Args:
        growth: of a plug-in.
    """

    def __init__(self, growth: Growth) -> None:
        self._growth, self.max_depth = growth, min(growth.max_depth, SIZE - 1)
        self.laws = laws_along(growth)

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """What the growth says, as far as there is room."""
        places, room = [], SIZE - shape.size
        for node, k in self._growth.next(shape, probs):
            fits = min(k, room, VOCAB - len(shape.children[node]))
            if fits > 0 and shape.depths[node] < self.max_depth:
                places.append((node, fits))
                room -= fits
        return places


class _SmallPruning(_Small):
    """The same of one that chooses in the end."""

    def keep(self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]) -> Sequence[int]:
        """What it keeps."""
        assert isinstance(self._growth, PruningGrowth)
        return self._growth.keep(shape, probs)


class _SmallMarginal(_Small):
    """The same of one that makes its tree of marginals."""

    def tree_over(self, marginals: Float[Tensor, "D V"], root: int) -> TokenTree:
        """What it makes, of as many marginals as it is made for, cut to a small tree."""
        assert isinstance(self._growth, MarginalGrowth)
        missing = self._growth.max_depth - len(marginals)
        whole = self._growth.tree_over(
            torch.cat([marginals, marginals[-1:].expand(missing, -1)]), root
        )
        depths = whole.shape.depths
        kept = [node for node in range(whole.shape.size) if depths[node] <= self.max_depth][:SIZE]
        place = {node: i for i, node in enumerate(kept)}
        shape = TreeShape(tuple(place.get(whole.shape.parents[node], -1) for node in kept))
        return TokenTree(shape, whole.tokens[kept], None, Law.DETERMINISTIC)


def _small(growth: Growth) -> _Small:
    """A growth of a plug-in, cut to small trees."""
    if isinstance(growth, MarginalGrowth):
        return _SmallMarginal(growth)
    return _SmallPruning(growth) if isinstance(growth, PruningGrowth) else _Small(growth)


def require_proved(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Refuse methods with a part of a plug-in that the oracle refutes; a lossy rule says that it is.

    Args:
        experiment: its methods.
        say: told what is proved.

    Raises:
        ConfigError: with the smallest counterexample.
    """
    for i, method in enumerate(experiment.methods):
        if not isinstance(method.config, TreeMethod):
            continue
        rules = {str(c.rule): c.rule for c in method.choices.values()}
        for name, rule in rules.items():
            part = plugins.parts("rule").get(name)
            if part is not None and part.plugged and rule.lossless:
                settings = dict(rule.settings)
                _prove(f"methods[{i}].rule", part, settings, lambda r=rule: _rule(r), say)
        kind = getattr(method.config.shape, "kind", "")
        part = plugins.parts("growth").get(kind)
        if part is not None and part.plugged:
            settings = method.config.shape.model_dump(mode="json")
            _prove(f"methods[{i}].shape", part, settings, lambda m=method: _growth(m), say)
        part = source_of(method.config.draft)
        if part.plugged:
            settings = method.config.draft.model_dump(mode="json")
            _prove(f"methods[{i}].draft", part, settings, lambda m=method: _source(m), say)


def _prove(
    path: str,
    part: Part,
    settings: dict[str, Any],
    proof: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    known, key = sha256_of(part), None
    if known is not None:
        text = json.dumps([VERSION, known, part.kind, part.name, settings], sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if key in _PROVED or (_cache() / key).exists():
            return
    say(f"proving that the {part.kind} {part.name!r} is lossless, on small trees")
    try:
        proof()
    except AssertionError as error:
        lossy = (
            "" if part.kind != "rule" else "; a rule that is meant to be lossy says lossless=False"
        )
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin} does not keep the target's law, so it "
            f"is not run{lossy}. {error}"
        ) from None
    except TreespecError as error:
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin}: {error}"
        ) from None
    except Exception as error:
        said = in_words(error, f"the {part.kind}")
        raise ConfigError(
            f"{path}: the {part.kind} {part.name!r} of {part.origin} fails on small trees of {VOCAB} "
            f"tokens: {said}"
        ) from error
    if key is not None:
        _PROVED.add(key)
        _remember(key)


def _rule(rule: Rule) -> None:
    from treespec.testing import assert_lossless
    from treespec.testing.trees import plane_trees

    shapes = [shape for size in range(1, SIZE + 1) for shape in plane_trees(size)]
    assert_lossless(rule, shapes=shapes, vocab=VOCAB, tables=1)


def _growth(method: BuiltMethod) -> None:
    from treespec.testing import assert_lossless

    assert not isinstance(method.tree, TreeShape | Budget | None)
    cut = _small(method.tree)
    for law in {choice.law for choice in method.choices.values()}:
        assert_lossless(RULE_OF_LAW[law], laws=[law], growths=[cut], vocab=VOCAB, tables=1)


def _source(method: BuiltMethod) -> None:
    from treespec.testing import assert_lossless

    assert isinstance(method.config, TreeMethod)
    settings, part = method.config.draft, source_of(method.config.draft)
    tree = method.tree

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
    for law in {choice.law for choice in method.choices.values()}:
        cold = all(choice.sampling.greedy for choice in method.choices.values())
        rule = greedy if cold else RULE_OF_LAW[law]
        assert_lossless(
            rule, laws=[law], shapes=shapes, vocab=VOCAB, tables=1, draft_with=draft_with
        )


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "treespec" / "proved"


def _remember(key: str) -> None:
    """Best effort: without a cache it is proved again by the next command."""
    try:
        _cache().mkdir(parents=True, exist_ok=True)
        (_cache() / key).touch()
    except OSError:
        return
