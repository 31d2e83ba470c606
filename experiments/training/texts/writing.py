"""Let a target write texts, many side by side: by our own engine, or by transformers' `generate`.

Each text has its own uniforms, so it depends on its prompt, its seed and its temperature; on its neighbours
only as far as rounding does, which can decide between near-ties. Both writers take the same uniforms and
draw by inverse CDF, so that they write the same texts up to rounding.

On a CPU the engine writes: texts that have ended leave the batch at once, and prompts are not padded. On a
GPU `generate` does: a pass takes no longer for more texts there, while the engine's loops in Python do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from treespec.batch import Failed, Text, decode_many
from treespec.draft import NoDrafter
from treespec.errors import InvalidArgument
from treespec.experiments.errors import ConfigError
from treespec.experiments.training.texts.sieve import stop_at_loop
from treespec.sampling.coins import TorchCoins, inverse_cdf
from treespec.sampling.distributions import Sampling
from treespec.stopping import any_of, stop_at_tokens
from treespec.target.make import make_target
from treespec.verify import naive

if TYPE_CHECKING:
    from treespec.models.load import Pair


@dataclass(frozen=True)
class Order:
    """A text to write.

    Args:
        prompt: token ids.
        temperature: 0 for greedy.
        seed: seed of the text's uniforms.
        most: tokens to write at most; an end token ends the text before, and is kept.
    """

    prompt: tuple[int, ...]
    temperature: float
    seed: int
    most: int


Told = Callable[[int], None]
"""Called with a number of tokens as soon as they are written."""

Write = Callable[[Sequence[Order], Told], list[list[int]]]
"""Writes texts side by side; gives the new tokens of each."""


def writer_for(pair: "Pair") -> tuple[str, Write]:
    """The writer for the device of a target, and its name."""
    if pair.target.device.type == "cpu":
        return "engine", partial(write_by_engine, pair)
    return "generate", partial(write_by_generate, pair)


def write_by_engine(pair: "Pair", orders: Sequence[Order], told: Told) -> list[list[int]]:
    """Write by `treespec.decode_many` without a draft; a text that loops is not written to its end.

    Raises:
        ConfigError: if memory does not hold the caches of the batch.
    """
    texts = [
        Text(
            make_target(pair.target),
            NoDrafter(),
            naive,
            torch.tensor(order.prompt, dtype=torch.long, device=pair.target.device),
            Sampling(temperature=order.temperature),
            TorchCoins(order.seed),
            max_new_tokens=order.most,
            stop=any_of(stop_at_tokens(pair.end_tokens), stop_at_loop(len(order.prompt))),
        )
        for order in orders
    ]
    written: list[list[int]] = [[] for _ in texts]
    try:
        for i, step in decode_many(texts):
            if isinstance(step, Failed):
                raise step.error
            written[i] += step.tokens
            told(len(step.tokens))
    except (InvalidArgument, torch.OutOfMemoryError) as error:
        raise ConfigError(f"--batch = {len(orders)}: {error}") from None
    return written


def write_by_generate(pair: "Pair", orders: Sequence[Order], told: Told) -> list[list[int]]:
    """Write by one `generate` of transformers, padded on the left.

    Raises:
        ConfigError: if memory does not hold the batch.
    """
    if not orders:
        return []
    from transformers import GenerationConfig

    from treespec.experiments.run.transformers_hooks import plain_twin

    device, ends = pair.target.device, sorted(pair.end_tokens)
    prompts = [torch.tensor(order.prompt, dtype=torch.long, device=device) for order in orders]
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_side="left")
    ids, mask = pad(prompts), pad([torch.ones_like(prompt) for prompt in prompts])
    settings = GenerationConfig(
        max_new_tokens=max(order.most for order in orders),
        do_sample=False,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
    )
    try:
        with torch.inference_mode():
            found = cast(Any, plain_twin(pair.target)).generate(
                ids,
                attention_mask=mask,
                generation_config=settings,
                logits_processor=[_OwnUniforms(orders, ids.shape[1], device)],
                stopping_criteria=[_Counting(ids.shape[1], ends, told)],
            )
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"--batch = {len(orders)}: {error}") from None
    rows = found[:, ids.shape[1] :].tolist()
    return [
        _cut(row[: order.most], pair.end_tokens) for order, row in zip(orders, rows, strict=True)
    ]


def _cut(row: list[int], ends: frozenset[int]) -> list[int]:
    """A row up to and with its first end token."""
    return row[: next((i + 1 for i, token in enumerate(row) if token in ends), len(row))]


class _OwnUniforms:
    """A logits processor after which the best token of each row is the one that the text's coins draw."""

    def __init__(self, orders: Sequence[Order], start: int, device: torch.device) -> None:
        self._start = start
        self._temperatures = [order.temperature for order in orders]
        most = max(order.most for order in orders)
        uniforms = [TorchCoins(order.seed).uniforms(most) for order in orders]
        self._uniforms = torch.tensor(uniforms, dtype=torch.float64, device=device)
        self._drawn = [i for i, temperature in enumerate(self._temperatures) if temperature > 0]

    def __call__(
        self, ids: Int[Tensor, "B T"], scores: Float[Tensor, "B V"]
    ) -> Float[Tensor, "B V"]:
        """The scores, with all but the drawn token banned in rows that are sampled."""
        if not self._drawn:
            return scores
        heat = torch.tensor([self._temperatures[i] for i in self._drawn], device=scores.device)
        probabilities = (scores[self._drawn].float() / heat[:, None]).softmax(-1)
        uniforms = self._uniforms[self._drawn, ids.shape[1] - self._start]
        tokens = inverse_cdf(probabilities, uniforms[:, None])
        scores[self._drawn] = torch.full_like(scores[self._drawn], -torch.inf).scatter(
            1, tokens, 0.0
        )
        return scores


class _Counting:
    """A stopping criterion that stops nothing, and tells how many texts have got a token."""

    def __init__(self, start: int, ends: Sequence[int], told: Told) -> None:
        self._start, self._ends, self._told = start, ends, told
        self._done: Tensor | None = None

    def __call__(self, ids: Int[Tensor, "B T"], scores: object, **more: object) -> Tensor:
        """False for every text."""
        done = torch.zeros_like(ids[:, 0], dtype=torch.bool) if self._done is None else self._done
        self._told(int((~done).sum()))
        self._done = done | torch.isin(ids[:, -1], torch.tensor(self._ends, device=ids.device))
        return torch.zeros_like(done)
