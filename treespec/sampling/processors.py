"""`Processors`: penalties, bans and biases, as settings that a text is decoded with."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from treespec.checks import number, plain_integer, shown
from treespec.errors import InvalidSampling

WITH_MEMORY = frozenset({
    "AlternatingCodebooksLogitsProcessor", "BarkEosPrioritizerLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor", "DiaClassifierFreeGuidanceLogitsProcessor",
    "DiaEOSChannelFilterLogitsProcessor", "DiaEOSDelayPatternLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor", "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "WhisperNoSpeechDetection", "WhisperTimeStampLogitsProcessor",
})  # fmt: skip
"""Processors of transformers that remember earlier calls, run a model, or belong to other modalities."""


@dataclass(frozen=True, eq=False)
class Processors:
    """What changes the logits of a text before temperature and truncations, as in transformers' `generate`.

    Objects are equal only if identical, so that processors of any kind may be among them.

    A processor of a node sees the text of this node: the prompt, the committed tokens and the path down to
    it. Target and draft are processed alike. The names are those of transformers' `GenerationConfig`, and
    so are meaning and order: `sequence_bias`, `repetition_penalty`, `no_repeat_ngram_size`,
    `bad_words_ids`, `min_length`, `min_new_tokens`, `forced_bos_token_id`, `forced_eos_token_id`,
    `exponential_decay_length_penalty`, `suppress_tokens`, `begin_suppress_tokens`, then frequency and
    presence penalty, then `custom`.

    Args:
        repetition_penalty: divides positive logits of tokens in prompt and text, multiplies negative ones
            (arXiv:1909.05858, section 4.1).
        frequency_penalty: subtracted from a token's logit once for each time the token was *generated*; not
            in transformers, defined as in OpenAI's API and vLLM.
        presence_penalty: subtracted once if the token was generated.
        no_repeat_ngram_size: no n-gram of this size occurs twice.
        min_length: tokens of prompt and text before the text may end.
        min_new_tokens: tokens of the text before it may end.
        suppress_tokens: tokens that are never generated.
        begin_suppress_tokens: tokens that are not generated first.
        bad_words_ids: sequences of tokens that are never completed.
        sequence_bias: pairs of a sequence and a number added to the logit of its last token after the
            others.
        forced_bos_token_id: the token after a prompt of one token.
        forced_eos_token_id: the last token of a text that `max_new_tokens` ends.
        exponential_decay_length_penalty: (start, factor): the end's logit grows from this many new tokens.
        custom: further `transformers.LogitsProcessor`s, or functions `(ids [1, L], scores [1, V]) ->
            scores`, without memory: equal ids and scores give equal results, whatever was asked before.
        ends: tokens that end a text, which minimum lengths and the decay need; () for none. `generate` and
            runs set them from the pair.
        max_new_tokens: the budget of a text; needed for `forced_eos_token_id` only, and set like `ends`.

    Raises:
        InvalidSampling: if a value is outside its range, or two contradict each other.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    min_length: int = 0
    min_new_tokens: int = 0
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    exponential_decay_length_penalty: tuple[int, float] | None = None
    custom: tuple[Any, ...] = ()
    ends: tuple[int, ...] | None = None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        positive = number("repetition_penalty", self.repetition_penalty, InvalidSampling)
        if not 0 < positive < math.inf:
            raise InvalidSampling(
                f"repetition_penalty = {self.repetition_penalty!r}, but must be above 0 and finite"
            )
        for name in ("frequency_penalty", "presence_penalty"):
            if not math.isfinite(number(name, getattr(self, name), InvalidSampling)):
                raise InvalidSampling(f"{name} = {getattr(self, name)!r}, but must be finite")
        for name in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
            self._set(name, _count(name, getattr(self, name)))
        for name in ("suppress_tokens", "begin_suppress_tokens", "ends"):
            if getattr(self, name) is not None:
                self._set(name, _ids(name, getattr(self, name)))
        words = [
            _ids("bad_words_ids", word, least=1)
            for word in _each("bad_words_ids", self.bad_words_ids)
        ]
        self._set("bad_words_ids", tuple(words))
        self._set("sequence_bias", _biases(self.sequence_bias))
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if getattr(self, name) is not None:
                self._set(name, _count(name, getattr(self, name)))
        if self.exponential_decay_length_penalty is not None:
            self._set(
                "exponential_decay_length_penalty", _decay(self.exponential_decay_length_penalty)
            )
        self._set("custom", tuple(_each("custom", self.custom)))
        for processor in self.custom:
            _require_memoryless(processor)
        self._require_consistent()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _require_consistent(self) -> None:
        most = self.max_new_tokens
        if most is not None and self.min_new_tokens > most:
            raise InvalidSampling(
                f"min_new_tokens = {self.min_new_tokens}, but max_new_tokens = {most}: the text would end "
                "before it may end"
            )
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if (forced := getattr(self, name)) is not None and forced in self.suppress_tokens:
                raise InvalidSampling(
                    f"{name} = {forced}, but suppress_tokens holds it too: remove one of the two"
                )

    @property
    def changes(self) -> bool:
        """Whether anything is changed."""
        return any(
            getattr(self, f.name) != f.default for f in fields(self) if f.name not in _ABOUT_TEXT
        )

    @property
    def reads_path(self) -> bool:
        """Whether a row depends on the tokens before it, or on how many there are."""
        single = all(len(w) == 1 for w in self.bad_words_ids)
        single = single and all(len(words) == 1 for words, _ in self.sequence_bias)
        apart = replace(self, bad_words_ids=(), sequence_bias=(), suppress_tokens=())
        return apart.changes or not single

    def ending(self, ends: Iterable[int], max_new_tokens: int) -> "Processors":
        """These processors for texts that end at `ends`, or after `max_new_tokens` tokens."""
        return replace(self, ends=tuple(sorted(ends)), max_new_tokens=max_new_tokens)

    def require_vocabulary(self, size: int) -> None:
        """Refuse token ids that a vocabulary of this size does not have.

        Raises:
            InvalidSampling: names the setting and the id.
        """
        forced = [
            name
            for name in ("forced_bos_token_id", "forced_eos_token_id")
            if getattr(self, name) is not None
        ]
        ids: dict[str, Collection[int]] = {name: [getattr(self, name)] for name in forced}
        ids |= {
            "suppress_tokens": self.suppress_tokens,
            "begin_suppress_tokens": self.begin_suppress_tokens,
        }
        ids["bad_words_ids"] = [token for word in self.bad_words_ids for token in word]
        ids["sequence_bias"] = [token for words, _ in self.sequence_bias for token in words]
        for name, tokens in ids.items():
            if beyond := [token for token in tokens if token >= size]:
                raise InvalidSampling(
                    f"{name} holds token {beyond[0]}, but the target's ids are 0..{size - 1}"
                )


_ABOUT_TEXT = ("ends", "max_new_tokens")


def _count(name: str, value: Any) -> int:
    count = plain_integer(value)
    if count is None or not 0 <= count < 2**31:
        raise InvalidSampling(f"{name} = {shown(value)}, but must be an integer of at least 0")
    return count


def _each(name: str, values: Any) -> Sequence[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidSampling(f"{name} = {values!r}, but must be a list")
    return list(values)


def _ids(name: str, values: Any, least: int = 0) -> tuple[int, ...]:
    ids = tuple(_count(f"{name}[{i}]", value) for i, value in enumerate(_each(name, values)))
    if len(ids) < least:
        raise InvalidSampling(f"{name} holds an empty sequence, but each needs at least one token")
    return ids


def _biases(values: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    pairs = values.items() if isinstance(values, dict) else _each("sequence_bias", values)
    biases: dict[tuple[int, ...], float] = {}
    for pair in pairs:
        if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InvalidSampling(
                f"sequence_bias holds {pair!r}, but must hold pairs [[tokens], bias]"
            )
        bias = float(number("sequence_bias", pair[1], InvalidSampling))
        if math.isnan(bias) or bias == math.inf:
            raise InvalidSampling(
                f"sequence_bias holds the bias {bias}, but must be finite or -inf"
            )
        biases[_ids("sequence_bias", pair[0], least=1)] = bias
    return tuple(biases.items())


def _decay(value: Any) -> tuple[int, float]:
    pair = _each("exponential_decay_length_penalty", value)
    if (
        len(pair) != 2
        or not number("exponential_decay_length_penalty", pair[1], InvalidSampling) > 0
    ):
        raise InvalidSampling(
            f"exponential_decay_length_penalty = {value!r}, but must be [start, factor], factor above 0"
        )
    return _count("exponential_decay_length_penalty[0]", pair[0]), float(pair[1])


def _require_memoryless(processor: Callable[..., Any]) -> None:
    if not callable(processor):
        raise InvalidSampling(
            f"custom holds {processor!r}, but must hold functions (ids, scores) -> scores"
        )
    kinds = [kind.__name__ for kind in type(processor).__mro__]
    if found := next((kind for kind in kinds if kind in WITH_MEMORY), None):
        raise InvalidSampling(
            f"{found} remembers earlier calls or runs a model: on a tree it would see drafts that are "
            "rejected. Decode with `generate` of transformers instead"
        )
