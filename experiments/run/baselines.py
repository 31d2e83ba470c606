"""The baselines: plain decoding and assisted generation by transformers itself.

Both run under a neutral GenerationConfig (model folders bring penalties and truncations of their own) and
the module's ordinary attention. Both get a cache that holds all prompt tokens but the last, as our own loop
does, so that "prefill" and "pass of the target" mean the same for every method.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.distributions import Sampling
from treespec.experiments.records.outcome import Outcome
from treespec.experiments.run.observers import synchronizer
from treespec.experiments.run.transformers_hooks import (
    Calls,
    StopAnywhere,
    aligned_vocabulary,
    cached_once,
    quiet_transformers,
    with_settings,
)
from treespec.stopping import Stop

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = [
    "first_difference",
    "generate_assisted",
    "generate_plain",
    "next_logits",
    "preference",
]


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


def next_logits(pair: "Pair", ids: Sequence[int]) -> Float[Tensor, "V"]:
    """The target's logits after these ids, by one plain pass of transformers."""
    with pair.target.as_transformers() as model, torch.inference_mode():
        inputs = torch.tensor([list(ids)], device=pair.target.device)
        return model(inputs, logits_to_keep=1, use_cache=False).logits[0, -1]


def first_difference(tokens: Sequence[int], reference: Sequence[int]) -> int:
    """Where two texts part; the length of the shorter one if no token differs."""
    pairs = enumerate(zip(tokens, reference, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(reference)))


def preference(pair: "Pair", ids: Sequence[int], token: int, other: int) -> float:
    """How far the target's logit of `token` after these ids lies above that of `other`, by one plain pass.

    Where a greedy text leaves `generate`, this is what rounding would have to explain.
    """
    logits = next_logits(pair, ids)
    return float(logits[token].float() - logits[other].float())


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
        arguments["stopping_criteria"] = [StopAnywhere(stop, len(prompt))]
    ids = prompt[None]
    synchronize = synchronizer(prompt.device)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(quiet_transformers())
        target = stack.enter_context(pair.target.as_transformers())
        stack.enter_context(with_settings(target, GenerationConfig()))
        draft_calls = None
        if assistant is not None:
            draft = stack.enter_context(pair.draft.as_transformers())
            stack.enter_context(with_settings(draft, GenerationConfig(**assistant)))
            draft_calls = stack.enter_context(Calls(draft, synchronize))
            stack.enter_context(aligned_vocabulary(draft, target))
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
            stack.enter_context(cached_once(target, prompt, cache))
        calls = stack.enter_context(Calls(target, synchronize))
        output = cast(Any, target).generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **arguments
        )
        synchronize()
        total = time.perf_counter() - start
    calls.require_finite("target")
    if draft_calls is not None:
        draft_calls.require_finite("draft")
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
