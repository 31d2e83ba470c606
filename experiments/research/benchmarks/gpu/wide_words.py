"""The embedded pair in the shape and with as many words as Llama 3, without changing its texts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treespec.experiments.run.prompts import embedded_prompts
from treespec.models.load import Pair, load_pair
from treespec.models.transformers_model import TransformersModel

LLAMA_WORDS = 128_256


def enlarged_pair(
    shape: Mapping[str, int], words: int | None, device: torch.device, tokens: int
) -> tuple[Pair, dict[str, float]]:
    """The embedded pair in bfloat16, its target enlarged, and facts about it to be recorded.

    Args:
        shape: the target's shape (`load_pair(enlarge=...)`).
        words: how many both models know; None for their own.
        device: where both are.
        tokens: of the text by which further words are chosen (`widened`).
    """
    pair = load_pair("embedded", dtype="bfloat16", device=device, enlarge=shape)
    if words is None:
        return pair, {}
    (given,) = embedded_prompts(pair.tokenizer, 1, tokens)
    pair, mass = widened(pair, words, torch.tensor(given.ids, device=device))
    return pair, {"mass_of_further_words": mass}


@torch.no_grad()
def widened(pair: Pair, words: int, text: Tensor) -> tuple[Pair, float]:
    """A pair whose rows have `words` logits.

    Further words are copies of the word that both models hold to be least probable in a text. So the best
    word after a prefix stays the best, and all copies together are about as improbable as `words` times the
    least probable word: the returned number, to be recorded.

    Args:
        pair: a pair loaded from weights; it is changed and must not be used afterwards.
        words: more than it has.
        text: `[T]` token ids.
    """
    rows = [_mean_row(model, text) for model in (pair.target, pair.draft)]
    copied = int(torch.maximum(*rows).argmin())
    mass = max(float(row[copied]) for row in rows) * (words - len(rows[0]))
    target, draft = (_widened(model, words, copied) for model in (pair.target, pair.draft))
    return replace(pair, target=target, draft=draft), mass


def _mean_row(model: TransformersModel, text: Tensor) -> Tensor:
    twin = model.fresh()
    twin.prefill(text[:1])
    logits = twin.run(text[1:], tuple(range(-1, len(text) - 2))).logits
    return logits.float().softmax(-1).mean(0)


def _widened(model: TransformersModel, words: int, copied: int) -> TransformersModel:
    with model.as_transformers() as given:
        plain: Any = given
        count = plain.get_input_embeddings().weight.shape[0]
        plain.resize_token_embeddings(words, mean_resizing=False)
        for table in (plain.get_input_embeddings(), plain.get_output_embeddings()):
            table.weight[count:] = table.weight[copied]
        return TransformersModel(plain.requires_grad_(False))
