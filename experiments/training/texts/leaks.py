"""Find held-out prompts in texts: data that heads are trained on must not hold what they are measured on.

A text leaks a prompt if it holds 13 tokens in a row of it. The tokens of the chat template, which all texts
share, are no part of a prompt. A prompt of fewer tokens is leaked by a text that has the same prompt.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Integer

from treespec.experiments.config.schema import (
    ChatPrompts,
    EmbeddedPrompts,
    Prompts,
    TaskPrompts,
)
from treespec.experiments.run.prompts import TUNING, TUNING_FROM, encode, read_prompts
from treespec.experiments.training.texts.chat import Chat
from treespec.experiments.training.texts.grams import gram_hashes

LEAK = 13
"""Tokens in a row that make a leak."""


@dataclass(frozen=True)
class HeldOutPrompts:
    """What must not be in the data.

    Args:
        contents: token ids of prompts, without the chat template.
        whole: token ids of prompts as the target reads them, with the chat template.
    """

    contents: tuple[tuple[int, ...], ...]
    whole: frozenset[tuple[int, ...]]


def held_out_prompts(tokenizer: Any) -> HeldOutPrompts:
    """Our prompts that runs measure and choose shapes on.

    For a tokenizer with a chat template these are the 96 chat prompts and the 48 for tuning, else the
    held-out files and the tasks of the embedded pair.
    """
    chat = Chat.of(tokenizer)
    if chat is None:
        configs = EmbeddedPrompts(kind="embedded"), TaskPrompts(kind="tasks")
        texts = [prompt.text for config in configs for prompt in read_prompts(config)]
        ids = tuple(tuple(tokenizer.encode(text, verbose=False)) for text in texts)
        return HeldOutPrompts(ids, frozenset(ids))
    tuning = ChatPrompts(kind="chat", skip=TUNING_FROM, count=TUNING)
    prompts = [*read_prompts(ChatPrompts(kind="chat")), *read_prompts(tuning)]
    contents = (tokenizer.encode(prompt.text, add_special_tokens=False) for prompt in prompts)
    return HeldOutPrompts(
        tuple(map(tuple, contents)),
        frozenset(tuple(chat.prompt([("user", prompt.text)])) for prompt in prompts),
    )


def prompts_of(config: Prompts, tokenizer: Any) -> HeldOutPrompts:
    """The prompts of a config, of which all turns are held out."""
    raw = read_prompts(config)[: config.count]
    contents = []
    for prompt in raw:
        start = config.start + prompt.start
        for text in (*(said for _, said in prompt.before), prompt.text):
            ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)[start:]
            contents.append(tuple(ids[: config.tokens]))
    encoded = encode(raw, config, tokenizer)
    return HeldOutPrompts(tuple(contents), frozenset(prompt.ids for prompt in encoded))


class Leaks:
    """Finds held-out prompts in one text after another."""

    def __init__(self, held_out: HeldOutPrompts) -> None:
        hashes = [gram_hashes(content, LEAK) for content in held_out.contents]
        self._hashes = np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *hashes]))
        self._whole = held_out.whole

    def found(self, ids: Sequence[int] | Integer[np.ndarray, "T"], prompt: int) -> bool:
        """Whether a text leaks a held-out prompt.

        Args:
            ids: the text with its prompt.
            prompt: number of tokens of its prompt.
        """
        hashes = gram_hashes(ids, LEAK)
        # Faster than isin, which would sort all held-out hashes for every text.
        places = np.searchsorted(self._hashes[:-1], hashes)
        leaked = len(self._hashes) > 0 and bool((self._hashes[places] == hashes).any())
        return leaked or tuple(map(int, ids[:prompt])) in self._whole


def leaks(
    texts: Iterable[Sequence[int] | Integer[np.ndarray, "_"]],
    prompt_lengths: Iterable[int],
    held_out: HeldOutPrompts,
) -> list[int]:
    """The indices of texts that leak a held-out prompt.

    Args:
        texts: token ids of texts, each with its prompt and the chat template.
        prompt_lengths: number of tokens of each text's prompt.
        held_out: see `held_out_prompts`.
    """
    found = Leaks(held_out).found
    pairs = zip(texts, prompt_lengths, strict=True)
    return [i for i, (ids, prompt) in enumerate(pairs) if found(ids, int(prompt))]
