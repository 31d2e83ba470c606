"""Trees that grow beside static ones: replayed with their own code, timed step by step, cross-fitted."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from treespec.plugins import Budget
from treespec.protocols import Growth
from treespec.search.choice.candidates import Limits, Room
from treespec.search.choice.cross_fitting import FOLDS
from treespec.search.choice.optimism import OPTIMISM_DRAWS, optimism
from treespec.search.choice.rows import Entry, Growing, Speed
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.errors import InvalidGrowth, InvalidTrace
from treespec.search.growth import CostAware, Eagle2, EqualGrowth, OptTree, SpecExec
from treespec.search.latency.errors import NotMeasured
from treespec.search.latency.interpolation import Term
from treespec.search.latency.step_parts import seconds_of
from treespec.search.rates.budget_replay import replay_budget
from treespec.search.rates.grown_steps import GrowthReplay
from treespec.search.rates.growth_replay import replay_growth
from treespec.shape import TreeShape

__all__ = ["DECIDING", "budgeted", "grown"]

SIZES = (8, 16, 32)
"""Nodes that growths of a fixed budget keep, where times were measured so far."""
LEAST_LEVEL_GAIN = 0.2
"""Expected tokens that a level of OPT-Tree must add."""
DECIDING = (
    "how long trees that grow take to decide where to go on was not timed, so that they look faster than "
    "they are"
)
"""What is missing where times are of an older profile."""
SOURCES_TAKE_TIME = (
    "what the source itself takes to read and to draft is not among these times: `treespec run` shows it "
    "beside a pass of the target"
)
ROOT = TreeShape.chain(0)


@dataclass(frozen=True, eq=False)
class _Replayed:
    """One growth on all texts: what it is, its steps, and their time, of each text and of all together."""

    growing: Growing
    replay: GrowthReplay
    seconds: Float[np.ndarray, "texts"]
    whole: Sequence[Term]

    @cached_property
    def emitted(self) -> Float[np.ndarray, "texts"]:
        """Tokens of each text."""
        return self.replay.emitted.astype(float)


def grown(side: TraceSpeed, limits: Limits, room: Room) -> tuple[list[Entry], list[str]]:
    """Growths over a small grid of their settings, by their own replay over measured time.

    Which is the best depends on texts and times as with static trees, so that it is cross-fitted as these
    are: the first row has the speed of choosing on some texts and valuing on the others, and a time made
    longer by what choosing among noisy times flatters it (`optimism`). Nothing else is fitted: each growth
    is replayed once.

    Args:
        side: trace and times.
        limits: what was asked for; with `sizes`, which a growth does not have, there are none.
        room: what trace and times leave of that.

    Returns:
        The growths with their speeds, in the order of the choice, and what is to be known of them.
    """
    if side.trace.draft_rows is None or limits.sizes or not room.wide or room.depth < 1:
        return [], []
    made = (
        (growing, lambda make=make: replay_growth(side.valued, make()))
        for growing, make in _grid(side, limits, room)
    )
    entries, notes = _fitted(side, made)
    if entries and side.parts_of_steps.law_times.decide is None:
        notes.append(f"{DECIDING}: profile again (`treespec profile`)")
    return entries, notes


def budgeted(side: TraceSpeed, limits: Limits, room: Room) -> tuple[list[Entry], list[str]]:
    """Budgets of a text source, by their own replay over measured time, as `grown` does it.

    No pass of a draft model is run, so that a step takes what its nodes take.

    Args:
        side: a trace with `text_drafts`, and times.
        limits: what was asked for.
        room: what trace and times leave of that.

    Returns:
        The budgets with their speeds, in the order of the choice, and what is to be known of them.
    """
    made = (
        (growing, partial(replay_budget, side.valued, budget))
        for growing, budget in _budgets(side, limits, room)
    )
    entries, notes = _fitted(side, made)
    return entries, [*notes, *([SOURCES_TAKE_TIME] if entries else [])]


def _fitted(
    side: TraceSpeed, made: Iterable[tuple[Growing, Callable[[], GrowthReplay]]]
) -> tuple[list[Entry], list[str]]:
    """What is replayed, with its speeds: the best one on all texts first, cross-fitted."""
    known, notes = [], []
    for growing, replayed in made:
        try:
            known.append(_replayed(growing, replayed(), side))
        except (InvalidTrace, InvalidGrowth, NotMeasured) as error:
            notes.append(f"{side.law}: {growing.name} was passed over: {error}")
    if not known:
        return [], notes
    every = np.ones(side.trace.texts, dtype=bool)
    best, *others = sorted(known, key=lambda one: -_speed_on(one, every))
    entries = [_entry(side, best, _cross_fitted(side, known, best), "cross-fitted")]
    entries += [
        _entry(side, one, _speed(side, one, one.emitted, one.seconds), "replay") for one in others
    ]
    return entries, notes


def _budgets(side: TraceSpeed, limits: Limits, room: Room) -> Iterator[tuple[Growing, Budget]]:
    """Chains and trees within what was recorded and measured, over a small grid."""
    drafts = side.trace.text_drafts
    assert drafts is not None
    known = drafts.budget
    depth = min(known.depth, side.deepest, known.depth if limits.depth is None else limits.depth)
    wide = min(known.branching, limits.branching or known.branching)
    largest = min(known.size, room.size)
    sizes = limits.sizes or sorted({*(size for size in SIZES if size <= largest), largest})
    for deep in range(1, min(depth, largest - 1) + 1):
        if limits.sizes is None or deep + 1 in limits.sizes:
            yield _budget(deep + 1, deep, 1)
    for size in sizes:
        for deep in sorted({max(1, depth // 2), depth}) if 3 <= size <= largest and depth else ():
            for branching in sorted({min(2, wide), wide} - {1}):
                yield _budget(size, deep, branching)


def _budget(size: int, depth: int, branching: int) -> tuple[Growing, Budget]:
    told = {"kind": "budget", "depth": depth, "size": size, "branching": branching}
    name = f"budget {branching}x{depth}, {size}"
    return Growing(name, told, 0.0, depth, 1.0), Budget(size, depth, branching)


def _grid(
    side: TraceSpeed, limits: Limits, room: Room
) -> Iterator[tuple[Growing, Callable[[], Growth]]]:
    """Growths with their settings, as far as rows and times reach, and what makes them.

    Static trees end where levels are too rare to have rates of; a growth needs rows alone.
    """
    rows, times = side.trace.draft_rows, side.times
    assert rows is not None
    depth = min(rows.depth, side.deepest, room.size - 1, limits.depth or rows.depth)
    most = times.latency.law_times(side.law, times.batch).level.largest(times.prefix)
    wide = min(rows.width, most or rows.width, limits.branching or rows.width)
    sizes = [size for size in SIZES if size <= room.size] or [room.size]
    depths = sorted({max(1, depth // 2), depth})
    asked: list[tuple[str, str, Callable[..., Growth], Mapping[str, int | float]]] = []
    for size in sizes:
        for deep in depths:
            for k in sorted({min(4, wide), wide}):
                settings = {"k": k, "depth": deep, "size": size}
                asked.append((f"EAGLE-2 {k}x{deep}, {size}", "eagle2", Eagle2, settings))
        settings = {"size": size, "branching": wide, "depth": depth}
        asked.append((f"SpecExec {size}", "specexec", SpecExec, settings))
        asked.append(
            (f"OPT-Tree {size}", "opt_tree", OptTree, settings | {"delta": LEAST_LEVEL_GAIN})
        )
    for width in sorted({min(2, wide), min(4, wide)}):
        size = min(1 + width * depth, room.size)
        settings = {"width": width, "depth": depth, "size": size}
        name = f"equal growth {width}x{depth}, {size}"
        asked.append((name, "equal_growth", EqualGrowth, settings))
    for name, kind, policy, chosen in asked:
        yield Growing(name, {"kind": kind, **chosen}, 0.0, depth, 1.0), partial(policy, **chosen)
    size = sizes[-1]
    told = {"kind": "cost_aware", "size": size, "depth": depth, "branching": wide}
    make = partial(CostAware, times.latency, size, depth, wide, prefix=times.prefix)
    yield Growing(f"cost-aware {size}", told, 0.0, depth, 1.0), make


def _replayed(growing: Growing, replay: GrowthReplay, side: TraceSpeed) -> _Replayed:
    """Raises NotMeasured if a step has a part whose time is not known."""
    sure = float(replay.sure.mean())
    described = replace(growing, nodes=replay.nodes_per_step, depth=replay.max_depth, sure=sure)
    terms = replay.terms(side.parts_of_steps)
    whole = [(curve, weights.sum(axis=0, keepdims=True)) for curve, weights in terms]
    return _Replayed(described, replay, seconds_of(terms), whole)


def _speed_on(one: _Replayed, texts: Bool[np.ndarray, "texts"]) -> float:
    """Tokens per second on some texts."""
    return float(one.emitted[texts].sum() / one.seconds[texts].sum())


def _cross_fitted(side: TraceSpeed, known: Sequence[_Replayed], best: _Replayed) -> Speed:
    """The speed of choosing on some texts and valuing on the others, as of static trees."""
    folds = min(FOLDS, side.texts)
    part_of = side.parts(folds)
    emitted, taken = np.zeros(side.trace.texts), np.zeros(side.trace.texts)
    for part in range(folds):
        mine = part_of == part
        chosen = max(known, key=lambda one: _speed_on(one, ~mine))
        emitted[mine], taken[mine] = chosen.emitted[mine], chosen.seconds[mine]
    by = optimism(
        np.array([one.emitted.sum() for one in known]),
        np.array([one.seconds.sum() for one in known]),
        np.stack([side.times.drawn(one.whole, OPTIMISM_DRAWS)[:, 0] for one in known], axis=1),
    )
    return _speed(side, best, emitted, taken).longer(by)


def _speed(
    side: TraceSpeed,
    one: _Replayed,
    emitted: Float[np.ndarray, "texts"],
    seconds: Float[np.ndarray, "texts"],
) -> Speed:
    """Tokens and time of the mean step of a growth, where texts emitted so much in so many seconds.

    Texts count as many steps as of the mean time they took: some growths spend less on hard texts.
    """
    steps = float(one.replay.steps.sum())
    mean = [(curve, weights / steps) for curve, weights in one.whole]
    return side.pooled_steps(mean, 1, emitted, seconds / seconds_of(mean)[0])


def _entry(side: TraceSpeed, one: _Replayed, speed: Speed, basis: Any) -> Entry:
    return Entry(ROOT, side.law, speed, basis=basis, growth=one.growing)
