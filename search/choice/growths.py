"""Trees that grow, for ranking beside static ones: replayed with their own code, timed, cross-fitted."""

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
from treespec.search.rates.growth_replay import replay_growth
from treespec.search.rates.replay import Replay, replay_budget
from treespec.shape import TreeShape

__all__ = ["DECIDING", "budgeted", "grown"]

SIZES = (8, 16, 32)
"""Nodes that growths of a fixed budget keep, as far as times were measured."""
LEAST_LEVEL_GAIN = 0.2
"""Expected tokens that a level of OPT-Tree must add."""
DECIDING = (
    "the time that trees that grow take to decide where to expand was not measured, so they look faster "
    "than they are"
)
"""Note if the times are of an older profile."""
SOURCES_TAKE_TIME = (
    "the time that the source itself takes to read and to draft is not included: `treespec run` shows it "
    "beside a pass of the target"
)
"""Note on budgets of a text source."""
ROOT = TreeShape.chain(0)


@dataclass(frozen=True, eq=False)
class _Replayed:
    """One growth replayed on all texts: its steps, and their time for each text and in total."""

    growing: Growing
    replay: Replay
    seconds: Float[np.ndarray, "texts"]
    total_terms: Sequence[Term]

    @cached_property
    def emitted(self) -> Float[np.ndarray, "texts"]:
        """Emitted tokens of each text."""
        return self.replay.emitted.astype(float)


def grown(side: TraceSpeed, limits: Limits, room: Room) -> tuple[list[Entry], list[str]]:
    """Growths over a small grid of their settings, by their own replay over measured time.

    As with static trees, the best one depends on texts and times, so it is cross-fitted like these: the
    first row has the speed of choosing on some texts and valuing on the others, and its time is lengthened
    by the bias of choosing among noisy times (`optimism`). Nothing else is fitted: each growth is replayed
    once.

    Args:
        side: trace and times.
        limits: the requested limits; no growths are returned if these name `sizes`, which growths lack.
        room: the trees that trace and times permit.

    Returns:
        The growths with their speeds, in the order of the choice, and notes on them.
    """
    if side.trace.draft_rows is None or limits.sizes or not room.wide or room.depth < 1:
        return [], []
    replays = (
        (growing, lambda make=make: replay_growth(side.valued, make()))
        for growing, make in _grid(side, limits, room)
    )
    entries, notes = _fitted(side, replays)
    if entries and side.parts_of_steps.decide is None:
        notes.append(f"{DECIDING}: profile again (`treespec profile`)")
    return entries, notes


def budgeted(side: TraceSpeed, limits: Limits, room: Room) -> tuple[list[Entry], list[str]]:
    """Budgets of a text source, by their own replay over measured time, chosen and valued as in `grown`.

    No draft model is run, so the time of a step depends on its number of nodes alone.

    Args:
        side: a trace with `text_drafts`, and times.
        limits: the requested limits.
        room: the trees that trace and times permit.

    Returns:
        The budgets with their speeds, in the order of the choice, and notes on them.
    """
    replays = (
        (growing, partial(replay_budget, side.valued, budget))
        for growing, budget in _budgets(side, limits, room)
    )
    entries, notes = _fitted(side, replays)
    return entries, [*notes, *([SOURCES_TAKE_TIME] if entries else [])]


def _fitted(
    side: TraceSpeed, replays: Iterable[tuple[Growing, Callable[[], Replay]]]
) -> tuple[list[Entry], list[str]]:
    """Entries of all growths that can be replayed: the best on all texts first, cross-fitted."""
    growths, notes = [], []
    for growing, replay in replays:
        try:
            growths.append(_replayed(growing, replay(), side))
        except (InvalidTrace, InvalidGrowth, NotMeasured) as error:
            notes.append(f"{side.law}: {growing.name} was skipped: {error}")
    if not growths:
        return [], notes
    all_texts = np.ones(side.trace.texts, dtype=bool)
    best, *others = sorted(growths, key=lambda growth: -_speed_on(growth, all_texts))
    entries = [_entry(side, best, _cross_fitted(side, growths, best), "cross-fitted")]
    for growth in others:
        speed = _speed(side, growth, growth.emitted, growth.seconds)
        entries.append(_entry(side, growth, speed, "replay"))
    return entries, notes


def _budgets(side: TraceSpeed, limits: Limits, room: Room) -> Iterator[tuple[Growing, Budget]]:
    """A small grid of chains and trees within the recorded and measured limits."""
    drafts = side.trace.text_drafts
    assert drafts is not None
    recorded = drafts.budget
    most = recorded.depth if limits.depth is None else limits.depth
    deepest = min(recorded.depth, side.deepest, most)
    widest = min(recorded.branching, limits.branching or recorded.branching)
    largest = min(recorded.size, room.size)
    sizes = limits.sizes or sorted({*(size for size in SIZES if size <= largest), largest})
    for depth in range(1, min(deepest, largest - 1) + 1):
        if limits.sizes is None or depth + 1 in limits.sizes:
            yield _budget(depth + 1, depth, 1)
    for size in sizes:
        if not 3 <= size <= largest or not deepest:
            continue
        for depth in sorted({max(1, deepest // 2), deepest}):
            for branching in sorted({min(2, widest), widest} - {1}):
                yield _budget(size, depth, branching)


def _budget(size: int, depth: int, branching: int) -> tuple[Growing, Budget]:
    config = {"kind": "budget", "depth": depth, "size": size, "branching": branching}
    name = f"budget {branching}x{depth}, {size}"
    return Growing(name, config, 0.0, depth, 1.0), Budget(size, depth, branching)


def _grid(
    side: TraceSpeed, limits: Limits, room: Room
) -> Iterator[tuple[Growing, Callable[[], Growth]]]:
    """Growths over a grid of settings within draft rows and times, each with a factory.

    Static trees end at levels too rarely reached for rates; growths are limited by the draft rows only.
    """
    rows, times = side.trace.draft_rows, side.times
    assert rows is not None
    deepest = min(rows.depth, side.deepest, room.size - 1, limits.depth or rows.depth)
    widest_timed = times.latency.law_times(side.law, times.batch).level.largest(times.prefix)
    widest = min(rows.width, widest_timed or rows.width, limits.branching or rows.width)
    sizes = [size for size in SIZES if size <= room.size] or [room.size]
    depths = sorted({max(1, deepest // 2), deepest})
    growths: list[tuple[str, str, Callable[..., Growth], Mapping[str, int | float]]] = []
    for size in sizes:
        for depth in depths:
            for k in sorted({min(4, widest), widest}):
                settings = {"k": k, "depth": depth, "size": size}
                growths.append((f"EAGLE-2 {k}x{depth}, {size}", "eagle2", Eagle2, settings))
        settings = {"size": size, "branching": widest, "depth": deepest}
        growths.append((f"SpecExec {size}", "specexec", SpecExec, settings))
        with_gain = settings | {"delta": LEAST_LEVEL_GAIN}
        growths.append((f"OPT-Tree {size}", "opt_tree", OptTree, with_gain))
    for width in sorted({min(2, widest), min(4, widest)}):
        size = min(1 + width * deepest, room.size)
        settings = {"width": width, "depth": deepest, "size": size}
        name = f"equal growth {width}x{deepest}, {size}"
        growths.append((name, "equal_growth", EqualGrowth, settings))
    for name, kind, policy, settings in growths:
        config = {"kind": kind, **settings}
        yield Growing(name, config, 0.0, deepest, 1.0), partial(policy, **settings)
    size = sizes[-1]
    config = {"kind": "cost_aware", "size": size, "depth": deepest, "branching": widest}
    make = partial(CostAware, times.latency, size, deepest, widest, prefix=times.prefix)
    yield Growing(f"cost-aware {size}", config, 0.0, deepest, 1.0), make


def _replayed(growing: Growing, replay: Replay, side: TraceSpeed) -> _Replayed:
    """Time a replayed growth; raises NotMeasured if the time of a part of a step is not known."""
    sure = float(replay.sure.mean())
    described = replace(growing, nodes=replay.nodes_per_step, depth=replay.max_depth, sure=sure)
    terms = replay.terms(side.parts_of_steps)
    total_terms = [(curve, weights.sum(axis=0, keepdims=True)) for curve, weights in terms]
    return _Replayed(described, replay, seconds_of(terms), total_terms)


def _speed_on(growth: _Replayed, texts: Bool[np.ndarray, "texts"]) -> float:
    """Tokens per second of a growth on some texts."""
    return float(growth.emitted[texts].sum() / growth.seconds[texts].sum())


def _cross_fitted(side: TraceSpeed, growths: Sequence[_Replayed], best: _Replayed) -> Speed:
    """The speed of choosing on some texts and valuing on the others, as for static trees."""
    folds = min(FOLDS, side.texts)
    fold_of = side.parts(folds)
    emitted, seconds = np.zeros(side.trace.texts), np.zeros(side.trace.texts)
    for fold in range(folds):
        left_out = fold_of == fold
        chosen = max(growths, key=lambda growth: _speed_on(growth, ~left_out))
        emitted[left_out] = chosen.emitted[left_out]
        seconds[left_out] = chosen.seconds[left_out]
    drawn = [side.times.drawn(growth.total_terms, OPTIMISM_DRAWS)[:, 0] for growth in growths]
    bias = optimism(
        np.array([growth.emitted.sum() for growth in growths]),
        np.array([growth.seconds.sum() for growth in growths]),
        np.stack(drawn, axis=1),
    )
    return _speed(side, best, emitted, seconds).longer(bias)


def _speed(
    side: TraceSpeed,
    growth: _Replayed,
    emitted: Float[np.ndarray, "texts"],
    seconds: Float[np.ndarray, "texts"],
) -> Speed:
    """Tokens and time of the mean step of a growth, given emitted tokens and seconds of each text.

    A text counts as its seconds over the mean step's time: some growths spend less on hard texts.
    """
    steps = float(growth.replay.steps.sum())
    mean_step = [(curve, weights / steps) for curve, weights in growth.total_terms]
    return side.pooled_steps(mean_step, 1, emitted, seconds / seconds_of(mean_step)[0])


def _entry(side: TraceSpeed, growth: _Replayed, speed: Speed, basis: Any) -> Entry:
    return Entry(ROOT, side.law, speed, basis=basis, growth=growth.growing)
