"""Measure how long the parts of a step take on a pair: whole steps of `treespec.decode`, taken apart.

Every sample comes from a real step of the real loop: drafter, target, rule and commit as in a run, on a
text of the config's prompts. So caches, pending tokens and the order of passes are those of a run. Trees of
all shapes and plain decoding take turns, because machines drift; the first round warms up. A turn begins
with steps that do not count (`WARM_UP_STEPS`), because a text that is decoded by one method finds in the
caches what its own steps read. For the same reason a tree follows one that is hardly smaller: right after a
pass over 64 nodes, which took 27 ms, a pass over 2 took 4.4 ms, after passes like it 2.7 (two cores of an
Intel Xeon, 100 MB of weights).

One family of trees gives all tables (`bundle`): their sizes are those asked for, their second level expands
W nodes to one child each, the third W nodes to two, so that the difference is what drawing costs. For more
nodes than the largest bundle has on a level, it is the difference of two trees of one round.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from treespec.decoding import decode
from treespec.draft import ModelDrafter, NoDrafter, StaticGrowth
from treespec.draft.undrafted import Undrafted
from treespec.experiments.config.build import plain_method
from treespec.experiments.measure.profile.plan import Setting, drift_of
from treespec.experiments.run.observers import StageTimer, synchronizer
from treespec.sampling.coins import TorchCoins
from treespec.search.growth import Eagle2
from treespec.step import Step
from treespec.target import make_target
from treespec.tree import Law, TreeShape
from treespec.verify import verifier_for

if TYPE_CHECKING:
    from treespec.models.load import Pair

ROOT = TreeShape.chain(0)

PLAIN_STEPS = 4
"""Steps of plain decoding in a round; each is one sample."""

WARM_UP_STEPS = 4
"""Steps at the beginning of a turn that do not count. Where passes over one node and over several read two
copies of 36 MB of weights, beside a cache of 32 MiB, those over one took 1.56, 1.41, 1.32, 1.21, 1.18 and,
at the seventh, 1.06 ms after the others (two cores of an AMD EPYC)."""

DECIDED_SIZES = (1, 8, 64, 256, 1024, 2048)
"""Nodes drafted so far when a growth decides; growths draft many times the nodes that they keep."""
DECIDED_CHILDREN = 8

Samples: TypeAlias = dict[tuple[str, str, int | None, int | None], list[float]]
"""Measured seconds by law (empty for what all laws share), table, prefix and size; None where these do not
matter."""

Text = Callable[[int, int], Sequence[int]]
"""Gives so many token ids of a real text; a number chooses which."""


def pass_seconds(
    model: Any, rows: int, parents: Sequence[int] | None = None, *, first_token: int = 0
) -> float:
    """Seconds of one pass of a model over `rows` nodes, after what its cache holds.

    The cache is as long afterwards as before. Warming up, turns and medians are up to the caller.

    Args:
        model: the model or a runner of it, with a prompt in its cache.
        rows: number of nodes, the root included.
        parents: the tree; a chain by default, since its shape does not change the work.
        first_token: token id of the first node; the others count up from it.
    """
    device = model.device
    tokens = torch.arange(first_token, first_token + rows, device=device) % model.vocab_size
    tree, wait = tuple(range(-1, rows - 1) if parents is None else parents), synchronizer(device)
    wait()
    start = time.perf_counter()
    model.run(tokens, tree)
    wait()
    seconds = time.perf_counter() - start
    model.keep(())
    return seconds


def measure_round(
    pair: "Pair",
    places: Sequence[tuple[Setting, int]],
    text: Text,
    order: random.Random,
    into: Samples,
    name: str,
    progress: Callable[[str], None],
) -> None:
    """Everything once: places in a drawn order, and in each place trees and plain steps likewise."""
    drafted, plain = make_target(pair.target), make_target(pair.target)
    for setting, prefix in order.sample(places, len(places)):
        progress(f"{name}: {setting.law}, prefix {prefix}")
        trees = Loop(pair, drafted, setting, prefix, text, order.randrange(1 << 30))
        alone = Loop(pair, plain, setting, prefix, text, order.randrange(1 << 30), plain=True)
        _measure_place(trees, alone, order, into)


def _measure_place(trees: "Loop", alone: "Loop", order: random.Random, into: Samples) -> None:
    """A step of each shape, the smallest first, and before or after them some of plain decoding."""
    second: dict[tuple[int, int], float] = {}
    law = str(trees.setting.law)

    def each_shape() -> None:
        shapes = sorted(trees.setting.shapes, key=lambda shape: shape.size)
        _warm(trees, shapes[0])
        for shape in shapes:
            _measure_tree(trees, shape, into, second)

    def plainly() -> None:
        _warm(alone, ROOT)
        for _ in range(PLAIN_STEPS):
            _measure_plain(alone, into)

    for turn in order.sample([each_shape, plainly], 2):
        turn()
    if trees.setting.law is Law.DETERMINISTIC:
        _measure_deciding(order, law, into)
    for (width, most), taken in second.items():
        if most == 2 and (width, 1) in second:  # as many nodes had one child each in another step
            _put(into, law, "draw", None, width, taken - second[width, 1])


def _warm(loop: "Loop", shape: TreeShape) -> None:
    for _ in range(WARM_UP_STEPS):
        loop.step(shape)


def _put(
    into: Samples, law: str, name: str, prefix: int | None, size: int | None, seconds: float
) -> None:
    into.setdefault((law, name, prefix, size), []).append(max(0.0, seconds))


def _measure_tree(
    loop: "Loop", shape: TreeShape, into: Samples, second: dict[tuple[int, int], float]
) -> None:
    """One step of a shape; `second` gets the time of its second level, by nodes and most children."""
    law, prefix, size = str(loop.setting.law), loop.prefix, shape.size
    seconds = loop.step(shape)
    if seconds is None:
        return
    levels = seconds["levels"]
    _put(into, "", "verify", prefix, size, seconds["verify"])
    _put(into, "", "commit", None, size, seconds["commit"])
    _put(into, "", "rest", None, None, seconds["rest"])
    _put(into, law, "accept", None, size, seconds["accept"])
    _put(into, law, "assemble", None, size, seconds["draft"] - sum(levels))
    if len(shape.children[0]) == 1:
        _put(into, law, "first", prefix, None, levels[0])
    expanded: list[list[int]] = [[] for _ in range(shape.depth)]  # numbers of children, by level
    for node in shape.internal:
        expanded[shape.depths[node]].append(len(shape.children[node]))
    for level, children in enumerate(expanded):
        width, most = len(children), max(children)
        if level and most == 1:
            _put(into, law, "level", prefix, width, levels[level])
        elif level == 2:  # the same nodes' parents had one child each
            _put(into, law, "draw", None, width, levels[2] - levels[1])
        if level == 1:
            second[width, most] = levels[1]


def _measure_plain(loop: "Loop", into: Samples) -> None:
    seconds = loop.step(ROOT)
    if seconds is None:
        return
    law, prefix = str(loop.setting.law), loop.prefix
    _put(into, law, "plain", prefix, None, seconds["whole"])
    _put(into, law, "assemble", None, 1, seconds["draft"])
    _put(into, law, "accept", None, 1, seconds["accept"])
    _put(into, "", "verify", prefix, 1, seconds["verify"])
    _put(into, "", "commit", None, 1, seconds["commit"])


def _measure_deciding(order: random.Random, law: str, into: Samples) -> None:
    """Time decisions of EAGLE-2 on drawn probabilities; the work is the same for all growths.

    It consists of values along paths, and the best of them.
    """
    for size in DECIDED_SIZES:
        # A new shape each time, since a drafter's is new at each level.
        shape = TreeShape((-1, *((node - 1) // DECIDED_CHILDREN for node in range(1, size))))
        probs = torch.tensor([order.random() for _ in range(size)])
        growth = Eagle2(DECIDED_CHILDREN, shape.depth + 1, max(1, size // 2))
        start = time.perf_counter()
        growth.next(shape, lambda probs=probs: probs)
        growth.keep(shape, lambda probs=probs: probs)
        _put(into, law, "decide", None, size, (time.perf_counter() - start) / 2)


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
        text: the texts.
        seed: of coins and texts.
        plain: decode without a draft.
    """

    def __init__(
        self,
        pair: "Pair",
        target: Any,
        setting: Setting,
        prefix: int,
        text: Text,
        seed: int,
        plain: bool = False,
    ) -> None:
        self.setting, self.prefix = setting, prefix
        self._pair, self._target, self._text, self._seed = pair, target, text, seed
        without = plain_method("plain", {setting.name: setting.sampling}).choices[setting.name]
        self._choice, self._plain = without if plain else setting, plain
        self._drafter: ModelDrafter | Undrafted | NoDrafter = NoDrafter()
        self._coins = TorchCoins(seed)
        self._steps: Iterator[Step] = iter(())
        self._drift = drift_of(prefix, len(setting.shapes))
        self._ahead = random.Random(seed).randrange(2 * self._drift + 1)
        self._deepest = max(setting.shapes, key=lambda shape: shape.depth)
        self._length, self._limit = 0, prefix + self._drift + 1
        self.timer = StageTimer()

    def start(self) -> None:
        from treespec.models.load import NoDraftModel

        pair, choice, deepest = self._pair, self._choice, self._deepest
        length = max(1, self.prefix - self._drift + self._ahead) + 1  # and the root
        self._seed, self._ahead = self._seed + 1, 0
        prompt = torch.tensor(self._text(self._seed, length), device=pair.target.device)
        self.timer = StageTimer(prompt.device)
        if not self._plain and isinstance(pair.draft, NoDraftModel):
            vocab_size = pair.target.vocab_size
            self._drafter = Undrafted(_growth(deepest), vocab_size, self.timer)
        elif not self._plain:
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
        """Seconds of one step with this tree: its stages, the whole, and the levels of its draft."""
        if not 0 < self._length <= self._limit:
            self.start()
            self._advance(shape)  # the prefill, and a step that is not like others after it
        return self._advance(shape)

    def _advance(self, shape: TreeShape) -> dict[str, Any] | None:
        if isinstance(self._drafter, ModelDrafter | Undrafted):
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
