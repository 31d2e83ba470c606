"""Whole steps of `treespec.decode` on a text of about one length, each with a tree of its own, timed."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from treespec.decoding import decode
from treespec.draft import ModelDrafter, NoDrafter, StaticGrowth
from treespec.draft.undrafted import Undrafted
from treespec.experiments.config.build import plain_method
from treespec.experiments.measure.profile.plan import Setting, drift_of
from treespec.experiments.run.observers import StageTimer
from treespec.protocols import Observer, Target
from treespec.sampling.coins import TorchCoins
from treespec.step import Step
from treespec.target import make_target
from treespec.tree import TreeShape
from treespec.verify import verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair

Text = Callable[[int, int], Sequence[int]]
"""Gives so many token ids of a real text; a number chooses which."""

TimedDrafter: TypeAlias = ModelDrafter | Undrafted | NoDrafter
"""A drafter whose trees are told by their growth, or one that drafts nothing."""

growth_of = lru_cache(maxsize=1024)(StaticGrowth)
"""The growth of a shape, made once: as in a run, what follows from the shape is then known to it."""


class Loop:
    """The loop on a text of about one length: it starts over when the text has grown too long.

    The first text is as long as is drawn, within `drift_of` the prefix length, and later ones begin at the
    lower end. So whatever comes first or last is after texts of all these lengths, prefix length in the
    mean: had all texts begun at the lower end, what comes first would always be after shorter ones.

    Args:
        pair: the models.
        target: of this loop alone.
        setting: law, rule and trees.
        prefix: committed tokens before the root.
        text: the texts.
        seed: of coins and texts.
        plain: decode without a draft.
        behind: gives the pair behind the source of a text, by the number of the text; by default `pair`.
    """

    def __init__(
        self,
        pair: "Pair",
        target: Target,
        setting: Setting,
        prefix: int,
        text: Text,
        seed: int,
        plain: bool = False,
        behind: "Callable[[int], Pair] | None" = None,
    ) -> None:
        self.setting, self.prefix = setting, prefix
        self._behind = behind
        self._pair, self._target, self._text, self._seed = pair, target, text, seed
        without = plain_method("plain", {setting.name: setting.sampling}).choices[setting.name]
        self._choice, self._plain = without if plain else setting, plain
        self._drafter: TimedDrafter = NoDrafter()
        self._coins = TorchCoins(seed)
        self._steps: Iterator[Step] = iter(())
        self._drift = drift_of(prefix, len(setting.shapes))
        self._ahead = random.Random(seed).randrange(2 * self._drift + 1)
        self._deepest = max(setting.shapes, key=lambda shape: shape.depth)
        self._length, self._limit = 0, prefix + self._drift + 1
        self.timer = StageTimer()

    def start(self) -> None:
        """Start over on the next text."""
        length = max(1, self.prefix - self._drift + self._ahead) + 1  # and the root
        self._seed, self._ahead = self._seed + 1, 0
        self._begin(length)
        self._length = length

    def _begin(self, length: int) -> None:
        """Begin a text of so many tokens."""
        prompt = self._prompt(self._seed, length)
        if self._behind is not None:
            self._pair = self._behind(self._seed)
            self._target = make_target(self._pair.target)
        self.timer = StageTimer(prompt.device)
        self._drafter = self._made_drafter(self._pair, self.timer)
        self._steps = decode(
            self._target,
            self._drafter,
            verifier_for(self._choice.rule, self._pair.target),
            prompt,
            sampling=self._choice.sampling,
            coins=self._coins,
            max_new_tokens=self._room(length),
            observer=self.timer,
        )

    def _prompt(self, number: int, length: int) -> Int[Tensor, "_"]:
        return torch.tensor(self._text(number, length), device=self._pair.target.device)

    def _room(self, length: int) -> int:
        """The new tokens for which there is room behind a text."""
        context = min(self._pair.target.max_length, self._pair.draft.max_length)
        return max(1, context - length - self._deepest.depth)

    def _made_drafter(self, pair: "Pair", observer: Observer) -> TimedDrafter:
        """A drafter that tells the observer its levels."""
        from treespec.models.load import NoDraftModel

        choice = self._choice
        if self._plain:
            return NoDrafter()
        growth = growth_of(self._deepest)
        if self.setting.make is not None:
            return self.setting.make(pair, growth, observer)
        if isinstance(pair.draft, NoDraftModel):
            return Undrafted(growth, pair.target.vocab_size, observer)
        # Not by `Method.drafter`: this one times its levels, and gets another shape at each step.
        return ModelDrafter(pair.draft, growth, choice.law, choice.sampling, observer)

    def step(self, shape: TreeShape) -> dict[str, Any] | None:
        """Seconds of one step with this tree: its stages, the whole, and the levels of its draft."""
        if not 0 < self._length <= self._limit:
            self.start()
            self._advance(shape)  # the prefill, and a step that is not like others after it
        return self._advance(shape)

    def _advance(self, shape: TreeShape) -> dict[str, Any] | None:
        draft_next(self._drafter, shape)
        before = {name: len(seconds) for name, seconds in self.timer.seconds.items()}
        self.timer.clock.settle()
        start = time.perf_counter()
        step = next(self._steps, None)
        if step is None:
            self._length = 0
            return None
        self.timer.clock.settle()
        whole = time.perf_counter() - start
        self._length += len(step.tokens)
        new = {name: seconds[before.get(name, 0) :] for name, seconds in self.timer.seconds.items()}
        levels = new.pop("level", [])
        stages = {name: sum(seconds) for name, seconds in new.items() if name != "prefill"}
        return {"whole": whole, "rest": whole - sum(stages.values()), "levels": levels, **stages}


def draft_next(drafter: TimedDrafter, shape: TreeShape) -> None:
    """Let a drafter propose this shape next, unless it drafts nothing."""
    if isinstance(drafter, ModelDrafter | Undrafted):
        drafter.growth = growth_of(shape)
