"""What the layers of a model ask of their attention: a window in the call, and another in the mask?

transformers states a sliding window twice: models ask a mask function for a mask that has it, and most,
not all, also tell the attention of it. Ours reads the call, so the probe compares the two.
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

__all__ = ["NOT_ASKED", "Recorder", "window_of"]

NOT_ASKED = object()
"""Instead of a window, where a layer got no mask that a mask function made."""


class Recorder:
    """A route that notes which layers call the attention, with which window, under which mask.

    Masks are asked for by `MASK_MAKER`; they are handed out for identification only (by the address of
    their memory) and are not used.
    """

    def __init__(self, route: OwnAttention, longest: int) -> None:
        self.implementation = route.implementation
        self.calls: list[tuple[int, int | None, Any]] = []
        self._route, self._longest = route, min(longest, UNSTATED_CONTEXT)
        self._masks: dict[int, tuple[Tensor, int | str | None]] = {}

    def prompt(self, length: int) -> dict[str, Any]:
        """The route's pass, recorded."""
        return {"treespec_pass": self._recorded(self._route.prompt(length)["treespec_pass"])}

    def tree(self, tree_pass: TreePass) -> dict[str, Any]:
        """The route's pass, recorded."""
        return {"treespec_pass": self._recorded(self._route.tree(tree_pass)["treespec_pass"])}

    @contextmanager
    def asked_for_masks(self) -> Iterator[None]:
        """While it lasts, models get masks from here."""
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
            *,
            scale: float | None,
            softcap: float | None,
            window: int | None,
            sinks: Tensor | None,
        ) -> Tensor:
            asked: Any = NOT_ASKED
            if mask is not None and mask.data_ptr() in self._masks:
                asked, mask = self._masks[mask.data_ptr()][1], None
            binding = window if window is not None and window < self._longest else None
            self.calls.append((int(module.layer_idx), binding, asked))
            return inner(
                module,
                query,
                key,
                value,
                mask,
                scale=scale,
                softcap=softcap,
                window=window,
                sinks=sinks,
            )

        return call

    def _make_mask(
        self, function: Any, q_length: int, kv_length: int, device: torch.device, **_: Any
    ) -> Tensor:
        mask = torch.zeros(1, 1, q_length, kv_length, device=device)
        self._masks[mask.data_ptr()] = (mask, window_of(function, self._longest, device))
        return mask


def window_of(function: Any, longest: int, device: torch.device) -> int | str | None:
    """The sliding window of a mask function of transformers, found out by asking it about far rows.

    Returns:
        The window, None where nothing before a row is hidden, or in words what the function does if it
        hides anything else than the keys before a window.
    """
    zero = torch.zeros((), dtype=torch.long, device=device)
    keys = torch.arange(longest, device=device)
    windows: Sequence[int] = []
    for row in (longest - 2, longest - 1):
        seen = function(zero, zero, zero + row, keys).expand(longest)
        first = int(seen.long().argmax())
        if not torch.equal(seen, (keys >= first) & (keys <= row)):
            return "its mask is neither causal nor a sliding window"
        windows = [*windows, row + 1 if first == 0 else row - first + 1]
    if windows[0] == windows[1]:
        return windows[0]
    if windows == [longest - 1, longest]:
        return None
    return "it attends in chunks, which tree attention does not know"
