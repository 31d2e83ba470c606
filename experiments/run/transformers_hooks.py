"""Plain transformers models of a pair, and what is hung onto them while a baseline runs."""

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

__all__ = ["Calls", "cached_once", "plain_twin", "quiet_transformers", "with_width"]


def plain_twin(model: "TransformersModel") -> "PreTrainedModel":
    """The plain model, with the attention that it had, as modules of its own over the same weights.

    What `generate` sets on a module, and what is hooked onto it, so stays with one text: texts that take
    turns would undo it in the wrong order on a common one. Its generation settings are neutral, because
    model folders bring penalties and truncations of their own.

    Args:
        model: a model of the pair; its own module stays as it is.
    """
    from transformers import GenerationConfig

    module = model.model
    weights = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    twin = cast("PreTrainedModel", copy.deepcopy(module, cast(Any, weights)))
    twin.set_attn_implementation(model.finding.plain)
    twin.generation_config = GenerationConfig()
    return twin


def with_width(draft: "PreTrainedModel", target: "PreTrainedModel") -> "PreTrainedModel":
    """Give a twin's logits the width of the target's, as `TransformersModel` does for our own methods.

    Pairs that share a tokenizer may pad their vocabularies differently; transformers would take them for
    models of different tokenizers.
    """
    config, wanted = draft.config.get_text_config(), target.config.get_text_config().vocab_size

    def widen(model: Any, args: Any, output: Any) -> Any:
        logits = output.logits[..., :wanted]
        least = torch.finfo(logits.dtype).min
        output.logits = F.pad(logits, (0, wanted - logits.shape[-1]), value=least)
        return output

    if config.vocab_size != wanted:
        draft.register_forward_hook(widen)
        config.vocab_size = wanted
    return draft


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
    """Looks at the forward calls of a module: their tokens, the time of the first, and bad logits.

    transformers would make a token of logits that are no numbers (argmax of NaN is a token like any other).

    Args:
        model: a twin.
        synchronize: called before the clock is read.
    """

    def __init__(self, model: Any, synchronize: Callable[[], None]) -> None:
        self._model, self._synchronize = model, synchronize
        self.first_s = 0.0
        """Seconds of the first call."""
        self.latest: Int[Tensor, " T"] = torch.empty(0, dtype=torch.long)
        """Tokens that the latest call ran."""
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
        if ids is not None:
            self.latest = ids[0]
        if not self.first_s:
            self._synchronize()
            self._start = time.perf_counter()

    def _after(self, model: Any, args: Any, output: Any) -> None:
        if not self.first_s:
            self._synchronize()
            self.first_s = time.perf_counter() - self._start
        low, high = output.logits.aminmax()
        self._finite.append(low.isfinite() & high.isfinite())

    def require_finite(self, name: str) -> None:
        """Raise if a call since the last time returned NaN or infinite logits.

        Raises:
            NonFiniteLogits: with the first such call as its step.
        """
        for step, finite in enumerate(self._finite, start=self._checked):
            if not finite:
                raise NonFiniteLogits(0, name, step)
        self._checked += len(self._finite)
        self._finite.clear()


def cached_once(model: Any, prompt: Int[Tensor, "T"], cache: Any) -> None:
    """Keep a twin from running tokens that its cache holds already.

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

    model.register_forward_pre_hook(cut, with_kwargs=True)
