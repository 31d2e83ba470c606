"""The loop of a run, a step at a time, for trees that change from step to step."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.coins import TorchCoins
from treespec.decoding import decode
from treespec.draft import StaticGrowth, make_drafter
from treespec.experiments.config.build import plain_method
from treespec.experiments.run.observers import StageTimer
from treespec.experiments.search_then_run.profile.plan import Setting, drift_of
from treespec.step import Step
from treespec.tree import TreeShape
from treespec.verify import verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Loop"]


class _Watched(StaticGrowth):
    """One shape after the other, drafted as a run drafts it, with the moments when levels begin.

    Args:
        shapes: that will grow.
        settle: waits for the device, so that on a GPU, too, the moments say what the levels cost.
    """

    def __init__(self, shapes: Sequence[TreeShape], settle: Callable[[], None]) -> None:
        super().__init__(shapes[0])
        self.max_depth = max(shape.depth for shape in shapes)
        self._settle = settle
        self.moments: list[float] = []

    def grow(self, shape: TreeShape) -> None:
        """Grow this shape from now on."""
        self.shape = shape.breadth_first()

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """Nothing: asked only for a shape that is a root alone."""
        return ()

    def began(self) -> None:
        """Note the moment."""
        self._settle()
        self.moments.append(time.perf_counter())


class Loop:
    """The loop on a text of about one length: it starts anew when the text has grown too long.

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
        self.growth = _Watched(setting.shapes, lambda: self.timer.clock.settle())
        self._pair, self._target, self._text, self._seed = pair, target, text, seed
        without = plain_method("plain", {setting.name: setting.sampling}).choices[setting.name]
        self._choice = without if plain else setting
        self._tree = TreeShape.chain(0) if plain else self.growth
        self._coins = TorchCoins(seed)
        self._steps: Iterator[Step] = iter(())
        self._drift = drift_of(prefix, len(setting.shapes))
        self._length, self._limit = 0, prefix + self._drift + 1
        self.timer = StageTimer()

    def start(self) -> None:
        """Begin with a text of its own."""
        pair = self._pair
        length = max(1, self.prefix - self._drift) + 1  # and the root
        self._seed += 1
        prompt = torch.tensor(self._text(self._seed, length), device=pair.target.device)
        self.timer = StageTimer(prompt.device)
        choice = self._choice
        drafter = make_drafter(pair.draft, self._tree, choice.law, choice.sampling)
        room = min(pair.target.max_length, pair.draft.max_length) - length - drafter.max_depth
        self._steps = decode(
            self._target,
            drafter,
            verifier_for(choice.rule, pair.target),
            prompt,
            sampling=choice.sampling,
            coins=self._coins,
            max_new_tokens=max(1, room),
            observer=self.timer,
        )
        self._length = length

    def step(self) -> dict[str, Any] | None:
        """Seconds of the stages of one step, of the whole of it, and of its draft's levels."""
        if not 0 < self._length <= self._limit:
            self.start()
            self._advance()  # the prefill, and a step that is not like others after it
        return self._advance()

    def _advance(self) -> dict[str, Any] | None:
        before = {name: len(seconds) for name, seconds in self.timer.seconds.items()}
        self.timer.clock.settle()
        self.growth.moments = []
        start = time.perf_counter()
        step = next(self._steps, None)
        if step is None:
            self._length = 0
            return None
        self.timer.clock.settle()
        whole = time.perf_counter() - start
        self._length += len(step.tokens)
        stages = {
            name: sum(seconds[before.get(name, 0) :])
            for name, seconds in self.timer.seconds.items()
            if name != "prefill"
        }
        moments = self.growth.moments
        levels = [after - at for at, after in pairwise(moments)]
        return {"whole": whole, "rest": whole - sum(stages.values()), "levels": levels, **stages}
