"""A model that remembers its passes, so that thousands of texts after one prompt cost less.

The output of a model depends only on its weights and the calls since its last prefill. A pass after the
same calls therefore need not run again: its logits are recalled, bit for bit. New passes run through the
model's own cache, after the calls that lead to them. The loop, the drafter and the rule run in full, and no
tree gets the logits of another.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.experiments.run.baselines import first_difference
from treespec.protocols import TreeModel

LARGEST_BUDGET = 1 << 28


class _Run(NamedTuple):
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    first: int


class _Keep(NamedTuple):
    nodes: tuple[int, ...]


_Call = _Run | _Keep
_Key = tuple[tuple[int, ...], tuple[_Call, ...]]


class PassMemory:
    """Logits by prompt and calls; the least recently used are forgotten first."""

    def __init__(self, budget: int = LARGEST_BUDGET) -> None:
        self.asked = self.recalled = 0
        self._room = budget
        self._logits: OrderedDict[_Key, Tensor] = OrderedDict()

    def recall(self, key: _Key) -> Tensor | None:
        self.asked += 1
        logits = self._logits.get(key)
        if logits is not None:
            self.recalled += 1
            self._logits.move_to_end(key)
        return logits

    def remember(self, key: _Key, logits: Tensor) -> None:
        self._logits[key] = logits
        self._room -= logits.nbytes
        while self._room < 0 and len(self._logits) > 1:
            self._room += self._logits.popitem(last=False)[1].nbytes


class RememberingModel:
    """A `TreeModel` that wraps another one and returns the same results.

    Prefills and keeps are deferred until a pass has to run. A prefill with the prompt that is in the cache
    costs nothing if no row of a tree was kept after it.

    The wrapped model's own cache is not touched.
    """

    def __init__(self, model: TreeModel, memory: PassMemory | None = None) -> None:
        self.memory = memory or PassMemory()
        self._model = model.fresh()
        self.vocab_size, self.max_length = model.vocab_size, model.max_length
        self.draws_by_kernel = getattr(self._model, "draws_by_kernel", False)
        self.length = 0
        self._prompt: tuple[int, ...] = ()
        self._calls: tuple[_Call, ...] = ()
        self._done: _Key | None = None

    def fresh(self) -> "RememberingModel":
        return type(self)(self._model, self.memory)

    def prefill(self, tokens: Int[Tensor, "T"]) -> None:
        self._device = tokens.device
        self._prompt, self._calls = tuple(tokens.tolist()), ()
        self.length = len(self._prompt)

    def run(
        self, tokens: Int[Tensor, "T"], parents: tuple[int, ...], first: int = 0
    ) -> Float[Tensor, "T V"]:
        self._calls = (*self._calls, _Run(tuple(tokens.tolist()), tuple(parents), first))
        key = (self._prompt, self._calls)
        logits = self.memory.recall(key)
        if logits is None:
            logits = self._catch_up()
            self.memory.remember(key, logits)
        return logits

    def keep(self, nodes: Sequence[int]) -> None:
        self._calls = (*self._calls, _Keep(tuple(nodes)))
        self.length += len(nodes)

    def _catch_up(self) -> Float[Tensor, "T V"]:
        """Make all calls that the model has not received; returns the logits of the last one, a pass."""
        start = self._usable()
        if start is None:
            self._done = None
            self._model.prefill(self._row(self._prompt))
            start = 0
        logits = None
        for call in self._calls[start:]:
            if isinstance(call, _Keep):
                self._model.keep(call.nodes)
            else:
                logits = self._model.run(self._row(call.tokens), call.parents, call.first)
        self._done = (self._prompt, self._calls)
        assert logits is not None
        return logits

    def _usable(self) -> int | None:
        """Number of calls whose effect is in the model's cache; None if the model must start over.

        The next pass overwrites the rows of passes that this text did not make, unless their rows were kept
        or they overwrote rows that this text needs.
        """
        if self._done is None or self._done[0] != self._prompt:
            return None
        done = self._done[1]
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
