"""Runs tree nodes by compiled passes, in a cache of its own."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import TreespecError, UnsupportedModel, in_words
from treespec.features import Features
from treespec.models.cache import LayerShape
from treespec.models.logit_errors import of_its_tokens
from treespec.models.passes.compiled_pass import CompiledPass, Pass
from treespec.models.passes.given_states import room_for_states, states_or_stand_ins
from treespec.models.passes.joined_pass import places_of
from treespec.models.passes.tree_arrays import MOST_NODES, tree_arrays
from treespec.models.probe import PARENTS, PREFIX, TOKENS, TOLERANCE
from treespec.models.routes import Route
from treespec.models.runner import TreeRunner
from treespec.models.support import embedding_count
from treespec.models.waiting import Nodes
from treespec.step import Scores

LEVELS = ((0, 1), (1, 3), (3, 7), (7, 8))
"""Ranges of nodes of the probe's tree: the parents of each range precede it."""


class CompiledRunner(TreeRunner):
    """Runs trees and parts of trees by the compiled graphs that all caches of a model share.

    Prompts, passes over more than `MOST_NODES` nodes, and a pass over the first token of a text alone are
    run by ordinary passes.

    Args:
        compiled: the graphs.
        model: the model of the graphs.
        route: how the model learns what each row may attend to.
        layout: layout of the cache.
    """

    def __init__(
        self,
        compiled: CompiledPass,
        model: PreTrainedModel,
        route: Route,
        layout: Sequence[LayerShape | None] = (),
    ) -> None:
        super().__init__(model, route, layout)
        self._compiled = compiled
        self._memory: tuple[int, ...] = ()
        self._joined_memory: tuple[int, ...] = ()
        self._joined_places: Tensor
        self._one: Pass | None = None
        self._many: Pass | None = None
        self._read = room_for_states(model)

    def lend(self, reads: Features) -> None:
        """From the next prefill on, return these features; compiles and tests graphs that return them.

        Raises:
            InvalidArgument: if the model does not have such a boundary.
            UnsupportedModel: if the features of this model cannot be had, or not from compiled passes.
        """
        if reads.states == self._states.states:
            return
        if reads.states and reads.states not in self._compiled.tested:
            self._compile(reads)
            self._compiled.tested.add(reads.states)
        super().lend(reads)
        self._memory = ()

    def release(self) -> None:
        """Forget the text and give the memory of its rows back; see `TreeRunner.release`."""
        super().release()
        self._one = self._many = None
        self._memory = self._joined_memory = ()

    @torch.inference_mode()
    def run(
        self,
        tokens: Int[Tensor, "T"],
        parents: tuple[int, ...],
        first: int = 0,
        states: Float[Tensor, "T W"] | None = None,
    ) -> Scores:
        """Logits after nodes first .. first + T - 1; see `TreeRunner.run`.

        Raises:
            InvalidTree: if parents, tokens and the nodes run so far do not fit together.
            UnsupportedModel: if the model's attention was changed in the meantime, or its weights replaced.
        """
        count, cache = len(tokens), self.cache
        # The graphs need at least 2 slots; after a single slot, memory of an earlier text may lie.
        if count > MOST_NODES or self.length + len(parents) < 2:
            return super().run(tokens, parents, first, states)
        self._require_nodes(count, len(parents), first)
        self._require_route()
        if not first:  # check once per tree: all its passes must use the same weights
            self._compiled.require_weights()
        tree = tree_arrays(parents)
        cache.begin(first, count + 1)  # the graphs need fewer slots than rows
        cache.begin(first, count)
        if (memory := cache.memory) != self._memory:  # the rows have moved
            self._one, self._many = self._compiled.bound(cache, self._states.states)
            self._slots = torch.arange(cache.capacity)
            self._memory = memory
        run = self._one if count == 1 else self._many
        assert run is not None
        place, used = torch.tensor([cache.length, first]), self._slots[: cache.end]
        for room in self._read:
            room[:count] = states_or_stand_ins(self.model, states, tokens)
        results = run(tokens.long().contiguous(), place, tree, used, *self._read)
        self._parents = parents
        return Scores(*results)

    @torch.inference_mode()
    def run_together(self, parts: Sequence[tuple[Any, Nodes]]) -> list[Scores]:
        """One compiled pass over the nodes of several texts; see `TreeRunner.run_together`."""
        joined = self._compiled.joined(self._states)
        counts = [len(nodes.tokens) for _, nodes in parts]
        if joined is None or sum(counts) > MOST_NODES:
            return super().run_together(parts)
        self._require_route()
        self._compiled.require_weights()
        texts = []
        for runner, nodes in parts:
            runner._require_nodes(len(nodes.tokens), len(nodes.parents), nodes.first)
            runner.cache.begin(nodes.first, len(nodes.tokens))
            texts.append((runner.cache, runner._places, nodes))
            runner._parents = nodes.parents
        logits, *features = joined(texts)
        states = features[0].split(counts) if features else [None] * len(parts)
        return [*map(Scores, logits.split(counts), states)]

    @property
    def _places(self) -> Tensor:
        """Where the rows of its cache are, for passes over several texts."""
        if (memory := self.cache.memory) != self._joined_memory:
            self._joined_places, self._joined_memory = places_of(self.cache), memory
        return self._joined_places

    def _compile(self, reads: Features) -> None:
        try:
            # No tensor that lasts may be one of inference mode.
            with torch.inference_mode(False):
                self._compiled.compile(reads)
            self._require_same(reads)
        except (torch.OutOfMemoryError, TreespecError):
            raise
        except Exception as problem:  # the compiler raises errors of many classes
            model_type, why = self.model.config.model_type, in_words(problem, "the compiler")
            raise UnsupportedModel(
                f"compiled passes of {model_type} models cannot return hidden states, choose "
                f"passes='eager': {why}"
            ) from problem

    def _require_same(self, reads: Features) -> None:
        """Check that graphs which return features give what ordinary passes give, whole and in parts."""
        layout = self.cache.layout
        ordinary = TreeRunner(self.model, self.route, layout)
        compiled = CompiledRunner(self._compiled, self.model, self.route, layout)
        tokens = torch.arange(1, TOKENS + 1) * 7 % embedding_count(self.model)
        errors = []
        for ranges in (((0, len(PARENTS)),), LEVELS):
            for runner in (ordinary, compiled):
                TreeRunner.lend(runner, reads)  # of the compiled runner, not to test it again
                runner.prefill(tokens[:PREFIX])
            for begin, end in ranges:
                nodes = tokens[PREFIX + begin : PREFIX + end], PARENTS[:end], begin
                expected, found = (runner.run(*nodes) for runner in (ordinary, compiled))
                truth, logits = (
                    of_its_tokens(self.model, scores.logits) for scores in (expected, found)
                )
                errors.append(_distance(logits, truth))
                errors.append(_distance(found.features, expected.features))
        tolerance = TOLERANCE.get(self.model.dtype, TOLERANCE[torch.bfloat16])
        if not all(error <= tolerance for error in errors):
            raise UnsupportedModel(
                f"{self.model.config.model_type} models: a compiled pass with features differs from an "
                f"ordinary one by {max(errors):.2g} of their norm ({tolerance:.2g} is allowed in "
                f"{self.model.dtype}): choose passes='eager'"
            )


def _distance(found: Any, expected: Any) -> float:
    """Largest distance between rows, relative to the norm of the expected row."""
    found, expected = found.double(), expected.double()
    norms = expected.norm(dim=-1).clamp_min(1e-30)
    return float(((found - expected).norm(dim=-1) / norms).max())
