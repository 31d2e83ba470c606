"""Record which window each layer of a model states to its attention, and which window its mask has.

transformers models state a sliding window in two places: every model requests a mask that has it, and most,
but not all, also pass it to the attention. Ours reads the argument, so the probe compares the two.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attention_masks import TreePass
from treespec.models.attention import MASK_MAKER, AttentionPass
from treespec.models.routes import OwnAttention
from treespec.models.support import UNSTATED_CONTEXT

NOT_ASKED = object()
"""Recorded instead of a window if no mask function made the layer's mask."""


class Recorder:
    """A route that records which layers call the attention, with which window, under which mask.

    It makes the masks that the model requests (`MASK_MAKER`). They only serve to identify the request (by
    the address of their memory) and do not affect the attention.
    """

    def __init__(self, route: OwnAttention, longest: int) -> None:
        self.implementation = route.implementation
        self.calls: list[tuple[int, int | None, Any]] = []
        self._route, self._longest = route, min(longest, UNSTATED_CONTEXT)
        self._masks: dict[int, tuple[Tensor, int | str | None]] = {}

    def prompt(self, length: int) -> dict[str, Any]:
        return {"treespec_pass": self._recorded(self._route.prompt(length)["treespec_pass"])}

    def trees(self, passes: Sequence[TreePass]) -> dict[str, Any]:
        return {"treespec_pass": self._recorded(self._route.trees(passes)["treespec_pass"])}

    @contextmanager
    def asked_for_masks(self) -> Iterator[None]:
        """Context in which models get their masks from this recorder."""
        token = MASK_MAKER.set(self._make_mask)
        try:
            yield
        finally:
            MASK_MAKER.reset(token)

    def _recorded(self, inner: AttentionPass) -> AttentionPass:
        def call(
            module: Any,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            mask: Tensor | None,
            **options: Any,
        ) -> Tensor:
            asked: Any = NOT_ASKED
            if mask is not None and mask.data_ptr() in self._masks:
                asked, mask = self._masks[mask.data_ptr()][1], None
            window = options["window"]
            binding = window if window is not None and window < self._longest else None
            self.calls.append((int(module.layer_idx), binding, asked))
            return inner(module, query, key, value, mask, **options)

        return call

    def _make_mask(
        self, function: Any, q_length: int, kv_length: int, device: torch.device, **_: Any
    ) -> Tensor:
        mask = torch.zeros(1, 1, q_length, kv_length, device=device)
        self._masks[mask.data_ptr()] = (mask, window_of(function, self._longest, device))
        return mask


def window_of(function: Any, longest: int, device: torch.device) -> int | str | None:
    """The sliding window of a transformers mask function, found by evaluating it at the last two rows.

    Returns the window; None if no key before a row is hidden; or, if the mask is neither causal nor a
    sliding window, a description of the mask.
    """
    zero = torch.zeros((), dtype=torch.long, device=device)
    keys = torch.arange(longest, device=device)
    windows: list[int] = []
    for row in (longest - 2, longest - 1):
        visible = function(zero, zero, zero + row, keys).expand(longest)
        first = int(visible.long().argmax())
        if not torch.equal(visible, (keys >= first) & (keys <= row)):
            return "its mask is neither causal nor a sliding window"
        windows.append(row - first + 1)
    if windows[0] == windows[1]:
        return windows[0]
    if windows == [longest - 1, longest]:
        return None
    return "it attends in chunks, which tree attention does not support"
