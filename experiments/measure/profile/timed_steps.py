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
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from treespec.experiments.measure.profile.batch_loop import BatchLoop
from treespec.experiments.measure.profile.loop import Loop, Text
from treespec.experiments.measure.profile.plan import Setting
from treespec.experiments.run.observers import synchronizer
from treespec.search.growth import Eagle2
from treespec.target import make_target
from treespec.tree import Law, TreeShape

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


class Place(NamedTuple):
    """Where a time belongs: law (empty for what all laws share), table, prefix, size and texts of a batch.

    Prefix and size are None where they do not matter.
    """

    law: str
    table: str
    prefix: int | None
    size: int | None
    texts: int = 1


Samples: TypeAlias = dict[Place, list[float]]
"""Measured seconds by place."""


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
    behind: "Callable[[int], Pair] | None" = None,
) -> None:
    """Everything once: places in a drawn order, and in each place trees and plain steps likewise."""
    most = max(setting.texts for setting, _ in places)
    drafted, plain = ([make_target(pair.target) for _ in range(most)] for _ in range(2))
    for setting, prefix in order.sample(places, len(places)):
        texts = setting.texts
        progress(f"{name}: {setting.law}, prefix {prefix}{f', {texts} texts' * (texts > 1)}")
        given = setting, prefix, text
        seeds = order.randrange(1 << 30), order.randrange(1 << 30)
        trees = _loop(pair, drafted[:texts], *given, seeds[0], behind=behind)
        alone = _loop(pair, plain[:texts], *given, seeds[1], plain=True, behind=behind)
        _measure_place(trees, alone, order, into)


def _loop(pair: "Pair", targets: Sequence[Any], *given: Any, **options: Any) -> Loop:
    """The loop on as many texts as there are targets."""
    if len(targets) > 1:
        return BatchLoop(pair, targets, *given, **options)
    return Loop(pair, targets[0], *given, **options)


def _measure_place(trees: Loop, alone: Loop, order: random.Random, into: Samples) -> None:
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
        _measure_deciding(order, trees.setting, into)
    for (width, most), taken in second.items():
        if most == 2 and (width, 1) in second:  # as many nodes had one child each in another step
            _put(into, trees.setting, law, "draw", None, width, taken - second[width, 1])


def _warm(loop: Loop, shape: TreeShape) -> None:
    for _ in range(WARM_UP_STEPS):
        loop.step(shape)


def _put(
    into: Samples,
    setting: Setting,
    law: str,
    name: str,
    prefix: int | None,
    size: int | None,
    seconds: float,
) -> None:
    place = Place(law, name, prefix, size, setting.texts)
    into.setdefault(place, []).append(max(0.0, seconds))


def _measure_tree(
    loop: Loop, shape: TreeShape, into: Samples, second: dict[tuple[int, int], float]
) -> None:
    """One step of a shape; `second` gets the time of its second level, by nodes and most children."""
    law, prefix, size = str(loop.setting.law), loop.prefix, shape.size
    seconds = loop.step(shape)
    if seconds is None:
        return
    levels, put = seconds["levels"], partial(_put, into, loop.setting)
    put("", "verify", prefix, size, seconds["verify"])
    put("", "commit", None, size, seconds["commit"])
    put("", "rest", None, None, seconds["rest"])
    put(law, "accept", None, size, seconds["accept"])
    put(law, "assemble", None, size, seconds["draft"] - sum(levels))
    if len(shape.children[0]) == 1:
        put(law, "first", prefix, None, levels[0])
    expanded: list[list[int]] = [[] for _ in range(shape.depth)]  # numbers of children, by level
    for node in shape.internal:
        expanded[shape.depths[node]].append(len(shape.children[node]))
    for level, children in enumerate(expanded):
        width, most = len(children), max(children)
        if level and most == 1:
            put(law, "level", prefix, width, levels[level])
        elif level == 2:  # the same nodes' parents had one child each
            put(law, "draw", None, width, levels[2] - levels[1])
        if level == 1:
            second[width, most] = levels[1]


def _measure_plain(loop: Loop, into: Samples) -> None:
    seconds = loop.step(ROOT)
    if seconds is None:
        return
    law, prefix, put = str(loop.setting.law), loop.prefix, partial(_put, into, loop.setting)
    put(law, "plain", prefix, None, seconds["whole"])
    put(law, "assemble", None, 1, seconds["draft"])
    put(law, "accept", None, 1, seconds["accept"])
    put("", "verify", prefix, 1, seconds["verify"])
    put("", "commit", None, 1, seconds["commit"])


def _measure_deciding(order: random.Random, setting: Setting, into: Samples) -> None:
    """Time decisions of EAGLE-2 on drawn probabilities; the work is the same for all growths.

    It consists of values along paths, and the best of them. Each text of a batch decides by itself.
    """
    for size in DECIDED_SIZES:
        # A new shape each time, since a drafter's is new at each level.
        shape = TreeShape((-1, *((node - 1) // DECIDED_CHILDREN for node in range(1, size))))
        probs = torch.tensor([order.random() for _ in range(size)])
        growth = Eagle2(DECIDED_CHILDREN, shape.depth + 1, max(1, size // 2))
        start = time.perf_counter()
        growth.next(shape, lambda probs=probs: probs)
        growth.keep(shape, lambda probs=probs: probs)
        taken = setting.texts * (time.perf_counter() - start) / 2
        _put(into, setting, str(setting.law), "decide", None, size, taken)
