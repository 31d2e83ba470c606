"""Batches of texts that may be kept: written by the target, or given."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from treespec.experiments.run.seeds import seed_of
from treespec.experiments.training.texts.prompts_asked import Prompts
from treespec.experiments.training.texts.sieve import Candidate
from treespec.experiments.training.texts.writing import Order, Told, Write


class Batches(Protocol):
    """Makes one batch after another; a batch depends on its number only."""

    def batch(self, number: int, told: Told) -> list[Candidate] | None:
        """The texts of a batch; None if there are no more."""
        ...


@dataclass(frozen=True)
class WrittenBatches:
    """Texts that the target writes.

    What is random about a text (its prompt, whether it is greedy, its uniforms) comes from the seed and its
    number.

    Args:
        prompts: where prompts come from.
        write: writes texts side by side.
        size: texts of a batch.
        answer: tokens of an answer at most.
        temperature: of sampled answers, and of invented prompts.
        greedy: share of answers that are written greedily.
        seed: of everything.
        context: tokens that the target can read.
        invented: tokens of an invented prompt at most.
    """

    prompts: Prompts
    write: Write
    size: int
    answer: int
    temperature: float
    greedy: float
    seed: int
    context: int
    invented: int

    def batch(self, number: int, told: Told) -> list[Candidate]:
        """Begin the prompts, let the target end those that it invents, and answer all of them."""
        indices = range(number * self.size, (number + 1) * self.size)
        chances = [random.Random(seed_of(self.seed, "text", index)) for index in indices]
        greedy = [rng.random() < self.greedy or not self.temperature for rng in chances]
        begun = [self.prompts.begin(i, rng) for i, rng in zip(indices, chances, strict=True)]
        seeds = [seed_of(self.seed, "prompt", index) for index in indices]
        inventing = [k for k, prompt in enumerate(begun) if prompt.words is not None]
        orders = [
            Order(begun[k].ids, self.temperature or 1.0, seeds[k], self.invented) for k in inventing
        ]
        completions = dict(zip(inventing, self.write(orders, told) if orders else [], strict=True))
        prompts = [
            self.prompts.end(prompt, completions[k]) if k in completions else prompt.ids
            for k, prompt in enumerate(begun)
        ]
        asked = [(k, prompt) for k, prompt in enumerate(prompts) if prompt and self._fits(prompt)]
        orders = [
            Order(
                prompt,
                0.0 if greedy[k] else self.temperature,
                seed_of(seeds[k], "answer"),
                self.answer,
            )
            for k, prompt in asked
        ]
        answers = self.write(orders, told) if orders else []
        answer_of = {k: answer for (k, _), answer in zip(asked, answers, strict=True)}
        found = []
        for k, prompt in enumerate(prompts):
            if not prompt:
                found.append(Candidate(np.zeros(0, np.int64), fault="prompt not ended"))
            elif k not in answer_of:
                found.append(Candidate(np.zeros(0, np.int64), fault="prompt too long"))
            else:
                ids = np.array([*prompt, *answer_of[k]], np.int64)
                found.append(Candidate(ids, len(prompt), greedy[k], k in completions))
        return found

    def _fits(self, prompt: Sequence[int]) -> bool:
        return len(prompt) + self.answer <= self.context


@dataclass(frozen=True)
class GivenBatches:
    """Texts that are there already, in a shuffled order.

    Args:
        texts: token ids of each, and how many of them are its prompt.
        size: texts of a batch.
        seed: of the order.
    """

    texts: Sequence[tuple[tuple[int, ...], int]]
    size: int
    seed: int

    @cached_property
    def order(self) -> list[int]:
        """The indices of all texts, shuffled."""
        order = [*range(len(self.texts))]
        random.Random(seed_of(self.seed, "order")).shuffle(order)
        return order

    def batch(self, number: int, told: Told) -> list[Candidate] | None:
        """The next texts in the order."""
        chosen = self.order[number * self.size : (number + 1) * self.size]
        if not chosen:
            return None
        found = [Candidate(np.array(self.texts[i][0], np.int64), self.texts[i][1]) for i in chosen]
        told(sum(len(text.answer) for text in found))
        return found
