"""Measure what the parts of a step cost on a pair: whole steps of `treespec.decode`, taken apart.

Every sample comes out of a real step of the real loop: drafter, target, rule and commit as in a run, on a
text of the config's prompts. So caches, pending tokens and the order of passes are those of a run. Trees of
all shapes and plain decoding take turns, because machines drift; the first round warms up. A turn begins
with steps that do not count (`WARM_UP_STEPS`): a text that is decoded by one method finds what its own
steps read in the caches. For the same reason a tree comes behind one that is hardly smaller. Where others
use the caches too, time empties them: after a pass over 64 nodes, which took 27 ms, one over 2 took
4.4 ms, after others like it 2.7 (two cores of an Intel Xeon, 100 MB of weights). Rounds that something
else disturbed are measured again.

One family of trees gives all tables (`bundle`): their sizes are those asked for, their second level expands
W nodes to one child each, the third W nodes to two, so that the difference is what drawing costs. What it
costs for more nodes than the largest bundle has on a level is the difference of two trees of one round.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from treespec.experiments.config.schema import Config
from treespec.experiments.records.machine_load import LoadWatch
from treespec.experiments.records.manifest import environment, now
from treespec.experiments.run.models import weights_data
from treespec.experiments.search_then_run.profile.loop import Loop
from treespec.experiments.search_then_run.profile.plan import Setting
from treespec.experiments.search_then_run.profile.rounds import Round, judged
from treespec.experiments.search_then_run.profile.samples import Samples
from treespec.search.growth import Eagle2
from treespec.target import make_target
from treespec.tree import Law, TreeShape

if TYPE_CHECKING:
    from treespec.models.load import Pair

__all__ = ["Timed", "about_times", "profile_pair"]

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

ROUNDS_PER_EXTRA = 2
"""For so many rounds that were asked for, one more is measured at most, instead of a disturbed one."""


@dataclass(frozen=True)
class Timed:
    """What was measured.

    Args:
        parts: samples of the rounds that count, and of the part of one that the user interrupted.
        rounds: whole rounds that count.
        measured: whole rounds, with those that were disturbed and measured again.
        disturbed: what disturbed the rounds that count, as a sentence; None if nothing did.
        interrupted: whether the user stopped it.
    """

    parts: tuple[Samples, ...]
    rounds: int
    measured: int
    disturbed: str | None
    interrupted: bool


def profile_pair(
    pair: "Pair",
    settings: Sequence[Setting],
    prefixes: Sequence[int],
    text: Callable[[int, int], Sequence[int]],
    *,
    repeats: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
    watch: Callable[[], LoadWatch] = LoadWatch,
) -> Timed:
    """Measure all settings after all prefixes, round after round.

    Args:
        pair: the models.
        settings: laws, rules and trees.
        prefixes: committed tokens before the root.
        text: gives so many token ids of a real text; a number chooses which.
        repeats: rounds that count; one more warms up, and up to half as many again are measured instead of
            rounds that something else disturbed.
        seed: of coins and of the order.
        progress: told what is measured next, once for each setting and prefix of a round.
        watch: gives what watches other processes from then on.

    Returns:
        The samples; of whole rounds so far and a part of one, if the user interrupted.
    """
    order = random.Random(seed)
    places = [(setting, prefix) for setting in settings for prefix in prefixes]
    rounds: list[Round] = []
    most = repeats + -(-repeats // ROUNDS_PER_EXTRA)
    part, whole, interrupted = Samples(), watch(), False
    load = whole
    try:
        _measure_round(pair, places, text, order, Samples(), "warming up", progress)
        while len(rounds) < repeats or (len(rounds) < most and judged(rounds).calm < repeats):
            number = len(rounds) + 1
            role = f" of {repeats}" if number <= repeats else ", instead of a disturbed one"
            part, load = Samples(), watch()
            _measure_round(pair, places, text, order, part, f"round {number}{role}", progress)
            rounds.append(Round(part, load.busy_percent()))
            part = Samples()
    except KeyboardInterrupt:
        interrupted = True
    begun = [Round(part, load.busy_percent())] if part.shared else []  # the one that was stopped
    if not rounds and not begun:
        return Timed((part,), 0, 0, None, interrupted)
    if all(one.busy is None for one in (*rounds, *begun)):  # too short for the counters
        busy = whole.busy_percent()
        rounds, begun = ([Round(one.samples, busy) for one in some] for some in (rounds, begun))
    kept = judged(rounds).best(repeats) if rounds else None
    whole_rounds = kept.rounds if kept else []
    counted = judged([*whole_rounds, *begun]) if begun or kept is None else kept
    return Timed(
        tuple(one.samples for one in counted.rounds),
        len(whole_rounds),
        len(rounds),
        counted.sentence(len(rounds) + len(begun)),
        interrupted,
    )


def _measure_round(
    pair: "Pair",
    places: Sequence[tuple[Setting, int]],
    text: Callable[[int, int], Sequence[int]],
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


def _measure_place(trees: Loop, alone: Loop, order: random.Random, into: Samples) -> None:
    """A step of each shape, the smallest first, and before or behind them some of plain decoding.

    Args:
        trees: drafts the setting's shapes.
        alone: decodes plainly.
        order: draws who is next.
        into: gets the times.
    """
    second: dict[tuple[int, int], float] = {}

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
        _measure_deciding(order, into.of_law[str(trees.setting.law)]["decide"][None])
    draw = into.of_law[str(trees.setting.law)]["draw"]
    for (width, most), taken in second.items():
        if most == 2 and (width, 1) in second:  # as many nodes had one child each in another step
            draw[None][width].append(max(0.0, taken - second[width, 1]))


def _warm(loop: Loop, shape: TreeShape) -> None:
    """Steps of a shape that do not count."""
    for _ in range(WARM_UP_STEPS):
        loop.step(shape)


def _measure_tree(
    loop: Loop, shape: TreeShape, into: Samples, second: dict[tuple[int, int], float]
) -> None:
    """One step of a shape.

    Args:
        loop: that drafts trees.
        shape: of this step.
        into: gets the times.
        second: gets the time of the second level, by its nodes and the most children of one.
    """
    of_law, prefix = into.of_law[str(loop.setting.law)], loop.prefix
    seconds = loop.step(shape)
    if seconds is None:
        return
    places = (("verify", prefix, shape.size), ("commit", None, shape.size), ("rest", None, None))
    for name, at, size in places:
        into.shared[name][at][size].append(max(0.0, seconds[name]))
    of_law["accept"][None][shape.size].append(seconds["accept"])
    levels = seconds["levels"]
    of_law["assemble"][None][shape.size].append(max(0.0, seconds["draft"] - sum(levels)))
    if len(shape.children[0]) == 1:
        of_law["first"][prefix][None].append(levels[0])
    for level, expanded in enumerate(_expanded(shape)):
        width, most = len(expanded), max(expanded)
        if level and most == 1:
            of_law["level"][prefix][width].append(levels[level])
        elif level == 2:  # the same nodes' parents had one child each
            of_law["draw"][None][width].append(max(0.0, levels[2] - levels[1]))
        if level == 1:
            second[width, most] = levels[1]


def _measure_plain(loop: Loop, into: Samples) -> None:
    """A step of plain decoding."""
    seconds = loop.step(ROOT)
    if seconds is None:
        return
    of_law = into.of_law[str(loop.setting.law)]
    of_law["plain"][loop.prefix][None].append(seconds["whole"])
    of_law["assemble"][None][1].append(seconds["draft"])
    of_law["accept"][None][1].append(seconds["accept"])
    into.shared["verify"][loop.prefix][1].append(seconds["verify"])
    into.shared["commit"][None][1].append(seconds["commit"])


def _measure_deciding(order: random.Random, into: Any) -> None:
    """Time a decision of EAGLE-2, whose work all growths share: values along paths, and the best of them.

    What a tree that grows takes to decide where is timed on made-up probabilities, without a model.

    Args:
        order: draws the probabilities.
        into: gets the seconds, in lists by size.
    """
    for size in DECIDED_SIZES:
        # A new shape each time, since a drafter's is new at each level.
        shape = TreeShape((-1, *((node - 1) // DECIDED_CHILDREN for node in range(1, size))))
        probs = torch.tensor([order.random() for _ in range(size)])
        growth = Eagle2(DECIDED_CHILDREN, shape.depth + 1, max(1, size // 2))
        start = time.perf_counter()
        growth.next(shape, lambda probs=probs: probs)
        growth.keep(shape, lambda probs=probs: probs)
        into[size].append((time.perf_counter() - start) / 2)


def _expanded(shape: TreeShape) -> list[list[int]]:
    """The numbers of children, by level, of the nodes that have some."""
    levels: list[list[int]] = [[] for _ in range(shape.depth)]
    for node in shape.internal:
        levels[shape.depths[node]].append(len(shape.children[node]))
    return levels


def about_times(config: Config, pair: "Pair", timed: Timed, repeats: int) -> dict[str, Any]:
    """What was measured, on what, and how often."""
    return {
        "measured": now(),
        "pair": pair.name,
        "models": config.models.model_dump(mode="json"),
        "target": weights_data(pair.target)
        | {"attention": pair.target.attention, "passes": pair.target.passes.kind},
        "draft": weights_data(pair.draft)
        | {"attention": pair.draft.attention, "passes": pair.draft.passes.kind},
        "rounds": timed.rounds,
        "rounds_wanted": repeats,
        "rounds_measured": timed.measured,
        **environment(),
    }
