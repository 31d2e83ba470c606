"""The baselines: plain decoding and assisted generation by transformers itself.

Both run under a neutral GenerationConfig (model folders bring penalties and truncations of their own) and
the module's ordinary attention. Both get a cache that holds all prompt tokens but the last, as our own loop
does, so that "prefill" and "pass of the target" mean the same for every method.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from experiments.observers import synchronizer
from experiments.outcome import Outcome
from treespec.distributions import Sampling
from treespec.stopping import Stop

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["generate_assisted", "generate_plain", "top_two_margin"]


def generate_plain(
    pair: "Pair",
    prompt: Int[Tensor, "T"],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
    stops_early: bool = False,
) -> Outcome:
    """Decode by `generate`, one token a pass.

    Args:
        pair: the models; only the target is used.
        prompt: token ids on the models' device.
        sampling: settings.
        max_new_tokens: the budget.
        stop: when the text is over.
        seed: of torch's global generator.
        stops_early: whether `stop` knows of more than `pair.end_tokens` (stop strings).
    """
    return _generate(pair, prompt, sampling, max_new_tokens, stop, seed, stops_early, None)


def generate_assisted(
    pair: "Pair",
    prompt: Int[Tensor, "T"],
    sampling: Sampling,
    *,
    length: int,
    threshold: float,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
    stops_early: bool = False,
) -> Outcome:
    """Decode by assisted generation, the chain that transformers has.

    Args:
        pair: the models.
        prompt: token ids on the models' device.
        sampling: settings.
        length: `num_assistant_tokens`, under the constant schedule.
        threshold: `assistant_confidence_threshold`. With scikit-learn installed transformers adapts it
            within a text, unless it is 0.
        max_new_tokens: the budget.
        stop: when the text is over; transformers may decode past it in its last pass, which is cut.
        seed: of torch's global generator.
        stops_early: whether `stop` knows of more than `pair.end_tokens` (stop strings).
    """
    assistant = {
        "num_assistant_tokens": length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": threshold,
    }
    return _generate(pair, prompt, sampling, max_new_tokens, stop, seed, stops_early, assistant)


def top_two_margin(pair: "Pair", ids: Sequence[int]) -> float:
    """How far the target's best logit after these ids lies above the second best, by one plain pass."""
    with pair.target.as_transformers() as model, torch.inference_mode():
        inputs = torch.tensor([list(ids)], device=pair.target.device)
        logits = model(inputs, logits_to_keep=1).logits[0, -1]
    best, second = logits.float().topk(2).values.tolist()
    return best - second


def _generate(
    pair: "Pair",
    prompt: Int[Tensor, "T"],
    sampling: Sampling,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
    stops_early: bool,
    assistant: dict[str, Any] | None,
) -> Outcome:
    from transformers import DynamicCache, GenerationConfig

    ends = sorted(pair.end_tokens)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        **_sampling_arguments(sampling),
    )
    arguments: dict[str, Any] = {"generation_config": settings}
    if stops_early:
        arguments["stopping_criteria"] = [_Anywhere(stop, len(prompt))]
    ids = prompt[None]
    synchronize = synchronizer(prompt.device)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(_quiet_transformers())
        target = stack.enter_context(pair.target.as_transformers())
        stack.enter_context(_own_settings(target, GenerationConfig()))
        draft_calls = None
        if assistant is not None:
            draft = stack.enter_context(pair.draft.as_transformers())
            stack.enter_context(_own_settings(draft, GenerationConfig(**assistant)))
            draft_calls = stack.enter_context(_Calls(draft, synchronize))
            arguments["assistant_model"] = draft
        torch.manual_seed(seed)
        synchronize()
        start = time.perf_counter()
        cache = DynamicCache(config=target.config)
        if len(prompt) > 1:
            target(ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
        synchronize()
        prefill = time.perf_counter() - start
        if len(prompt) > 1:
            stack.enter_context(_cached_once(target, prompt, cache))
        calls = stack.enter_context(_Calls(target, synchronize))
        output = cast(Any, target).generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **arguments
        )
        synchronize()
        total = time.perf_counter() - start
    tokens = _cut(prompt.tolist(), output[0, len(prompt) :].tolist(), stop)
    return Outcome(
        tokens=tokens,
        target_passes=calls.count,
        accepted=max(0, len(tokens) - calls.count),
        drafted=0 if assistant is None else None,
        prefill_s=prefill + (draft_calls.first_s if draft_calls else 0.0),
        total_s=total,
    )


def _sampling_arguments(sampling: Sampling) -> dict[str, Any]:
    """Everything that transformers would otherwise set by itself (top_k is 50 by default)."""
    if sampling.greedy:
        return {"do_sample": False}
    return {
        "do_sample": True,
        "temperature": float(sampling.temperature),
        "top_k": sampling.top_k or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": sampling.min_p or None,
    }


def _cut(prompt: list[int], tokens: list[int], stop: Stop) -> tuple[int, ...]:
    """The tokens up to the first at which the text is over."""
    for i in range(len(tokens)):
        if stop(prompt + tokens[: i + 1]):
            return tuple(tokens[: i + 1])
    return tuple(tokens)


class _Anywhere:
    """A stopping criterion that also looks inside the tokens that one pass adds.

    The `stop_strings` of transformers look at the end of the text only, and assisted generation refuses
    them.
    """

    def __init__(self, stop: Stop, seen: int) -> None:
        self._stop, self._seen = stop, seen

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        ids = input_ids[0].tolist()
        over = any(self._stop(ids[:i]) for i in range(self._seen + 1, len(ids) + 1))
        self._seen = len(ids)
        return torch.tensor([over], device=input_ids.device)


@contextmanager
def _own_settings(model: Any, settings: Any) -> Iterator[None]:
    """Let a module have these generation settings for a while, and none of its folder's."""
    before = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = before


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence the warnings about arguments that assisted generation passes to itself."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


class _Calls:
    """Counts the forward calls of a module, and times the first."""

    def __init__(self, model: Any, synchronize: Callable[[], None]) -> None:
        self._model, self._synchronize = model, synchronize
        self.count, self.first_s = 0, 0.0

    def __enter__(self) -> "_Calls":
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


@contextmanager
def _cached_once(model: Any, prompt: Int[Tensor, "T"], cache: Any) -> Iterator[None]:
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
