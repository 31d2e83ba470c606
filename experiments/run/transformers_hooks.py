"""What is hung onto transformers modules while a baseline runs, and taken off again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Int
from torch import Tensor

from treespec.errors import NonFiniteLogits
from treespec.stopping import Stop

__all__ = [
    "Calls",
    "StopAnywhere",
    "aligned_vocabulary",
    "cached_once",
    "quiet_transformers",
    "with_settings",
]


class StopAnywhere:
    """A stopping criterion that also looks inside the tokens that one pass adds.

    The `stop_strings` of transformers look at the end of the text only, and assisted generation refuses
    them.
    """

    def __init__(self, stop: Stop, seen: int) -> None:
        self._stop, self._seen = stop, seen

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        """Whether the text is over somewhere in the tokens that came since the last call."""
        ids = input_ids[0].tolist()
        over = any(self._stop(ids[:i]) for i in range(self._seen + 1, len(ids) + 1))
        self._seen = len(ids)
        return torch.tensor([over], device=input_ids.device)


@contextmanager
def with_settings(model: Any, settings: Any) -> Iterator[None]:
    """Let a module have these generation settings for a while, and none of its folder's."""
    before = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = before


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the warnings about arguments that assisted generation passes to itself."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


class Calls:
    """Counts the forward calls of a module, times the first, and looks for logits that are no numbers.

    transformers would make a token of them (argmax of NaN is a token like any other).
    """

    def __init__(self, model: Any, synchronize: Callable[[], None]) -> None:
        self._model, self._synchronize = model, synchronize
        self.count, self.first_s = 0, 0.0
        self._finite: list[Tensor] = []

    def __enter__(self) -> "Calls":
        self._handles = [
            self._model.register_forward_pre_hook(self._before),
            self._model.register_forward_hook(self._after),
        ]
        return self

    def __exit__(self, *raised: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, model: Any, args: Any) -> None:
        if self.count == 0:
            self._synchronize()
            self._start = time.perf_counter()

    def _after(self, model: Any, args: Any, output: Any) -> None:
        if self.count == 0:
            self._synchronize()
            self.first_s = time.perf_counter() - self._start
        self.count += 1
        low, high = output.logits.aminmax()
        self._finite.append(low.isfinite() & high.isfinite())

    def require_finite(self, name: str) -> None:
        """Raise if any call returned NaN or infinite logits.

        Raises:
            NonFiniteLogits: with the first such call as its step.
        """
        for step, finite in enumerate(self._finite):
            if not finite:
                raise NonFiniteLogits(0, name, step)


@contextmanager
def cached_once(model: Any, prompt: Int[Tensor, "T"], cache: Any) -> Iterator[None]:
    """Keep a module from running tokens that its cache holds already.

    `generate` cuts them off. Assisted generation of transformers 5 does not: its first pass would hand the
    whole prompt over and attend to it twice.
    """

    def cut(model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        ids, known = kwargs.get("input_ids"), cache.get_seq_length()
        if (
            ids is None
            or known != len(prompt) - 1
            or not torch.equal(ids[0, : len(prompt)], prompt)
        ):
            return None
        rest = {k: v[:, known:] for k, v in kwargs.items() if k in ("input_ids", "position_ids")}
        return args, kwargs | rest

    handle = model.register_forward_pre_hook(cut, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def aligned_vocabulary(draft: Any, target: Any) -> Iterator[None]:
    """Give a draft's logits the width of the target's, as `TransformersModel` does for our own methods.

    Pairs that share a tokenizer may pad their vocabularies differently; transformers would take them for
    models of different tokenizers.
    """
    config, wanted = draft.config.get_text_config(), target.config.get_text_config().vocab_size
    width = config.vocab_size
    if width == wanted:
        yield
        return

    def widen(model: Any, args: Any, output: Any) -> Any:
        logits = output.logits[..., :wanted]
        least = torch.finfo(logits.dtype).min
        output.logits = F.pad(logits, (0, wanted - logits.shape[-1]), value=least)
        return output

    handle = draft.register_forward_hook(widen)
    config.vocab_size = wanted
    try:
        yield
    finally:
        config.vocab_size = width
        handle.remove()
