"""`ProcessedText`: the logits of one text as its processors change them, after any path."""

import math
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from weakref import WeakSet

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.errors import InvalidSampling
from treespec.sampling.distributions import require_finite, wide
from treespec.sampling.processing.built import built, call, name_of
from treespec.sampling.processors import Processors

_MEMORYLESS: WeakSet[Processors] = WeakSet()
"""Processors that have been tried."""


class ProcessedText:
    """The processors of one text, and its committed tokens.

    Nothing of a drafted path is kept, so the result of a row depends on its own text only.

    Args:
        processors: the settings.
        prompt_length: tokens of the prompt.
        device: where the logits are.
        model: name of the model in messages.

    Raises:
        InvalidSampling: if transformers refuses a setting.
    """

    def __init__(
        self,
        processors: Processors,
        prompt_length: int,
        device: torch.device,
        model: str = "target",
    ) -> None:
        self.processors, self.model = processors, model
        self._steps = built(processors, prompt_length, device)
        self._ids = torch.zeros(256, dtype=torch.long, device=device)
        self.length = 0
        self._checked = False
        self._ends = frozenset(processors.ends or ())

    def follow(self, ids: Sequence[int]) -> None:
        """Move on to these committed tokens; only those after the known ones are read."""
        self.extend(ids[self.length :])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""
        end = self.length + len(tokens)
        if end > len(self._ids):
            self._ids = torch.cat([self._ids, self._ids.new_zeros(max(end, len(self._ids)))])
        self._ids[self.length : end] = self._ids.new_tensor(list(tokens))
        self.length = end

    def row(
        self, logits: Float[Tensor, "V"], path: Sequence[int], node: int, length: int | None = None
    ) -> Float[Tensor, "V"]:
        """The logits after the committed tokens and a path, processed; the given logits stay as they are.

        Args:
            logits: of the model, finite.
            path: tokens below the committed ones.
            node: index of the row's node, for messages.
            length: committed tokens above the path, if the text has moved on since; None for all.

        Returns:
            A new row, in float32 or float64; -inf for forbidden tokens.

        Raises:
            NonFiniteLogits: if the model's logits are not finite.
            InvalidSampling: if a processor forbids every token, returns NaN or +inf, returns something
                else than scores, or remembers earlier calls.
        """
        require_finite(logits, self.model, [node])
        scores = wide(logits).clone()
        if any(token in self._ends for token in path[1:]):
            return scores  # nothing follows the end of a text, and `generate` asks for no such row
        above = self._ids[: self.length if length is None else length]
        ids = torch.cat([above, above.new_tensor(path)])
        if not self._checked:
            self.processors.require_vocabulary(len(scores))
            if self.processors not in _MEMORYLESS:
                self._require_memoryless(ids, scores)
                _MEMORYLESS.add(self.processors)
            self._checked = True
        for processor, change in self._steps:
            if change is None:  # a copy, as it may return a buffer of its own
                made = call(processor, ids.clone()[None], scores[None])[0]
                scores = made.to(scores.device, scores.dtype, copy=True)
            else:
                change(scores, ids)
        self._require_some(float(scores.max()), len(ids))
        return scores

    def every(self, logits: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """All rows of a tree at once, under processors that read no path.

        Raises:
            NonFiniteLogits, InvalidSampling: see `row`.
        """
        require_finite(logits, self.model, range(len(logits)))
        scores = wide(logits).clone()
        self.processors.require_vocabulary(scores.shape[1])
        for _, change in self._steps:
            assert change is not None
            change(scores, self._ids[:0])
        self._require_some(float(scores.amax(-1).min()), self.length)
        return scores

    def _require_some(self, high: float, length: int) -> None:
        if not math.isfinite(high):
            names = ", ".join(name_of(processor) for processor, _ in self._steps)
            what = "forbid every token" if high == -math.inf else "return NaN or +inf"
            raise InvalidSampling(f"the processors {what} after {length} tokens: {names}")

    def _require_memoryless(self, ids: Int[Tensor, "L"], scores: Float[Tensor, "V"]) -> None:
        """Refuse processors of the user whose rows depend on what was asked before."""
        others = [ids[:1], torch.cat([ids, ids[:1]]), (ids + 1) % len(scores)]
        for processor in self.processors.custom:
            try:
                first, second = deepcopy(processor), deepcopy(processor)
            except Exception:  # what cannot be copied is asked twice
                first = second = processor

            def ask(one: object, text: Tensor) -> Tensor:
                return call(one, text.clone()[None], scores.clone()[None]).clone()

            alone = ask(first, ids)
            for text in others:
                with suppress(InvalidSampling):  # it need not know what to do with such a text
                    ask(second, text)
            if not torch.allclose(alone, ask(second, ids), rtol=0, atol=0, equal_nan=True):
                raise InvalidSampling(
                    f"processor {name_of(processor)} gives other scores when it is called after another "
                    "path: it remembers earlier calls, so on a tree it would see drafts that are rejected"
                )
