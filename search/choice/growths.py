"""Trees that grow beside static ones: replayed with their own code, timed step by step, cross-fitted."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from treespec.protocols import Growth
from treespec.search.choice.candidates import Limits, Room
from treespec.search.choice.cross_fitting import FOLDS
from treespec.search.choice.rows import Entry, Growing, Speed
from treespec.search.choice.trace_speed import TraceSpeed
from treespec.search.errors import InvalidGrowth, InvalidTrace
from treespec.search.growth import CostAware, Eagle2, EqualGrowth, OptTree, SpecExec
from treespec.search.latency.errors import NotMeasured
from treespec.search.latency.interpolation import Term
from treespec.search.latency.step_parts import seconds_of
from treespec.search.rates.growth_replay import GrowthReplay, replay_growth
from treespec.shape import TreeShape

__all__ = ["DECIDING", "grown"]

SIZES = (8, 16, 32)
"""Nodes that growths of a fixed budget keep, where times were measured so far."""
DELTA = 0.2
"""Expected tokens that a level of OPT-Tree must add."""
DECIDING = (
    "how long trees that grow take to decide where is not among these times, so that they look faster than "
    "they are: profile anew (`treespec profile`)"
)
ROOT = TreeShape.chain(0)


@dataclass(frozen=True, eq=False)
class _Replayed:
    """One growth on all texts.

    Args:
        growing: what it is.
        emitted, steps: by text.
        levels, sizes: what each step drafted, and verified.
        offsets: steps of text i are `offsets[i]` up to, not including, `offsets[i + 1]`.
    """

    growing: Growing
    emitted: Float[np.ndarray, "texts"]
    steps: Float[np.ndarray, "texts"]
    levels: Sequence[Sequence[Counter[int]]]
    sizes: Sequence[int]
    offsets: Sequence[int]

    def terms(self, side: TraceSpeed) -> list[Term]:
        """The time of all steps of each text, as a weighted sum of measured times.

        Raises:
            NotMeasured: if a step has a part that was not.
        """
        starts, parts = self.offsets[:-1], side.parts_of_steps
        steps = [*parts.drafted(self.levels, self.sizes), *parts.deciding(self.levels)]
        return [(curve, np.add.reduceat(weights, starts, axis=0)) for curve, weights in steps]


def grown(side: TraceSpeed, limits: Limits, room: Room) -> tuple[list[Entry], list[str]]:
    """Growths over a small grid of their settings, by their own replay over measured time.

    Which is the best depends on texts and times as with static trees, so that it is cross-fitted as these
    are: the first row has the speed of choosing on some texts (and rounds of measuring), and valuing on the
    others. Nothing else is fitted: each growth is replayed once.

    Args:
        side: trace and times.
        limits: what was asked for; with `sizes`, which a growth does not have, there are none.
        room: what trace and times leave of that.

    Returns:
        The growths with their speeds, in the order of the choice, and what is to be known of them.
    """
    if side.trace.draft_rows is None or limits.sizes or not room.wide or room.depth < 1:
        return [], []
    known, times, notes = [], {}, []
    for growing, make in _grid(side, limits, room):
        try:
            one = _replayed(growing, replay_growth(side.valued, make()))
            times[one] = seconds_of(one.terms(side))
        except (InvalidTrace, InvalidGrowth, NotMeasured) as error:
            notes.append(f"{side.law}: {growing.name} was passed over: {error}")
        else:
            known.append(one)
    if not known:
        return [], notes
    every = np.ones(side.trace.texts, dtype=bool)
    order = sorted(known, key=lambda one: -_speed_on(one, times[one], every))
    best, *others = order
    entries = [_entry(side, best, _cross_fitted(side, known, best), "cross-fitted")]
    entries += [
        _entry(side, one, _speed(side, one, one.emitted, times[one]), "replay") for one in others
    ]
    known_to_decide = side.parts_of_steps.law_times.decide is not None
    return entries, notes if known_to_decide else [*notes, DECIDING]


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
        asked.append((f"OPT-Tree {size}", "opt_tree", OptTree, settings | {"delta": DELTA}))
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


def _replayed(growing: Growing, replay: GrowthReplay) -> _Replayed:
    emitted = np.add.reduceat(replay.accepted + 1, replay.offsets[:-1]).astype(float)
    found = replace(
        growing,
        nodes=replay.nodes_per_step,
        depth=replay.max_depth,
        sure=float(replay.sure.mean()),
    )
    return _Replayed(
        found,
        emitted,
        np.diff(replay.offsets).astype(float),
        [[Counter(level) for level in levels] for levels in replay.levels],
        replay.sizes.tolist(),
        replay.offsets.tolist(),
    )


def _speed_on(
    one: _Replayed, seconds: Float[np.ndarray, "texts"], texts: Bool[np.ndarray, "texts"]
) -> float:
    """Tokens per second on some texts."""
    return float(one.emitted[texts].sum() / seconds[texts].sum())


def _cross_fitted(side: TraceSpeed, known: Sequence[_Replayed], best: _Replayed) -> Speed:
    """The speed of choosing on some texts and valuing on the others, as of static trees."""
    folds = min(FOLDS, side.texts)
    part_of, halves = side.parts(folds), side.times.halves()
    timed = [side, side] if halves is None else [side.timed_by(half) for half in halves]
    seconds = [{one: seconds_of(one.terms(each)) for one in known} for each in timed]
    emitted, taken = np.zeros(side.trace.texts), np.zeros(side.trace.texts)
    for part in range(folds):
        choosing, valuing = seconds[:: 1 if part % 2 else -1]
        mine = part_of == part
        chosen = max(known, key=lambda one: _speed_on(one, choosing[one], ~mine))
        emitted[mine], taken[mine] = chosen.emitted[mine], valuing[chosen][mine]
    return _speed(side, best, emitted, taken)


def _speed(
    side: TraceSpeed,
    one: _Replayed,
    emitted: Float[np.ndarray, "texts"],
    seconds: Float[np.ndarray, "texts"],
) -> Speed:
    """Tokens and time of the mean step of a growth, where texts emitted so much in so many seconds.

    Texts count as many steps as of the mean time they took: some growths spend less on hard texts.
    """
    steps = float(one.steps.sum())
    mean = [
        (curve, weights.sum(axis=0, keepdims=True) / steps) for curve, weights in one.terms(side)
    ]
    return side.pooled_steps(mean, 1, emitted, seconds / seconds_of(mean)[0])


def _entry(side: TraceSpeed, one: _Replayed, speed: Speed, basis: Any) -> Entry:
    return Entry(ROOT, side.law, speed, basis=basis, growth=one.growing)
