"""A model that remembers its passes, so that thousands of texts after one prompt cost less.

The output of a model depends only on its weights and the calls since its last prefill. A pass after the
same calls therefore need not run again: its scores are recalled, bit for bit. New passes run through the
model's own cache, after the calls that lead to them. The loop, the drafter and the rule run in full, and no
tree gets the scores of another.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.experiments.run.baselines import first_difference
from treespec.features import Features, lend
from treespec.protocols import TreeModel
from treespec.step import Scores

LARGEST_BUDGET = 1 << 28


class _Run(NamedTuple):
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    first: int


class _Keep(NamedTuple):
    nodes: tuple[int, ...]


_Call = _Run | _Keep


class _Key(NamedTuple):
    source: tuple[int, ...]
    prompt: tuple[int, ...]
    calls: tuple[_Call, ...]
    reads: Features


_Tensors = tuple[Tensor | None, Tensor | None]
"""Logits and features of a pass; a prompt has no logits."""


class PassMemory:
    """Logits and features by prompt and calls; the least recently used are forgotten first."""

    def __init__(self, budget: int = LARGEST_BUDGET) -> None:
        self.asked = self.recalled = 0
        self._room = budget
        self._passes: OrderedDict[_Key, _Tensors] = OrderedDict()

    def recall(self, key: _Key) -> _Tensors | None:
        self.asked += 1
        found = self._passes.get(key)
        if found is not None:
            self.recalled += 1
            self._passes.move_to_end(key)
        return found

    def remember(self, key: _Key, found: _Tensors) -> None:
        self._passes[key] = found
        self._room -= _bytes(found)
        while self._room < 0 and len(self._passes) > 1:
            self._room += _bytes(self._passes.popitem(last=False)[1])


def _bytes(found: _Tensors) -> int:
    return sum(tensor.nbytes for tensor in found if tensor is not None)


class RememberingModel:
    """A `TreeModel` that wraps another one and returns the same results.

    Prefills and keeps are deferred until a pass has to run; a prefill whose features are read is a pass. A
    prefill with the prompt that is in the cache costs nothing if no row of a tree was kept after it.

    The wrapped model's own cache is not touched.

    Args:
        model: the model.
        memory: what is remembered, for several models with the same weights; by default its own.
        source: what an encoder-decoder is conditioned on.
    """

    def __init__(
        self, model: TreeModel, memory: PassMemory | None = None, source: tuple[int, ...] = ()
    ) -> None:
        self.memory, self._source = memory or PassMemory(), source
        self._model = model.fresh()
        self.vocab_size, self.max_length = model.vocab_size, model.max_length
        self.draws_by_kernel = getattr(self._model, "draws_by_kernel", False)
        self.length = 0
        self._prompt: tuple[int, ...] = ()
        self._calls: tuple[_Call, ...] = ()
        self._done: _Key | None = None
        self._reads = Features()

    def __getattr__(self, name: str) -> Any:
        """How a draft reads and writes another vocabulary; what is made of it is not remembered."""
        if name in ("of_tokens", "own_vocab_size", "shared", "inner"):
            return getattr(self._model, name)
        raise AttributeError(name)

    def fresh(self) -> "RememberingModel":
        return type(self)(self._model, self.memory, self._source)

    def lend(self, reads: Features) -> None:
        if reads != self._reads:
            lend(self._model, reads)
            self._reads, self._done = reads, None

    def prefill(self, tokens: Int[Tensor, "T"]) -> Float[Tensor, "T F H"] | None:
        self._device = tokens.device
        self._prompt, self._calls = tuple(tokens.tolist()), ()
        self.length = len(self._prompt)
        if not self._reads.states:
            return None
        found = self.memory.recall(self._key)
        if found is None:
            self._done = None
            found = (None, self._model.prefill(tokens))
            self._done = self._key
            self.memory.remember(self._key, found)
        return found[1]

    def run(self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0) -> Scores:
        self._calls = (*self._calls, _Run(tuple(tokens.tolist()), tuple(parents), first))
        found = self.memory.recall(self._key)
        if found is None:
            scores = self._catch_up()
            self.memory.remember(self._key, (scores.logits, scores.features))
            return scores
        logits, features = found
        assert logits is not None
        return Scores(logits, features)

    def keep(self, nodes: Sequence[int]) -> None:
        self._calls = (*self._calls, _Keep(tuple(nodes)))
        self.length += len(nodes)

    @property
    def _key(self) -> _Key:
        return _Key(self._source, self._prompt, self._calls, self._reads)

    def _catch_up(self) -> Scores:
        """Make all calls that the model has not received; returns the scores of the last one, a pass."""
        start = self._usable()
        if start is None:
            self._done = None
            self._model.prefill(self._row(self._prompt))
            start = 0
        scores = None
        for call in self._calls[start:]:
            if isinstance(call, _Keep):
                self._model.keep(call.nodes)
            else:
                scores = self._model.run(self._row(call.tokens), call.parents, call.first)
        self._done = self._key
        assert scores is not None
        return scores

    def _usable(self) -> int | None:
        """Number of calls whose effect is in the model's cache; None if the model must start over.

        The next pass overwrites the rows of passes that this text did not make, unless their rows were kept
        or they overwrote rows that this text needs.
        """
        if self._done is None or self._done.prompt != self._prompt:
            return None
        done = self._done.calls
        shared = first_difference(done, self._calls)
        extra = done[shared:]
        if not extra:
            return shared
        upcoming = self._calls[shared] if shared < len(self._calls) else None
        overwritten = isinstance(upcoming, _Run) and all(
            isinstance(call, _Run) and call.first >= upcoming.first for call in extra
        )
        return shared if overwritten else None

    def _row(self, tokens: tuple[int, ...]) -> Int[Tensor, "T"]:
        return torch.tensor(tokens, dtype=torch.long, device=self._device)
