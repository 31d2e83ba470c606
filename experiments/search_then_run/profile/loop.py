"""The loop of a run, a step at a time, for trees that change from step to step."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from treespec.coins import TorchCoins
from treespec.decoding import decode
from treespec.draft import ModelDrafter, NoDrafter, StaticGrowth
from treespec.experiments.config.build import plain_method
from treespec.experiments.run.observers import StageTimer
from treespec.experiments.search_then_run.profile.plan import Setting, drift_of
from treespec.step import Step
from treespec.tree import TreeShape
from treespec.verify import verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Loop"]


_growth = lru_cache(maxsize=1024)(StaticGrowth)
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
        text: gives so many token ids of a real text; a number chooses which.
        seed: of coins and texts.
        plain: decode without a draft.
    """

    def __init__(
        self,
        pair: "Pair",
        target: Any,
        setting: Setting,
        prefix: int,
        text: Callable[[int, int], Sequence[int]],
        seed: int,
        plain: bool = False,
    ) -> None:
        self.setting, self.prefix = setting, prefix
        self._pair, self._target, self._text, self._seed = pair, target, text, seed
        without = plain_method("plain", {setting.name: setting.sampling}).choices[setting.name]
        self._choice, self._plain = without if plain else setting, plain
        self._drafter: ModelDrafter | NoDrafter = NoDrafter()
        self._coins = TorchCoins(seed)
        self._steps: Iterator[Step] = iter(())
        self._drift = drift_of(prefix, len(setting.shapes))
        self._ahead = random.Random(seed).randrange(2 * self._drift + 1)
        self._deepest = max(setting.shapes, key=lambda shape: shape.depth)
        self._length, self._limit = 0, prefix + self._drift + 1
        self.timer = StageTimer()

    def start(self) -> None:
        """Begin with a text of its own."""
        pair, choice, deepest = self._pair, self._choice, self._deepest
        length = max(1, self.prefix - self._drift + self._ahead) + 1  # and the root
        self._seed, self._ahead = self._seed + 1, 0
        prompt = torch.tensor(self._text(self._seed, length), device=pair.target.device)
        self.timer = StageTimer(prompt.device)
        if not self._plain:
            # Not by `Method.drafter`: this one times its levels, and gets another shape at each step.
            self._drafter = ModelDrafter(
                pair.draft, _growth(deepest), choice.law, choice.sampling, self.timer
            )
        room = min(pair.target.max_length, pair.draft.max_length) - length - deepest.depth
        self._steps = decode(
            self._target,
            self._drafter,
            verifier_for(choice.rule, pair.target),
            prompt,
            sampling=choice.sampling,
            coins=self._coins,
            max_new_tokens=max(1, room),
            observer=self.timer,
        )
        self._length = length

    def step(self, shape: TreeShape) -> dict[str, Any] | None:
        """Seconds of the stages of one step, of the whole of it, and of its draft's levels.

        Args:
            shape: that is drafted, one of the setting; plain decoding drafts none.
        """
        if not 0 < self._length <= self._limit:
            self.start()
            self._advance(shape)  # the prefill, and a step that is not like others after it
        return self._advance(shape)

    def _advance(self, shape: TreeShape) -> dict[str, Any] | None:
        if isinstance(self._drafter, ModelDrafter):
            self._drafter.growth = _growth(shape)
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
