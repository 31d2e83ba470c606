"""The baselines: plain decoding and assisted generation by transformers itself, a step at a time.

Both run under a neutral GenerationConfig and the module's ordinary attention, on modules of their own over
the pair's weights. Both get a cache that holds all prompt tokens but the last, as our own loop does, so
that "prefill" and "pass of the target" mean the same for every method. They are paused where transformers
asks whether the text is over, which it does once after each pass of the target.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.distributions import Sampling
from treespec.experiments.records.outcome import StepOutcome
from treespec.experiments.run.observers import now, synchronizer
from treespec.experiments.run.paused import paused
from treespec.experiments.run.transformers_hooks import Calls, cached_once, plain_twin, with_width
from treespec.step import Verdict
from treespec.stopping import Stop
from treespec.tree import TreeShape

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
) -> Iterator[StepOutcome]:
    """Decode by `generate`, one token a pass.

    Args:
        pair: the models; only the target is used.
        prompt: token ids on the models' device.
        sampling: settings.
        max_new_tokens: the budget.
        stop: when the text is over.
        seed: of torch's global generator.

    Yields:
        Every step when it is done; nothing runs between two.
    """
    return _generate(pair, prompt, sampling, max_new_tokens, stop, seed, None)


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
) -> Iterator[StepOutcome]:
    """Decode by assisted generation, the chain that transformers has.

    Args:
        pair: the models.
        prompt: token ids on the models' device.
        sampling: settings.
        length: `num_assistant_tokens`, under the constant schedule.
        threshold: `assistant_confidence_threshold`. With scikit-learn installed transformers adapts it
            within a text, unless it is 0.
        max_new_tokens: the budget.
        stop: when the text is over; transformers may decode past it in its last pass, which is not kept.
        seed: of torch's global generator.

    Yields:
        Every step when it is done; nothing runs between two.
    """
    assistant = {
        "num_assistant_tokens": length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": threshold,
    }
    return _generate(pair, prompt, sampling, max_new_tokens, stop, seed, assistant)


def next_logits(pair: "Pair", ids: Sequence[int]) -> Float[Tensor, "V"]:
    """The target's logits after these ids, by one plain pass of transformers."""
    model = plain_twin(pair.target)
    with torch.inference_mode():
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
    assistant: dict[str, Any] | None,
) -> Iterator[StepOutcome]:
    from transformers import DynamicCache, GenerationConfig

    ends = sorted(pair.end_tokens)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        **_sampling_arguments(sampling),
    )
    target, more = plain_twin(pair.target), dict[str, Any]()
    if assistant is not None:
        draft = with_width(plain_twin(pair.draft), target)
        draft.generation_config = GenerationConfig(**assistant)
        more["assistant_model"] = draft
    ids, synchronize = prompt[None], synchronizer(prompt.device)

    def decode(give: Callable[[StepOutcome], None]) -> None:
        with ExitStack() as stack:
            draft_calls = None
            if assistant is not None:
                draft_calls = stack.enter_context(Calls(more["assistant_model"], synchronize))
            torch.manual_seed(seed)
            synchronize()
            start = time.perf_counter()
            cache = DynamicCache(config=target.config)
            if len(prompt) > 1:
                target(ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
                cached_once(target, prompt, cache)
            synchronize()
            prefill = time.perf_counter() - start
            calls = stack.enter_context(Calls(target, synchronize))
            random = not sampling.greedy
            turns = _Turns(prompt, max_new_tokens, stop, give, random, calls, draft_calls, prefill)
            cast(Any, target).generate(
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=cache,
                generation_config=settings,
                stopping_criteria=[turns],
                **more,
            )
            turns.end()

    return paused(decode)


class _Turns:
    """A stopping criterion that gives each step when it is done, and is paused there.

    It looks inside the tokens that one pass adds: the `stop_strings` of transformers look at the end of the
    text only, and assisted generation refuses them.

    Args:
        prompt: of the text.
        max_new_tokens: the budget.
        stop: when the text is over.
        give: pauses.
        random: whether torch's random state is used, which other texts use between the steps.
        target: the calls of the target.
        draft: those of the draft, whose first is a part of the prefill; None without a draft.
        prefill_s: seconds of the target's prefill.
    """

    def __init__(
        self,
        prompt: Int[Tensor, "T"],
        max_new_tokens: int,
        stop: Stop,
        give: Callable[[StepOutcome], None],
        random: bool,
        target: Calls,
        draft: Calls | None,
        prefill_s: float,
    ) -> None:
        self._stop, self._give, self._random = stop, give, random
        self._calls, self._draft, self._prefill_s = target, draft, prefill_s
        self._device, self._seen = prompt.device, len(prompt)
        self._budget_ends = len(prompt) + max_new_tokens
        self._synchronize = synchronizer(prompt.device)
        self._first = True
        self._last: dict[str, Any] | None = None
        self._start()

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        """Whether the text is over; if not, the other texts take their turns first."""
        ids = input_ids[0].tolist()
        new, kept, over = ids[self._seen :], 0, False
        while kept < len(new) and not over:
            kept += 1
            end = self._seen + kept
            over = end >= self._budget_ends or self._stop(ids[:end])
        self._seen = len(ids)
        ran = self._calls.latest.tolist()
        self._last = {
            "shape": TreeShape.chain(len(ran) - 1),
            "tokens": tuple(ran),
            "verdict": Verdict(tuple(range(len(new))), new[-1]),
            "kept": kept,
            "seconds": {},
        }
        if not over:
            self.end()
        return torch.tensor([over], device=self._device)

    def end(self) -> None:
        """Give the latest step, if it was not yet given."""
        if self._last is None:
            return
        self._synchronize()
        took, before = time.perf_counter() - self._began, 0.0
        if self._first and self._draft is not None:
            before = self._draft.first_s
        prefill = self._prefill_s + before if self._first else 0.0
        step = StepOutcome(
            **self._last, at=self._at + before, took=took - before, prefill_s=prefill
        )
        self._first, self._last = False, None
        self._calls.require_finite("target")
        if self._draft is not None:
            self._draft.require_finite("draft")
        state = _random_state(self._device) if self._random else None
        self._give(step)
        if state is not None:
            _set_random_state(self._device, state)
        self._start()

    def _start(self) -> None:
        self._at, self._began = now(), time.perf_counter()


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), cuda


def _set_random_state(device: torch.device, state: tuple[Tensor, Tensor | None]) -> None:
    host, cuda = state
    torch.set_rng_state(host)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)


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
