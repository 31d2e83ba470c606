"""The baselines: plain decoding and assisted generation by transformers itself, one step at a time.

Both run with a neutral GenerationConfig and the model's ordinary attention, on separate modules that share
the pair's weights. Both start from a cache that holds all prompt tokens but the last, as our own loop does,
so that "prefill" and "pass of the target" mean the same for every method. They are paused in the stopping
criterion, which transformers evaluates once after each pass of the target.

A batch of prompts is decoded by `generate` as its users do it: padded on the left, with an attention mask,
and with the positions of the texts. Rows of texts that have ended stay in the batch until all have.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.batch.paused import paused
from treespec.experiments.records.outcome import Round, StepOutcome
from treespec.experiments.run.observers import now, synchronizer
from treespec.experiments.run.transformers_hooks import Calls, cached_once, plain_twin, with_width
from treespec.sampling.distributions import Sampling
from treespec.sampling.processing.rows import processed_row
from treespec.step import Verdict
from treespec.stopping import Stop
from treespec.tree import TreeShape

if TYPE_CHECKING:
    from treespec.models.load import Pair


def generate_plain(
    pair: "Pair",
    prompt: Int[Tensor, "T"],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
) -> Iterator[StepOutcome]:
    """Decode by `generate`, one token per pass. No work is done between two steps."""
    return _single(_generate([pair], [prompt], sampling, max_new_tokens, stop, seed, None))


def generate_plain_together(
    pairs: Sequence["Pair"],
    prompts: Sequence[Int[Tensor, "_"]],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
) -> Iterator[Round]:
    """Decode a batch of prompts by one padded `generate`. No work is done between two rounds.

    `pairs`: for each prompt the models, which encoder-decoders have behind each source.
    """
    return _generate(pairs, prompts, sampling, max_new_tokens, stop, seed, None)


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
    """Decode by assisted generation, the speculative decoding of transformers, which drafts chains.

    Args:
        pair: the models.
        prompt: token ids on the models' device.
        sampling: the sampling settings.
        length: `num_assistant_tokens`, under the constant schedule.
        threshold: `assistant_confidence_threshold`. If scikit-learn is installed, transformers adapts it
            within a text, unless it is 0.
        max_new_tokens: the token budget.
        stop: condition that ends the text. Tokens that transformers decodes past it in its last pass are
            dropped.
        seed: seed of torch's global generator.

    Yields:
        Each step when it is done. No work is done between two steps.
    """
    assistant = {
        "num_assistant_tokens": length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": threshold,
    }
    return _single(_generate([pair], [prompt], sampling, max_new_tokens, stop, seed, assistant))


def next_logits(pair: "Pair", ids: Sequence[int]) -> Float[Tensor, "V"]:
    """The target's next-token logits after these ids, from one plain pass of transformers."""
    model = plain_twin(pair.target)
    with torch.inference_mode():
        inputs = torch.tensor([list(ids)], device=pair.target.device)
        if pair.source is not None:
            given = {**_behind([pair], model), "decoder_input_ids": inputs}
            return model(**given, use_cache=False).logits[0, -1]
        return model(inputs, logits_to_keep=1, use_cache=False).logits[0, -1]


def first_difference(tokens: Sequence[object], reference: Sequence[object]) -> int:
    """Index of the first token that differs; the shorter length if none of the common tokens differs."""
    pairs = enumerate(zip(tokens, reference, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(reference)))


def preference(
    pair: "Pair", sampling: Sampling, ids: Sequence[int], prompt: int, token: int, other: int
) -> float:
    """The target's logit of `token` minus that of `other` after these ids, from one plain pass.

    Where a greedy text departs from `generate`, this is the margin that rounding would have to explain.
    `prompt`: how many of the ids are the prompt, for processors.
    """
    logits = processed_row(sampling, next_logits(pair, ids), ids, prompt)
    return float(logits[token].float() - logits[other].float())


def _behind(pairs: Sequence["Pair"], model: Any) -> dict[str, Any]:
    """What an encoder-decoder is given beside the texts: their sources, encoded by itself."""
    device = pairs[0].target.device
    sources = [torch.tensor(pair.source, device=device) for pair in pairs]
    ids = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True)
    ones = [torch.ones_like(source) for source in sources]
    mask = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True)
    return {
        "encoder_outputs": model.get_encoder()(ids, attention_mask=mask),
        "attention_mask": mask,
    }


def _single(rounds: Iterator[Round]) -> Iterator[StepOutcome]:
    """The steps of the only text."""
    return (cast(StepOutcome, made[0]) for made in rounds)


def _generate(
    pairs: Sequence["Pair"],
    prompts: Sequence[Int[Tensor, "_"]],
    sampling: Sampling,
    max_new_tokens: int,
    stop: Stop,
    seed: int,
    assistant: dict[str, Any] | None,
) -> Iterator[Round]:
    from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig

    from treespec.models.cache import cache_argument

    pair = pairs[0]
    ends = sorted(pair.end_tokens)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        **_sampling_arguments(sampling),
    )
    target, draft = plain_twin(pair.target), None
    if assistant is not None:
        draft = with_width(plain_twin(pair.draft), target)
        draft.generation_config = GenerationConfig(**assistant)
    ids, mask = _padded(prompts, settings.pad_token_id)
    synchronize = synchronizer(ids.device)

    def decode(give: Callable[[Round], None]) -> None:
        with nullcontext() if draft is None else Calls(draft, synchronize) as draft_calls:
            torch.manual_seed(seed)
            synchronize()
            start = time.perf_counter()
            given: dict[str, Any] = {"inputs": ids, "attention_mask": mask}
            if pair.source is None:
                cache = DynamicCache(config=target.config)
            else:
                cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
                given = {**_behind(pairs, target), "decoder_input_ids": ids}
                settings.decoder_start_token_id = int(ids[0, 0])
            kept = {cache_argument(target): cache}
            if ids.shape[1] > 1 and pair.source is not None:
                target(**given | {"decoder_input_ids": ids[:, :-1]}, **kept, use_cache=True)
                cached_once(target, ids[0], cache)
            elif ids.shape[1] > 1:
                places = _places_in_texts(mask) if len(prompts) > 1 else {}
                target(ids[:, :-1], **places, **kept, use_cache=True, logits_to_keep=1)
                cached_once(target, ids[0], cache)
            synchronize()
            prefill = time.perf_counter() - start
            with Calls(target) as calls:
                turns = _Turns(
                    prompts,
                    ids,
                    max_new_tokens,
                    stop,
                    give,
                    not sampling.greedy,
                    calls,
                    draft_calls,
                    prefill,
                )
                cast(Any, target).generate(
                    **given,
                    **kept,
                    generation_config=settings,
                    stopping_criteria=[turns],
                    logits_processor=_processors(sampling, ids.shape[1]),
                    assistant_model=draft,
                )
                turns.end()

    return paused(decode)


def _padded(
    prompts: Sequence[Int[Tensor, "_"]], pad: int
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """The prompts, padded on the left, and the mask of what is not padding."""
    ids = torch.nn.utils.rnn.pad_sequence(
        [*prompts], batch_first=True, padding_value=pad, padding_side="left"
    )
    mask = [torch.ones_like(prompt) for prompt in prompts]
    return ids, torch.nn.utils.rnn.pad_sequence(mask, batch_first=True, padding_side="left")


def _places_in_texts(mask: Int[Tensor, "B T"]) -> dict[str, Tensor]:
    """Mask and positions of all columns but the last, as `generate` would make them."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"attention_mask": mask[:, :-1], "position_ids": positions[:, :-1]}


class _Turns:
    """A stopping criterion that hands over each round when it is done, and pauses there.

    It checks every token that a pass adds. The `stop_strings` of transformers check the end of the text
    only, and assisted generation refuses them.
    """

    def __init__(
        self,
        prompts: Sequence[Int[Tensor, "_"]],
        ids: Int[Tensor, "B T"],
        max_new_tokens: int,
        stop: Stop,
        give: Callable[[Round], None],
        sampled: bool,
        target: Calls,
        draft: Calls | None,
        prefill_s: float,
    ) -> None:
        self._stop, self._give, self._sampled = stop, give, sampled
        self._calls, self._draft, self._prefill_s = target, draft, prefill_s
        self._device, self._seen = ids.device, ids.shape[1]
        self._padding = [ids.shape[1] - len(prompt) for prompt in prompts]
        self._over = [False] * len(prompts)
        self._budget_ends = ids.shape[1] + max_new_tokens
        self._synchronize = synchronizer(ids.device)
        self._first = True
        self._last: dict[int, dict[str, Any]] = {}
        self._start()

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        """Whether each text is over; if not all are, others take their turns before this returns.

        transformers 5.17 also asks about drafted tokens that no pass has verified yet; they are no step.
        """
        if not self._calls.unchecked:
            return torch.tensor([False], device=self._device)
        rows, verified = input_ids.tolist(), self._calls.latest.tolist()
        for i, row in enumerate(rows):
            if not self._over[i]:
                self._last[i] = self._step(i, row, verified[i])
        self._seen = len(rows[0])
        if not all(self._over):
            self.end()
        return torch.tensor(self._over, device=self._device)

    def _step(self, i: int, row: list[int], verified: list[int]) -> dict[str, Any]:
        """The step of a text, and whether it ends the text."""
        new, kept = row[self._seen :], 0
        while kept < len(new) and not self._over[i]:
            kept += 1
            end = self._seen + kept
            self._over[i] = end >= self._budget_ends or self._stop(row[self._padding[i] : end])
        return {
            "shape": TreeShape.chain(len(verified) - 1),
            "tokens": tuple(verified),
            "verdict": Verdict(tuple(range(len(new))), new[-1]),
            "kept": kept,
            "seconds": {},
        }

    def end(self) -> None:
        """Hand over the latest round, unless that was already done."""
        if not self._last:
            return
        self._synchronize()
        took, draft_prefill = time.perf_counter() - self._began, 0.0
        if self._first and self._draft is not None:
            draft_prefill = self._draft.first_s
        prefill = (self._prefill_s + draft_prefill) / len(self._over) if self._first else 0.0
        texts = len(self._last)
        made = {
            i: StepOutcome(
                **step,
                at=self._at + draft_prefill,
                took=(took - draft_prefill) / texts,
                prefill_s=prefill,
                texts=texts,
            )
            for i, step in self._last.items()
        }
        self._first, self._last = False, {}
        self._calls.require_finite("target")
        if self._draft is not None:
            self._draft.require_finite("draft")
        cuda = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(cuda, enabled=self._sampled):
            self._give(made)
        self._start()

    def _start(self) -> None:
        self._at, self._began = now(), time.perf_counter()


def _sampling_arguments(sampling: Sampling) -> dict[str, Any]:
    """All sampling arguments, so that no default of transformers applies (its `top_k` is 50)."""
    processors: dict[str, Any] = {}
    if sampling.processors is not None:
        from treespec.sampling.processing.built import generation_fields

        processors = generation_fields(sampling.processors)
    if sampling.greedy:
        return processors | {"do_sample": False}
    return processors | {
        "do_sample": True,
        "temperature": float(sampling.temperature),
        "top_k": sampling.top_k or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "min_p": sampling.min_p or None,
        "typical_p": 1.0 if sampling.typical_p is None else float(sampling.typical_p),
        "epsilon_cutoff": float(sampling.epsilon_cutoff or 0.0),
        "eta_cutoff": float(sampling.eta_cutoff or 0.0),
    }


def _processors(sampling: Sampling, prompt_length: int) -> Any:
    """What `generate` takes as `logits_processor`."""
    from transformers import LogitsProcessorList

    from treespec.sampling.processing.built import further

    made = [] if sampling.processors is None else further(sampling.processors, prompt_length)
    return LogitsProcessorList(made)
