"""Generate a text, or several: a thin consumer of `decode` and `decode_many`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from treespec.batch import Failed, Text, decode_many
from treespec.checks import able, integer, plain_items, sequence, shown
from treespec.draft.growth import laws_along
from treespec.draft.model import make_drafter
from treespec.errors import InvalidArgument, InvalidPrompt
from treespec.protocols import Coins, Drafter, Growth, Observer, Verifier
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling, wide
from treespec.step import Step
from treespec.stopping import any_of, stop_at_strings, stop_at_tokens
from treespec.target.make import make_target
from treespec.tree import Law, TreeShape
from treespec.verify import usual_law, usual_rule, verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair


@dataclass(frozen=True)
class Generation:
    """A generated text and a summary of its decoding.

    Args:
        tokens: the new token ids, including a stop token.
        text: the decoded tokens without special tokens.
        steps: number of target passes.
        emitted: tokens that the steps emitted, before a stop or the budget cut the last step.
        drafted: number of draft tokens verified.
        accepted_per_step: accepted draft tokens of each step.
        logprobs: log-probability of each token, if asked for.
    """

    tokens: tuple[int, ...]
    text: str
    steps: int
    emitted: int
    drafted: int
    accepted_per_step: tuple[int, ...] = field(repr=False)
    logprobs: tuple[float, ...] | None = field(default=None, repr=False)

    @property
    def tokens_per_step(self) -> float:
        """Emitted tokens per pass of the target (block efficiency, tau)."""
        return self.emitted / self.steps


@overload
def generate(
    pair: "Pair",
    prompt: str | Sequence[int] = "",
    *,
    source: str | Sequence[int] | None = None,
    growth: Growth | TreeShape | None = None,
    law: Law | None = None,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    sampling: Sampling | None = None,
    coins: Coins | None = None,
    max_new_tokens: int = 128,
    stop_strings: Sequence[str] | str = (),
    logprobs: Literal["raw", "processed"] | None = None,
    observer: Observer | None = None,
) -> Generation: ...


@overload
def generate(
    pair: "Pair",
    prompt: Sequence[str] | Sequence[Sequence[int]],
    *,
    source: Sequence[str] | Sequence[Sequence[int]] | None = None,
    growth: Growth | TreeShape | None = None,
    law: Law | None = None,
    drafter: Sequence[Drafter] | None = None,
    verifier: Verifier | None = None,
    sampling: Sampling | None = None,
    coins: Sequence[Coins] | None = None,
    max_new_tokens: int = 128,
    stop_strings: Sequence[str] | str = (),
    logprobs: Literal["raw", "processed"] | None = None,
    observer: Observer | None = None,
) -> list[Generation | Failed]: ...


def generate(
    pair: "Pair",
    prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] = "",
    *,
    source: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | None = None,
    growth: Growth | TreeShape | None = None,
    law: Law | None = None,
    drafter: Drafter | Sequence[Drafter] | None = None,
    verifier: Verifier | None = None,
    sampling: Sampling | None = None,
    coins: Coins | Sequence[Coins] | None = None,
    max_new_tokens: int = 128,
    stop_strings: Sequence[str] | str = (),
    logprobs: Literal["raw", "processed"] | None = None,
    observer: Observer | None = None,
    places: int | None = None,
) -> Generation | list[Generation | Failed]:
    """Continue a prompt, or several side by side, by tree-based speculative decoding.

    Several prompts share the passes of the target and, if it drafts, of the draft model (`decode_many`);
    each gives what it gives alone.

    Args:
        pair: target, draft and tokenizer, as returned by `load_pair`.
        prompt: text or token ids; or a sequence of these. No chat template is applied. For an
            encoder-decoder the beginning of its answer, by default the decoder's start token alone, which
            is put before a text; token ids are taken as they are.
        source: what an encoder-decoder reads, text or token ids; for several prompts one for each. Tokens
            that the decoder is forced to write first or last are settings of `sampling.processors`.
        growth: the tree to draft; `TreeShape.expansion([3, 2, 1, 1])` by default.
        law: how children are chosen. The default is the only law that the growth allows, if there is just
            one; else DETERMINISTIC at temperature 0, and WITHOUT_REPLACEMENT above.
        drafter: your own draft source, instead of `growth` and `law`; for several prompts, one for each.
        verifier: the acceptance rule. By default `greedy` at temperature 0, else the rule of the law
            (`verify.RULE_OF_LAW`), decided on the host.
        sampling: temperature 0 by default; what the model's generation_config.json asks for is not used.
            Its processors learn here which tokens end the text, and `max_new_tokens`; so does the default
            drafter, but not a drafter of your own.
        coins: the source of all randomness, for several prompts one for each; `TorchCoins(0)` by default,
            for each prompt.
        max_new_tokens: at least 1.
        stop_strings: decoding ends after the token that completes one of these strings. The tokenizer's
            and the model's end-of-sequence tokens always end the text.
        logprobs: "raw" for the log-softmax of the model's logits, "processed" for that of the row which the
            token was drawn or chosen from (0 at temperature 0); each is the target's, given the text
            before the token.
        observer: notified of the stages of decoding.
        places: of several prompts, how many are decoded at the same time, by default all. Memory must hold
            their caches.

    Returns:
        The text and a summary. For several prompts a list, in which an error that only one text meets, such
        as a prompt or a source that is too long, is a `Failed` in its place.

    Raises:
        InvalidArgument: if an argument has the wrong type; if a drafter is given together with `growth` or
            `law`, or without a verifier at temperature > 0; if several prompts share drafter or coins.
        InvalidStop: if a stop string is empty.
        EmptyPrompt, InvalidPrompt, InvalidBudget, ContextOverflow, NonFiniteLogits, RefusedTree: see
            `decode`.
        InvalidPrompt: also if a source is empty, or longer than the encoder takes.
        UnsupportedModel: if there is a source, but the target has no encoder.

    Example:
        >>> from treespec import TreeShape, generate, load_pair
        >>> pair = load_pair("embedded")
        >>> result = generate(pair, "def main(", growth=TreeShape.expansion([3, 2]), max_new_tokens=8)
        >>> len(result.tokens), result.steps <= 8
        (8, True)
        >>> generate(pair, ["import os", "def main("], max_new_tokens=8)[1].text == result.text
        True
    """
    able("pair", pair, "target draft tokenizer end_tokens", "a pair of models: load_pair(...)")
    if sampling is not None:
        able("sampling", sampling, "rows greedy", "a Sampling, or None")
    sampling = sampling or Sampling(temperature=0.0)
    if getattr(sampling, "processors", None) is not None:
        sampling = sampling.ending(pair.end_tokens, max_new_tokens)
    if places is not None:
        integer("places", places, least=1)
    if logprobs not in (None, "raw", "processed"):
        raise InvalidArgument(f"logprobs = {logprobs!r}, but must be 'raw', 'processed' or None")
    if drafter is not None and (growth is not None or law is not None):
        raise InvalidArgument(
            "growth and law configure the model drafter: give either them or a drafter of your own"
        )
    if drafter is not None and verifier is None and not sampling.greedy:
        raise InvalidArgument(
            "which rule is lossless depends on how the drafter draws: give a verifier too"
        )
    law = Law.of(law) if law else _usual_law(growth, sampling)
    verifier = verifier or verifier_for(usual_rule(law, sampling), pair.target)
    shape = TreeShape.expansion([3, 2, 1, 1]) if growth is None else growth
    stop = stop_at_tokens(pair.end_tokens)
    if stop_strings:
        stop = any_of(stop, stop_at_strings(stop_strings, pair.tokenizer))

    def behind(source: Any) -> "Pair":
        return pair if source is None else pair.on(source)

    def text_of(name: str, prompt: Any, own: "Pair", drafter: Any, coins: Any) -> Text:
        ids = _ids(name, prompt, pair)
        return Text(
            make_target(own.target),
            make_drafter(own.draft, shape, law, sampling) if drafter is None else drafter,
            verifier,
            torch.tensor(ids, dtype=torch.long, device=pair.target.device),
            sampling=sampling,
            coins=coins or TorchCoins(0),
            max_new_tokens=max_new_tokens,
            stop=stop,
            observer=observer,
        )

    several = _several(prompt)
    if several is None:
        told = _Told(pair.tokenizer, logprobs)
        for step in text_of("prompt", prompt, behind(source), drafter, coins).steps():
            told.hear(step)
        return told.generation()
    drafters, all_coins = _one_each("drafter", drafter, several), _one_each("coins", coins, several)
    sources = _one_each("source", source, several)
    failed: dict[int, Failed] = {}
    texts: dict[int, Text] = {}
    for i, given in enumerate(several):
        try:
            own = behind(sources[i])
        except InvalidPrompt as error:  # only this text meets it
            failed[i] = Failed(InvalidPrompt(f"source[{i}]: {error}"))
        else:
            texts[i] = text_of(f"prompt[{i}]", given, own, drafters[i], all_coins[i])
    found = [_Told(pair.tokenizer, logprobs) for _ in several]
    numbers = [*texts]
    for place, step in decode_many([*texts.values()], places=places):
        if isinstance(step, Failed):
            failed[numbers[place]] = step
        else:
            found[numbers[place]].hear(step)
    return [failed.get(i) or told.generation() for i, told in enumerate(found)]


class _Told:
    """What the steps of a text have given so far.

    Args:
        tokenizer: decodes the tokens.
        logprobs: see `generate`.
    """

    def __init__(self, tokenizer: Any, logprobs: Literal["raw", "processed"] | None) -> None:
        self._tokenizer, self._logprobs = tokenizer, logprobs
        self._tokens: list[int] = []
        self._accepted: list[int] = []
        self._chances: list[float] = []
        self._drafted = 0

    def hear(self, step: Step) -> None:
        """Add a step, before the next one is requested."""
        self._tokens += step.tokens
        self._accepted.append(step.verdict.accepted)
        self._drafted += step.tree.shape.size - 1
        if self._logprobs is not None:
            self._chances += log_probabilities(step, raw=self._logprobs == "raw")

    def generation(self) -> Generation:
        """The text, once it has ended."""
        return Generation(
            tokens=tuple(self._tokens),
            text=str(self._tokenizer.decode(self._tokens, skip_special_tokens=True)),
            steps=len(self._accepted),
            emitted=sum(self._accepted) + len(self._accepted),
            drafted=self._drafted,
            accepted_per_step=tuple(self._accepted),
            logprobs=None if self._logprobs is None else tuple(self._chances),
        )


def _several(prompt: Any) -> tuple[Any, ...] | None:
    """The prompts, if there are several; None for a text, and for a row of token ids."""
    items = plain_items(prompt) or ()
    nested = (isinstance(item, str) or plain_items(item) is not None for item in items)
    return items if any(nested) else None


def _one_each(name: str, given: Any, prompts: Sequence[Any]) -> tuple[Any, ...]:
    """The part of each prompt; None for all if none is given."""
    if given is None:
        return (None,) * len(prompts)
    items = plain_items(given)
    if items is None:
        raise InvalidArgument(
            f"{name} = {shown(given)} would serve {len(prompts)} prompts, but belongs to one text: give a "
            "sequence, with one for each prompt"
        )
    if len(items) != len(prompts):
        raise InvalidArgument(f"{len(items)} {name} for {len(prompts)} prompts: give one for each")
    return items


def _ids(name: str, prompt: Any, pair: "Pair") -> list[int]:
    """The token ids of a prompt, behind the start token of an encoder-decoder."""
    if isinstance(prompt, str):
        start: Sequence[int] = getattr(pair.target, "start_tokens", ())
        return [*start, *pair.tokenizer.encode(prompt, add_special_tokens=not start)]
    given = sequence(name, prompt, "token ids", InvalidPrompt)
    return [integer(f"{name}[{i}]", token, 0, InvalidPrompt) for i, token in enumerate(given)]


def log_probabilities(step: Step, *, raw: bool) -> list[float]:
    """The target's log-probability of each kept token of a decoded step, given the text before it.

    Args:
        step: as `decode` yields it, read before the next step: a captured pass lends its logits.
        raw: by the log-softmax of the model's logits, rather than of the row that decided.
    """
    found = []
    for node, token in zip(step.verdict.path, step.tokens, strict=False):
        if raw:
            row = wide(step.scores.logits[node]).log_softmax(-1)
        else:
            assert step.rows is not None
            row = step.rows[node].log()
        found.append(float(row[token]))
    return found


def _usual_law(growth: Growth | TreeShape | None, sampling: Sampling) -> Law:
    """The only law that the growth allows, or the usual law at this temperature if it allows several."""
    laws = laws_along(growth)
    return next(iter(laws)) if len(laws) == 1 else usual_law(sampling)
