"""Measure what the parts of a step cost on a pair: whole steps of `treespec.decode`, taken apart.

Every sample comes out of a real step of the real loop: drafter, target, rule and commit as in a run, on a
text of the config's prompts. So caches, pending tokens and the order of passes are those of a run. Shapes
take turns in rounds, because machines drift; the first round warms up.

One family of trees gives all tables (`bundle`): their sizes are those asked for, their second level expands
W nodes to one child each, the third W nodes to two, so that the difference is what drawing costs. What it
costs for more nodes than the largest bundle has on a level is the difference of two trees of one round.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.observers import StageTimer, synchronizer
from experiments.profile_shapes import Setting, drift_of
from treespec.coins import TorchCoins
from treespec.decode import decode
from treespec.draft import ModelDrafter, NoDrafter, StaticGrowth
from treespec.protocols import Drafter, Verifier
from treespec.step import Step
from treespec.target import make_target
from treespec.tree import TreeShape
from treespec.verify import RULES, on_host

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Rounds", "Samples", "profile_pair"]

PLAIN_STEPS = 4
"""Steps of plain decoding in a round; each is one sample."""


@dataclass
class Samples:
    """Seconds of everything that was measured, by table and place in it.

    Args:
        shared: `[name][prefix][size]`; the prefix is None where it does not matter.
        of_law: the same by law.
    """

    shared: dict[str, dict[int | None, dict[int | None, list[float]]]] = field(
        default_factory=lambda: defaultdict(_by_prefix)
    )
    of_law: dict[str, dict[str, dict[int | None, dict[int | None, list[float]]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(_by_prefix))
    )
    rounds: int = 0
    interrupted: bool = False


def _by_prefix() -> Any:
    return defaultdict(lambda: defaultdict(list))


def profile_pair(
    pair: "Pair",
    settings: Sequence[Setting],
    prefixes: Sequence[int],
    text: Callable[[int, int], Sequence[int]],
    *,
    repeats: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
) -> Samples:
    """Measure all settings behind all prefixes, round after round.

    Args:
        pair: the models.
        settings: laws, rules and trees.
        prefixes: committed tokens before the root.
        text: gives so many token ids of a real text; a number chooses which.
        repeats: rounds that count; one more warms up.
        seed: of coins and of the order.
        progress: told what is measured next, once for each setting and prefix of a round.

    Returns:
        The samples; of whole rounds so far and a part of one, if the user interrupted.
    """
    samples, rounds = Samples(), Rounds(pair, settings, prefixes, text, seed)
    try:
        for number in range(repeats + 1):
            name = "warming up" if not number else f"round {number} of {repeats}"
            rounds.measure(
                samples if number else Samples(),
                lambda what, name=name: progress(f"{name}: {what}"),
            )
            samples.rounds = number
    except KeyboardInterrupt:
        samples.interrupted = True
    return samples


class Rounds:
    """Rounds of measuring, each when it is asked for.

    Args:
        pair: the models.
        settings: laws, rules and trees.
        prefixes: committed tokens before the root.
        text: gives so many token ids of a real text; a number chooses which.
        seed: of coins and of the order.
    """

    def __init__(
        self,
        pair: "Pair",
        settings: Sequence[Setting],
        prefixes: Sequence[int],
        text: Callable[[int, int], Sequence[int]],
        seed: int,
    ) -> None:
        self._pair, self._text = pair, text
        self._places = [(setting, prefix) for setting in settings for prefix in prefixes]
        self._order = random.Random(seed)

    def measure(self, into: Samples, progress: Callable[[str], None] = lambda what: None) -> None:
        """One step of every tree behind every prefix, and some of plain decoding.

        Args:
            into: where the times go.
            progress: told what is measured next, once for each setting and prefix.
        """
        order, target = self._order, make_target(self._pair.target)
        for setting, prefix in order.sample(self._places, len(self._places)):
            progress(f"{setting.law}, prefix {prefix}")
            seed = order.randrange(1 << 30)
            loop = _Loop(self._pair, target, setting, prefix, self._text, seed)
            _measure_trees(loop, order.sample(setting.shapes, len(setting.shapes)), into)
            _measure_plain(loop, into)


class _Watched:
    """A growth of one shape after the other, that notes when each level begins.

    A level begins once the children of the one before have been read from the device, so that on a GPU,
    too, the moments say what the levels cost.
    """

    def __init__(self, shapes: Sequence[TreeShape]) -> None:
        self.max_depth = max(shape.depth for shape in shapes)
        self._growths = {shape: StaticGrowth(shape) for shape in shapes}
        self._growth = self._growths[shapes[0]]
        self.moments: list[float] = []

    def grow(self, shape: TreeShape) -> None:
        """Grow this shape from now on."""
        self._growth = self._growths[shape]

    def next(
        self, shape: TreeShape, probs: Callable[[], Float[Tensor, "N"]]
    ) -> Sequence[tuple[int, int]]:
        """The next level."""
        if shape.size == 1:
            self.moments = []
        self.moments.append(time.perf_counter())
        return self._growth.next(shape, probs)


class _Loop:
    """The loop on a text of about one length: it starts anew when the text has grown too long."""

    def __init__(
        self,
        pair: "Pair",
        target: Any,
        setting: Setting,
        prefix: int,
        text: Callable[[int, int], Sequence[int]],
        seed: int,
    ) -> None:
        self.setting, self.prefix = setting, prefix
        self.growth = _Watched(setting.shapes)
        self._pair, self._target, self._text, self._seed = pair, target, text, seed
        self._verifier: Verifier = on_host(setting.rule)
        self._coins = TorchCoins(seed)
        self._steps: Iterator[Step] = iter(())
        self._drift = drift_of(prefix, len(setting.shapes))
        self._length, self._limit = 0, prefix + self._drift + 1
        self.timer = StageTimer()

    def start(self, plain: bool = False) -> None:
        """Begin with a text of its own; plain: without a draft."""
        pair = self._pair
        length = max(1, self.prefix - self._drift) + 1  # and the root
        self._seed += 1
        prompt = torch.tensor(self._text(self._seed, length), device=pair.target.device)
        self.timer = StageTimer(synchronizer(prompt.device))
        drafter: Drafter = NoDrafter()
        verifier = self._verifier
        if not plain:
            drafter = ModelDrafter(pair.draft, self.growth, self.setting.law, self.setting.sampling)
        else:
            verifier = on_host(RULES["greedy" if self.setting.sampling.greedy else "naive"])
        room = min(pair.target.max_length, pair.draft.max_length) - length - drafter.max_depth
        self._steps = decode(
            self._target,
            drafter,
            verifier,
            prompt,
            sampling=self.setting.sampling,
            coins=self._coins,
            max_new_tokens=max(1, room),
            observer=self.timer,
        )
        self._length = length

    def step(self, plain: bool = False) -> dict[str, Any] | None:
        """Seconds of the stages of one step, of the whole of it, and of its draft's levels."""
        if not 0 < self._length <= self._limit:
            self.start(plain)
            self._advance()  # the prefill, and a step that is not like others after it
        return self._advance()

    def _advance(self) -> dict[str, Any] | None:
        before = {name: len(own) for name, own in self.timer.seconds.items()}
        self.timer.synchronize()
        start = time.perf_counter()
        step = next(self._steps, None)
        if step is None:
            self._length = 0
            return None
        self.timer.synchronize()
        whole = time.perf_counter() - start
        self._length += len(step.tokens)
        stages = {
            name: sum(own[before.get(name, 0) :])
            for name, own in self.timer.seconds.items()
            if name != "prefill"
        }
        moments = self.growth.moments
        levels = [after - at for at, after in pairwise(moments)]
        return {"whole": whole, "rest": whole - sum(stages.values()), "levels": levels, **stages}


def _measure_trees(loop: _Loop, shapes: Sequence[TreeShape], into: Samples) -> None:
    """One step of each shape."""
    own, prefix = into.of_law[str(loop.setting.law)], loop.prefix
    second: dict[tuple[int, int], float] = {}
    for shape in shapes:
        loop.growth.grow(shape)
        seconds = loop.step()
        if seconds is None:
            continue
        for name in ("verify", "commit", "rest"):
            at = prefix if name == "verify" else None
            size = None if name == "rest" else shape.size
            into.shared[name][at][size].append(max(0.0, seconds[name]))
        own["accept"][None][shape.size].append(seconds["accept"])
        levels = seconds["levels"]
        rest = max(0.0, seconds["draft"] - sum(levels))
        own["assemble"][None][shape.size].append(rest)
        if len(shape.children[0]) == 1:
            own["first"][prefix][None].append(levels[0])
        for level, expanded in enumerate(_expanded(shape)):
            width, most = len(expanded), max(expanded)
            if level and most == 1:
                own["level"][prefix][width].append(levels[level])
            elif level == 2:  # the same nodes' parents had one child each
                own["draw"][None][width].append(max(0.0, levels[2] - levels[1]))
            if level == 1:
                second[width, most] = levels[1]
    for (width, most), taken in second.items():
        if most == 2 and (width, 1) in second:  # as many nodes had one child each in another step
            own["draw"][None][width].append(max(0.0, taken - second[width, 1]))


def _measure_plain(loop: _Loop, into: Samples) -> None:
    """Some steps of plain decoding."""
    loop.start(plain=True)
    for i in range(PLAIN_STEPS + 1):
        seconds = loop.step(plain=True)
        if seconds is not None and i:
            own = into.of_law[str(loop.setting.law)]
            own["plain"][loop.prefix][None].append(seconds["whole"])
            own["assemble"][None][1].append(seconds["draft"])
            own["accept"][None][1].append(seconds["accept"])
            into.shared["verify"][loop.prefix][1].append(seconds["verify"])
            into.shared["commit"][None][1].append(seconds["commit"])


def _expanded(shape: TreeShape) -> list[list[int]]:
    """The numbers of children, by level, of the nodes that have some."""
    levels: list[list[int]] = [[] for _ in range(shape.depth)]
    for node in shape.internal:
        levels[shape.depths[node]].append(len(shape.children[node]))
    return levels
