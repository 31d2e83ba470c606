"""Plain transformers models of a pair, and the hooks that are set on them while a baseline runs."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Int
from torch import Tensor

from treespec.errors import NonFiniteLogits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from treespec.models.transformers_model import TransformersModel


def plain_twin(model: "TransformersModel") -> "PreTrainedModel":
    """A copy of the model's modules that shares its weights and has its original attention.

    Attributes that `generate` sets on a module, and hooks on it, then belong to one text; on a shared
    module, texts that take turns would undo them in the wrong order. Generation settings are neutral,
    because model folders bring penalties and truncations of their own.
    """
    from transformers import GenerationConfig

    module = model.model
    weights = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    twin = cast("PreTrainedModel", copy.deepcopy(module, cast(Any, weights)))
    twin.set_attn_implementation(model.finding.plain)
    twin.generation_config = GenerationConfig()
    return twin


def with_width(draft: "PreTrainedModel", target: "PreTrainedModel") -> "PreTrainedModel":
    """Pad or cut a twin's logits to the target's width, as `TransformersModel` does for our own methods.

    Models that share a tokenizer may pad their vocabularies differently; transformers would assume that
    they have different tokenizers.
    """
    config, width = draft.config.get_text_config(), target.config.get_text_config().vocab_size

    def resize(model: Any, args: Any, output: Any) -> Any:
        logits = output.logits[..., :width]
        least = torch.finfo(logits.dtype).min
        output.logits = F.pad(logits, (0, width - logits.shape[-1]), value=least)
        return output

    if config.vocab_size != width:
        draft.register_forward_hook(resize)
        config.vocab_size = width
    return draft


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence warnings of transformers about arguments that its assisted generation passes to itself."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


class Calls:
    """Records the forward calls of a module: their tokens, the time of the first, and bad logits.

    transformers does not check logits: the argmax of NaN is a token like any other.

    `synchronize` is called before the clock is read; None if the first call need not be timed, so that the
    step in which it falls does not wait for the device.
    """

    def __init__(self, model: Any, synchronize: Callable[[], None] | None = None) -> None:
        self._model, self._synchronize = model, synchronize
        self.first_s = 0.0
        """Seconds of the first call; 0 if it is not timed."""
        self.latest: Int[Tensor, "B T"] = torch.empty((1, 0), dtype=torch.long)
        """Input tokens of the latest call."""
        self._finite: list[Tensor] = []
        self._checked = 0

    def __enter__(self) -> "Calls":
        self._handles = [
            self._model.register_forward_pre_hook(self._before, with_kwargs=True),
            self._model.register_forward_hook(self._after),
        ]
        return self

    def __exit__(self, *raised: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        ids = kwargs.get("decoder_input_ids", ids)
        if ids is not None:
            self.latest = ids
        if self._synchronize is not None and not self.first_s:
            self._synchronize()
            self._start = time.perf_counter()

    def _after(self, model: Any, args: Any, output: Any) -> None:
        if self._synchronize is not None and not self.first_s:
            self._synchronize()
            self.first_s = time.perf_counter() - self._start
        low, high = output.logits.aminmax()
        self._finite.append(low.isfinite() & high.isfinite())

    @property
    def unchecked(self) -> bool:
        """Whether there were calls since the last `require_finite`."""
        return bool(self._finite)

    def require_finite(self, name: str) -> None:
        """Check the logits of all calls since the previous check."""
        for step, finite in enumerate(self._finite, start=self._checked):
            if not finite:
                raise NonFiniteLogits(0, name, step)
        self._checked += len(self._finite)
        self._finite.clear()


def cached_once(model: Any, prompt: Int[Tensor, "T"], cache: Any) -> None:
    """Keep a twin from running prompt tokens that its cache already holds.

    `generate` removes them from its input. Assisted generation of transformers 5 does not: its first pass
    would run the whole prompt again and attend to it twice.
    """

    def drop_cached(model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = "decoder_input_ids" if "decoder_input_ids" in kwargs else "input_ids"
        ids, cached = kwargs.get(name), cache.get_seq_length()
        if (
            ids is None
            or cached != len(prompt) - 1
            or not torch.equal(ids[0, : len(prompt)], prompt)
        ):
            return None
        rest = {k: v[:, cached:] for k, v in kwargs.items() if k in (name, "position_ids")}
        return args, kwargs | rest

    model.register_forward_pre_hook(drop_cached, with_kwargs=True)
