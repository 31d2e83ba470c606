"""Held-out prompts with the target's own greedy answers, and what the target says about them.

Both stay the same while a draft is trained, so they are computed once.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from jaxtyping import Float, Int
from pydantic import model_validator
from torch import Tensor

from treespec.batch import Failed, Text, decode_many
from treespec.draft import NoDrafter
from treespec.errors import InvalidArgument, Unreadable
from treespec.experiments.errors import ConfigError
from treespec.features import Features
from treespec.files import DATA_BYTES, read_bytes, write_whole
from treespec.models.transformers_model import TransformersModel
from treespec.reading_models import Strict, read_model
from treespec.sampling.coins import TorchCoins
from treespec.sampling.distributions import Sampling
from treespec.stopping import Stop
from treespec.target import ModelTarget
from treespec.verify import greedy

POSITIONS = 512
"""Default number of held-out positions, of all answers together."""
DEPTH = 8
"""Depth of the deepest trees."""
BEYOND = DEPTH - 1
"""Tokens that an answer goes on beyond its end, so that the last step of every tree is whole."""
PLACES = 32
"""Answers that are written at the same time."""


class HeldOut(Strict):
    """Held-out prompts and the target's own greedy answers."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids, at least two each: a trained head knows nothing before the second token."""
    answers: tuple[tuple[int, ...], ...]
    """Token ids after each prompt, `BEYOND` of them past the end of the answer."""
    kept: tuple[int, ...]
    """Positions of each answer that count: up to its end."""

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if not len(self.prompts) == len(self.answers) == len(self.kept) > 0:
            raise ValueError(
                "must have as many answers and numbers of kept tokens as prompts, at least one"
            )
        for i, (prompt, answer, kept) in enumerate(
            zip(self.prompts, self.answers, self.kept, strict=True)
        ):
            if len(prompt) < 2:
                raise ValueError(f"prompts[{i}] has {len(prompt)} tokens, but must have at least 2")
            if not 1 <= kept <= len(answer) - BEYOND:
                raise ValueError(
                    f"kept[{i}] must be at least 1, and at most the tokens of answers[{i}] less {BEYOND}"
                )
        return self

    @property
    def positions(self) -> int:
        """Positions that count, of all answers together."""
        return sum(self.kept)

    def save(self, path: Path) -> None:
        """Write a JSON file, whole or not at all.

        Raises:
            OSError: if it cannot be written.
        """
        write_whole(path, self.model_dump_json())

    @classmethod
    def load(cls, path: Path) -> "HeldOut":
        """Read what `save` wrote.

        Raises:
            ConfigError: if there is no such file, or it holds something else.
        """
        try:
            return read_model(cls, read_bytes(path, DATA_BYTES))
        except Unreadable as error:
            raise ConfigError(
                f"{path} does not hold held-out answers ({error}): remove it, and they are written again"
            ) from None


def answered(
    target: TransformersModel,
    prompts: Sequence[Sequence[int]],
    *,
    positions: int = POSITIONS,
    stop: Stop = lambda ids: False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> HeldOut:
    """Let the target answer prompts greedily, side by side.

    Args:
        target: the target.
        prompts: token ids of held-out prompts.
        positions: positions of all answers together, in equal parts; fewer if answers stop earlier.
        stop: ends an answer.
        progress: called with the tokens that are written and those that there can be.

    Raises:
        InvalidArgument: if there are no prompts, or one has fewer than two tokens.
        InvalidPrompt, ContextOverflow, NonFiniteLogits: see `treespec.decode`.
    """
    if not prompts or min(map(len, prompts)) < 2:
        raise InvalidArgument("the metric needs held-out prompts, each of at least two tokens")
    budget = max(positions // len(prompts), 1)
    texts = [
        Text(
            ModelTarget(target), NoDrafter(), greedy, torch.tensor(prompt, device=target.device),
            Sampling(temperature=0.0), TorchCoins(i), max_new_tokens=budget + BEYOND,
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip
    answers: list[list[int]] = [[] for _ in prompts]
    for done, (i, step) in enumerate(decode_many(texts, places=PLACES)):
        if isinstance(step, Failed):
            raise step.error
        answers[i] += step.tokens
        progress(done + 1, len(prompts) * (budget + BEYOND))
    kept = [
        _end([*prompt], answer, budget, stop)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return HeldOut(
        prompts=tuple(map(tuple, prompts)),
        answers=tuple(tuple(a[: k + BEYOND]) for a, k in zip(answers, kept, strict=True)),
        kept=tuple(kept),
    )


def _end(ids: list[int], answer: Sequence[int], budget: int, stop: Stop) -> int:
    """How many tokens of an answer count."""
    for count, token in enumerate(answer[:budget], 1):
        ids.append(token)
        if stop(ids):
            return count
    return budget


class TargetSays:
    """What a target says about held-out answers: features and logits, each computed when first asked for.

    The logits of 512 positions take 110 MB at a vocabulary of 49,152.

    Args:
        target: the target.
        held_out: the answers that it wrote.
        kept: the tokens that all drafts which are compared can draft; None for all.
    """

    def __init__(
        self,
        target: TransformersModel,
        held_out: HeldOut,
        kept: Int[Tensor, " v"] | None = None,
    ) -> None:
        self.target, self.held_out, self.kept = target, held_out, kept
        self._features: dict[tuple[object, ...], list[Tensor | None]] = {}
        self.texts = [
            tuple(torch.tensor(part, device=target.device) for part in text)
            for text in zip(held_out.prompts, held_out.answers, strict=True)
        ]

    @torch.inference_mode()
    def features(self, reads: Features) -> list[Float[Tensor, "T F H"] | None]:
        """For each text the features of all tokens but the last; None if nothing is read."""
        if reads.states not in self._features:
            twin = self.target.fresh()
            twin.lend(reads)
            lent = [twin.prefill(torch.cat(text)[:-1]) for text in self.texts]
            self._features[reads.states] = lent
        return self._features[reads.states]

    @cached_property
    @torch.inference_mode()
    def logits(self) -> list[Float[Tensor, "m V"]]:
        """For each text those from which each token of its answer came."""
        twin, found = self.target.fresh(), []
        for prompt, answer in self.texts:
            twin.prefill(prompt[:-1])
            roots = torch.cat([prompt[-1:], answer[:-1]])
            found.append(twin.run(roots, tuple(range(-1, len(roots) - 1))).logits)
        return found
