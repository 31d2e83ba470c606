"""The processors of one text: transformers' own list, with versions that touch only their tokens."""

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList
from transformers.generation import logits_process as theirs

from treespec.errors import InvalidSampling, in_words, said
from treespec.sampling.processing.penalties import FrequencyPenalty, PresencePenalty
from treespec.sampling.processors import Processors

InPlace = Callable[[Tensor, Tensor], None]
"""Changes the scores `[V]` of a text `[L]` in place."""


OF_ENDS = ("min_length", "min_new_tokens", "exponential_decay_length_penalty")
"""Settings that favour or forbid the tokens that end a text."""


def generation_fields(processors: Processors) -> dict[str, Any]:
    """The settings as fields of a `GenerationConfig`, without those that it does not have."""
    given: dict[str, Any] = {
        "repetition_penalty": float(processors.repetition_penalty),
        "no_repeat_ngram_size": processors.no_repeat_ngram_size,
        "min_length": processors.min_length,
        "min_new_tokens": processors.min_new_tokens,
        "suppress_tokens": list(processors.suppress_tokens),
        "begin_suppress_tokens": list(processors.begin_suppress_tokens),
        "bad_words_ids": [list(word) for word in processors.bad_words_ids],
        "sequence_bias": [[list(words), bias] for words, bias in processors.sequence_bias],
        "forced_bos_token_id": processors.forced_bos_token_id,
        "forced_eos_token_id": processors.forced_eos_token_id,
        "exponential_decay_length_penalty": processors.exponential_decay_length_penalty,
    }
    default = Processors()
    return {
        name: given[name] for name in given if getattr(processors, name) != getattr(default, name)
    }


def further(processors: Processors, prompt_length: int) -> list[Any]:
    """The processors that `generate` takes as its argument `logits_processor`, in order."""
    ours = []
    if processors.frequency_penalty:
        ours.append(FrequencyPenalty(processors.frequency_penalty, prompt_length))
    if processors.presence_penalty:
        ours.append(PresencePenalty(processors.presence_penalty, prompt_length))
    return [*ours, *processors.custom]


class _Mixin(GenerationMixin):
    """What `generate` needs to know of a model to make its list."""

    class config:  # noqa: N801
        is_encoder_decoder = False


@lru_cache(maxsize=256)
def built(
    processors: Processors, prompt_length: int, device: torch.device
) -> tuple[tuple[Any, InPlace | None], ...]:
    """The list that `generate` makes for a text at temperature 0, with versions in place if there are.

    Made once for all texts with prompts of one length: they remember nothing.

    Raises:
        InvalidSampling: if transformers refuses a value; says why.
    """
    fields = generation_fields(processors)
    if "min_new_tokens" in fields:  # `generate` puts it in the place of min_length
        fields.pop("min_length", None)
    if processors.ends is None and (given := [name for name in OF_ENDS if name in fields]):
        raise InvalidSampling(
            f"{given[0]} needs to know which tokens end a text: give Processors(ends=...), () for none"
        )
    if processors.forced_eos_token_id is not None and processors.max_new_tokens is None:
        raise InvalidSampling(
            "forced_eos_token_id needs to know where the text ends: give Processors(max_new_tokens=...)"
        )
    most = None if processors.max_new_tokens is None else prompt_length + processors.max_new_tokens
    if most is not None and fields.get("min_length", 0) > most:
        raise InvalidSampling(
            f"min_length = {processors.min_length}, but prompt and new tokens are at most {most}: the text "
            "would end before it may end"
        )
    try:
        config = GenerationConfig(**fields, do_sample=False, max_length=most)
        own = LogitsProcessorList(further(processors, prompt_length))
        made = theirs_of(config, processors.ends or (), prompt_length, own, device)
    except (ValueError, TypeError) as error:
        raise InvalidSampling(f"transformers refuses the processors: {said(error)}") from None
    return tuple((processor, _in_place(processor, device)) for processor in made)


def theirs_of(
    config: GenerationConfig,
    ends: Sequence[int],
    prompt_length: int,
    own: LogitsProcessorList,
    device: torch.device,
) -> LogitsProcessorList:
    """The list that `generate` makes for a text, with further processors in their place."""
    given: Any = config
    given._eos_token_tensor = torch.tensor(list(ends), device=device) if ends else None
    if not ends:  # a text without an end has none to favour
        given.exponential_decay_length_penalty = None
    model: Any = _Mixin()
    return model._get_logits_processor(
        given, input_ids_seq_length=prompt_length, logits_processor=own, device=str(device)
    )


def call(
    processor: Any, ids: Int[Tensor, "1 L"], scores: Float[Tensor, "1 V"]
) -> Float[Tensor, "1 V"]:
    """Call a processor that is not ours, and check its result.

    Raises:
        InvalidSampling: if it fails, or does not return scores of the same shape.
    """
    try:
        result = processor(ids, scores)
    except Exception as error:
        name = f"processor {name_of(processor)}"
        raise InvalidSampling(f"{name}: {in_words(error, name)}") from error
    if not isinstance(result, Tensor) or result.shape != scores.shape:
        what = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise InvalidSampling(
            f"processor {name_of(processor)} returned {what}, but must return scores {tuple(scores.shape)}"
        )
    return result


def name_of(processor: Any) -> str:
    """The name of a processor, for messages."""
    return processor.__name__ if inspect.isfunction(processor) else type(processor).__name__


def _in_place(processor: Any, device: torch.device) -> InPlace | None:
    """The same change in place, bit for bit, touching only the tokens that it changes."""
    kind = type(processor)
    if kind is theirs.RepetitionPenaltyLogitsProcessor:
        return _repetition(processor.penalty)
    if kind is theirs.MinLengthLogitsProcessor:
        return _forbid(processor.eos_token_id, processor.min_length)
    if kind is theirs.MinNewTokensLengthLogitsProcessor:
        least = processor.prompt_length_to_skip + processor.min_new_tokens
        return _forbid(processor.eos_token_id, least)
    if kind is theirs.SuppressTokensLogitsProcessor:
        return _forbid(processor.suppress_tokens.to(device), None)
    if kind is theirs.SuppressTokensAtBeginLogitsProcessor:
        return _forbid_at(processor.begin_suppress_tokens.to(device), processor.begin_index)
    if kind in (theirs.SequenceBiasLogitsProcessor, theirs.NoBadWordsLogitsProcessor):
        return _bias(processor.sequence_bias, device)
    if kind is FrequencyPenalty or kind is PresencePenalty:
        return _generated(processor.penalty, processor.prompt_length, kind is PresencePenalty)
    return None


def _repetition(penalty: float) -> InPlace:
    def change(scores: Tensor, ids: Tensor) -> None:
        seen = scores.gather(0, ids)
        scores.scatter_(0, ids, torch.where(seen < 0, seen * penalty, seen / penalty))

    return change


def _forbid(tokens: Tensor, least: int | None) -> InPlace:
    """Forbid tokens; if `least` is given, in shorter texts only."""

    def change(scores: Tensor, ids: Tensor) -> None:
        if least is None or len(ids) < least:
            scores[..., tokens] = -torch.inf

    return change


def _forbid_at(tokens: Tensor, length: int) -> InPlace:
    def change(scores: Tensor, ids: Tensor) -> None:
        if len(ids) == length:
            scores[..., tokens] = -torch.inf

    return change


def _bias(biases: dict[tuple[int, ...], float], device: torch.device) -> InPlace:
    """Add to each token the sum of its biases, added up in transformers' order and precision."""
    alone = {words[0]: bias for words, bias in biases.items() if len(words) == 1}
    tokens = torch.tensor(list(alone), dtype=torch.long, device=device)
    values = torch.tensor(list(alone.values()), dtype=torch.float32, device=device)
    longer: dict[int, list[tuple[Sequence[int], float]]] = {}
    for words, bias in biases.items():
        if len(words) > 1:
            longer.setdefault(len(words), []).append((words, bias))
    groups = [
        (torch.tensor([w[:-1] for w, _ in group], device=device), group)
        for group in longer.values()
    ]

    def change(scores: Tensor, ids: Tensor) -> None:
        completed: dict[int, Tensor] = {}
        for prefixes, group in groups:
            length = prefixes.shape[1]
            if length > len(ids):
                continue
            for i in (prefixes == ids[-length:]).all(1).nonzero()[:, 0].tolist():
                words, bias = group[i]
                token = words[-1]
                known = completed.get(token)
                if known is None:
                    known = scores.new_tensor(0.0) + torch.tensor(alone.get(token, 0.0))
                completed[token] = known + torch.tensor(bias, dtype=torch.float32).to(scores.dtype)
        before = {token: scores[token].clone() for token in completed}
        if len(tokens):
            scores[..., tokens] += values
        for token, bias in completed.items():
            scores[token] = before[token] + bias.to(scores.device)

    return change


def _generated(penalty: float, prompt_length: int, once: bool) -> InPlace:
    def change(scores: Tensor, ids: Tensor) -> None:
        new, counts = ids[prompt_length:].unique(return_counts=True)
        times = torch.ones_like(counts) if once else counts
        scores[new] -= penalty * times.to(scores.dtype)

    return change
